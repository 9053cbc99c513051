"""How a paper trains, whatever the method: data, network, optimiser, rounds. Validated on entry."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedrepro.errors import FedReproError, first_mistake

Scale = Literal["smoke", "reduced", "paper"]


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class OptimizerSpec(_Spec):
    """SGD as torch.optim.SGD defines it."""

    lr: float = Field(0.01, gt=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)


class AllocationSpec(_Spec):
    """How training images become clients' images.

    rule: ``domain`` one client per domain; ``table`` the clients per domain given by ``clients``;
    ``dirichlet`` label skew with concentration ``alpha`` over ``count`` clients (every domain is
    pooled first); ``mixed`` one client per domain, a share ``ratio`` of its images swapped with
    the next domain's.
    per_client: images each client keeps: ``all``, ``smallest`` (cut to the smallest client), a
    count, or a fraction of the domain's training images (0 < f <= 1), never overlapping.
    draw: ``random`` from the allocation stream, or ``first`` in the split's order.
    """

    rule: Literal["domain", "table", "dirichlet", "mixed"] = "domain"
    clients: dict[str, int] = {}
    count: int | None = Field(None, ge=1)
    alpha: float | None = Field(None, gt=0)
    ratio: float | None = Field(None, ge=0, le=1)
    per_client: int | float | Literal["all", "smallest"] = "all"
    draw: Literal["random", "first"] = "random"


class DataSpec(_Spec):
    """Which images, at what size, cut how.

    split: ``pooled-stratified`` official parts merged, then 80/20 stratified by class (FedBN,
    FedPall); ``official`` the release's own parts; ``random-fifth`` a random 1/5 is test (ADCOL);
    ``class-first`` the first 80 % of each class is train (FedPall); ``every-tenth`` index mod 10
    in 8, 9 is test (FPL family).
    normalise: ``half`` mean 0.5 std 0.5; ``none`` [0, 1]; ``imagenet``.
    validation: images a domain may take from the training split's unallocated rest (0: none).
    test_limit: cut each domain's test set to this many images (``smoke`` and ``reduced`` only).
    """

    dataset: str
    size: int = Field(gt=0)
    split: Literal[
        "pooled-stratified", "official", "random-fifth", "class-first", "every-tenth"
    ] = "pooled-stratified"
    split_seed: int = Field(0, ge=0)
    allocation: AllocationSpec = AllocationSpec()
    validation: int = Field(500, ge=0)
    test_limit: int | None = Field(None, ge=1)
    normalise: Literal["half", "none", "imagenet"] = "half"
    flip: bool = False
    rotate: float = Field(0.0, ge=0, le=180)


class EarlyStop(_Spec):
    """Stop after ``patience`` rounds without a lower mean validation loss."""

    patience: int = Field(ge=1)


class Protocol(_Spec):
    """Everything about a run that is not the method, the seed or the machine."""

    data: DataSpec
    model: str
    model_args: dict[str, Any] = {}
    rounds: int = Field(ge=1)
    local_epochs: int = Field(ge=1)
    batch_size: int = Field(ge=2)
    optimizer: OptimizerSpec = OptimizerSpec()
    weighting: Literal["samples", "uniform"] = "samples"
    participation: float = Field(1.0, gt=0, le=1)
    early_stop: EarlyStop | None = None
    precision: Literal["float32", "float64", "tf32", "bf16"] = "float32"
    scale: Scale = "paper"

    def changed(self, **changes: Any) -> Protocol:
        """A copy with some settings replaced; a dotted key reaches inside (``data.size``)."""
        raw = self.model_dump()
        for key, value in changes.items():
            node, parts = raw, key.replace("__", ".").split(".")
            for part in parts[:-1]:
                node = node.get(part, {})
                if not isinstance(node, dict):
                    raise FedReproError(f"protocol has no setting {key!r}; {part} has no parts")
            node[parts[-1]] = value
        return parse_protocol(raw)


def parse_protocol(raw: dict[str, Any]) -> Protocol:
    """Validate a nested mapping; the first mistake comes back as one line naming the setting."""
    try:
        return Protocol.model_validate(raw)
    except ValidationError as error:
        raise FedReproError(f"protocol setting {first_mistake(error)}") from None
