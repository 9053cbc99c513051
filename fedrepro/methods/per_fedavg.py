import fedrepro.methods.api as fl


class PerFedAvg(fl.Method):
    """First-order Per-FedAvg: clients update the shared network with gradients after one step.

    A step reads two batches. An odd last one of an epoch is left out, so a client whose images are
    one batch does not train. Fallah et al. 2020, Alg. 1, first-order as in its Sec. 5. The server
    averages. Before a test each client adapts the average to its own images; `adapt_epochs` 0 tests
    the average itself. A rate that is None is the protocol's learning rate.
    """

    name = "Per-FedAvg"
    reference = "fallah2020perfedavg"
    equations = (
        r"w' = w - \alpha \nabla L(w; B_1), \qquad w \leftarrow w - \beta \nabla L(w'; B_2)",
    )

    alpha: float | None = fl.hyper(
        0.01, "FedPall code: learning rate (None); not stated by ADCOL", "code", (0.001,), low=1e-6
    )
    beta: float | None = fl.hyper(
        0.01, "ADCOL Sec. 5.1 tunes {0.001, 0.01}, under FedRep", "decided", (0.001,), low=1e-6
    )
    adapt_epochs: int = fl.hyper(
        1, "FL-bench code; PFLlib: one batch (adapt_steps); ADCOL: not stated", "code", (0,)
    )
    adapt_steps: int | None = fl.hyper(
        None,
        "steps of an adaptation epoch; None: the whole epoch; PFLlib code: on one batch",
        "code",
        (1,),
        low=1,
        later=True,
        text="Fallah et al., Eq. 3: one gradient step",
    )
    bn_policy: fl.BNPolicy = fl.hyper("average", "as FedAvg (FedPall code)", "code")

    def phases(self, protocol: fl.Protocol) -> tuple[fl.Phase, ...]:
        lr = protocol.optimizer.lr
        step, ahead = fl.OptimizerSpec(lr=self.beta or lr), self.alpha or lr
        return (fl.Phase("meta", protocol.local_epochs, optimizer=step, lookahead=ahead),)

    def before_test(self, protocol: fl.Protocol, last_round: bool) -> tuple[fl.Phase, ...]:
        if self.adapt_epochs == 0:
            return ()
        step = fl.OptimizerSpec(lr=self.alpha or protocol.optimizer.lr)
        return (fl.Phase("adapt", self.adapt_epochs, optimizer=step, steps=self.adapt_steps),)

    def evaluated_models(self, layout: fl.Layout) -> tuple[str, ...]:
        return ("personal",) if self.adapt_epochs else super().evaluated_models(layout)
