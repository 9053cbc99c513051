import fedrepro.methods.api as fl


class PartialFed(fl.Method):
    """Everything is sent and averaged; at a round's start a client keeps some of its own tensors.

    The fixed variant of Sun et al. 2021: the kept tensors are chosen by hand. ADCOL says only
    that it keeps chosen parameters besides BatchNorm. Each client's network, the loaded part
    and its own rest, is tested on its own domain.
    """

    name = "PartialFed"
    reference = "sun2021partialfed"
    equations = (
        r"w_i \leftarrow \big(w^{t}_{\text{loaded}},\; w_{i,\text{local}}\big)",
        r"w^{t+1} = \sum_i \frac{n_i}{n} w_i",
    )

    local_parts: tuple[str, ...] = fl.hyper(
        ("predictor",),
        "not stated by ADCOL; top layers are the usual choice of the fixed variant",
        "decided",
        (("projection", "predictor"), ("encoder",), ()),
    )
    local_bn: bool = fl.hyper(
        True, "ADCOL Sec. 2.3: parameters besides BatchNorm's stay local", "stated"
    )
    bn_policy: fl.BNPolicy = fl.hyper("average", "ADCOL's printed traffic holds all", "inferred")

    def overwrites(self, tensor: fl.TensorInfo) -> bool:
        own = tensor.part in self.local_parts or (self.local_bn and tensor.is_bn)
        return self.travels(tensor) and not own
