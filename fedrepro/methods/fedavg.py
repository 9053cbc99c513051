import fedrepro.methods.api as fl


class FedAvg(fl.Method):
    """Clients train the received network on their own images; the server averages all of it.

    McMahan et al. 2017, Alg. 1: w = sum_i (n_i / n) w_i. The averaged network is tested on every
    domain. This is the default behaviour of the base class.
    """

    name = "FedAvg"
    reference = "mcmahan2017fedavg"
    equations = (
        r"w_i^{t} = \arg\min_w \mathrm{CE}\ \text{from}\ w^{t}",
        r"w^{t+1} = \sum_i \frac{n_i}{n} \, w_i^{t}",
    )

    bn_policy: fl.BNPolicy = fl.hyper(
        "average", "FedBN and FedPall code, with the same weights", "code"
    )
