import fedrepro.methods.api as fl


class SOLO(fl.Method):
    """Local training without any communication. The baseline of federated methods.

    The optimiser's momentum is kept between rounds. So rounds are only the points at which the
    networks are tested, and E rounds of e epochs equal one training of E x e epochs.
    """

    name = "SOLO"
    reference = "li2023adcol"
    averages = False
    keeps_optimizer = True
    equations = (
        r"\min_{w_i} \; \mathrm{CE}\big(h(f(x)), y\big) \quad \text{each } i \text{ alone}",
    )

    bn_policy: fl.BNPolicy = fl.hyper("local", "nothing travels (ADCOL, Sec. 5.1)", "stated", ())
