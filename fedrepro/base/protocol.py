"""How a paper trains, whatever the method: data, network, optimiser, rounds. Validated on entry."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from fedrepro.base.errors import FedReproError, first_mistake

Scale = Literal["smoke", "reduced", "paper"]
# What settles a value: the paper says it, public code has it, other facts imply it, or we chose it.
Status = Literal["stated", "code", "inferred", "decided"]


class _Spec(BaseModel):
    """Settings. Run ids hash their dump, so one added after the first recorded runs, which
    ``always`` does not list, is dumped only where it departs from its default: the ids of the
    runs that came before it stay."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    always: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        def departs(name: str) -> bool:
            default = type(self).model_fields[name].get_default(call_default_factory=True)
            return bool(getattr(self, name) != default)

        raw: dict[str, Any] = dump(self)
        return {n: value for n, value in raw.items() if n in self.always or departs(n)}


class OptimizerSpec(_Spec):
    """How clients take their steps: ``sgd`` or ``adamw`` as torch.optim defines them.

    weight_decay: 0 for sgd and 0.01 for adamw, PyTorch's own, where it is not given.
    clip: longest gradient of a client's whole network; a longer one is shortened to it.
    warmup: rounds over which the rate rises evenly, the first round's being lr / warmup.
    cosine: the round after which the rate is 0; from the warm-up on it falls to there as half a
    cosine. Constant where None.
    kept: each client's momenta and step counts outlive the round.
    """

    always: ClassVar[frozenset[str]] = frozenset({"lr", "momentum", "weight_decay"})

    kind: Literal["sgd", "adamw"] = "sgd"
    lr: float = Field(0.01, gt=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    clip: float | None = Field(None, gt=0)
    warmup: int = Field(0, ge=0)
    cosine: int | None = Field(None, ge=1)
    kept: bool = False

    @model_validator(mode="before")
    @classmethod
    def _own_decay(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and raw.get("kind") == "adamw":
            return {"weight_decay": 0.01, **raw}
        return raw

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kind == "adamw" and self.momentum:
            raise ValueError("adamw has moments of its own; leave momentum at 0")
        if self.cosine is not None and self.cosine <= self.warmup:
            raise ValueError("cosine must end after the warm-up")
        return self

    def rate(self, round: int) -> float:
        """The step size in a round, counted from 1; 0 is the test before the first."""
        before = round - 1
        if self.warmup and before < self.warmup:
            return self.lr * (before + 1) / self.warmup
        if self.cosine is None:
            return self.lr
        share = min(1.0, (before - self.warmup) / (self.cosine - self.warmup))
        return self.lr * 0.5 * (1 + math.cos(math.pi * share))


class AllocationSpec(_Spec):
    """How training images become clients' images.

    rule: ``domain`` one client per domain; ``table`` the clients per domain given by ``clients``;
    ``dirichlet`` label skew with concentration ``alpha`` over ``count`` clients (every domain is
    pooled first); ``mixed`` one client per domain, a share ``ratio`` of its images, its test
    images and its validation images alike, swapped with the next domain's.
    per_client: images each client keeps: ``all``, ``smallest`` (cut to the smallest client), a
    count, or a fraction of the domain's training images (0 < f <= 1), never overlapping; or a
    count or fraction by domain.
    draw: ``random`` from the allocation stream, or ``first`` in the split's order.
    by_class: divide (rule table) or swap (rule mixed) each class by itself, not the domain.
    every_class: every client gets an image of each class of its domain, where chance gave none
    in exchange for one of a class it has twice.
    remainder: a domain's last client takes what is left where that is less than ``per_client``.
    disjoint: clients lose the training images whose original another domain tests on (MNIST-M is
    MNIST recoloured).
    cut_tests: under rule table, a domain's test images are cut among its clients as its training
    images are, and each client stands for a domain of its own (MPFT, Table 6). Parts are of one
    size, rounded up class by class, so that a few images are in two of them.
    """

    always: ClassVar[frozenset[str]] = frozenset(
        {"rule", "clients", "count", "alpha", "ratio", "per_client", "draw"}
    )

    rule: Literal["domain", "table", "dirichlet", "mixed"] = "domain"
    clients: dict[str, int] = {}
    count: int | None = Field(None, ge=1)
    alpha: float | None = Field(None, gt=0)
    ratio: float | None = Field(None, ge=0, le=1)
    per_client: int | float | Literal["all", "smallest"] | dict[str, int | float] = "all"
    draw: Literal["random", "first"] = "random"
    by_class: bool = False
    every_class: bool = False
    remainder: bool = False
    disjoint: bool = False
    cut_tests: bool = False


class Augmentation(_Spec):
    """What chance may change in a training image, in this order.

    crop: shift by up to so many pixels each way, black where nothing was (a crop of the image's
    size after padding); flip: left-right, every other image; rotate: turn by up to so many degrees
    either way; erase: probability that a rectangle of 2 to 33 % of the area, height to width
    0.3 to 3.3, turns black.
    """

    crop: int = Field(0, ge=0)
    flip: bool = False
    rotate: float = Field(0.0, ge=0, le=180)
    erase: float = Field(0.0, ge=0, le=1)


class DataSpec(Augmentation):
    """Which images, at what size, cut how, and augmented how.

    split: ``pooled-stratified`` official parts merged, then divided by class, a fifth or
    ``test_share`` of them test (FedBN, FedPall); ``official`` the release's own parts;
    ``official-leaky`` the official training list, but tested on the whole domain, training images
    included (PACS in the FPL family); ``pooled-leaky`` pooled-stratified's training part, and that
    test (PACS in MPFT's files); ``random-fifth`` a random 1/5 is test (ADCOL);
    ``class-first`` the first 80 % of each class is train (FedPall); ``every-tenth`` index mod 10
    in 8, 9 is test (FPL family).
    normalise: ``half`` mean 0.5 std 0.5; ``none`` [0, 1]; ``imagenet`` or ``clip``, the mean and
    std of the images those networks were trained on.
    validation: images a domain may take from the training split's unallocated rest (0: none), or
    a share (0 < f < 1) of each domain's training split, by class, set aside before clients get
    theirs.
    test_limit: cut each domain's test set to this many images, or those of the domains named.
    encoder: a frozen network whose embeddings take the images' place (`data.embeddings`).
    """

    always: ClassVar[frozenset[str]] = frozenset(
        {"dataset", "size", "split", "split_seed", "allocation", "validation", "test_limit"}
        | {"normalise", "flip", "rotate"}
    )

    dataset: str
    size: int = Field(gt=0)
    split: Literal[
        "pooled-stratified",
        "official",
        "official-leaky",
        "pooled-leaky",
        "random-fifth",
        "class-first",
        "every-tenth",
    ] = "pooled-stratified"
    split_seed: int = Field(0, ge=0)
    test_share: float | None = Field(None, gt=0, lt=1)
    allocation: AllocationSpec = AllocationSpec()
    validation: int | float = Field(500, ge=0)
    test_limit: Annotated[int, Field(ge=1)] | dict[str, int] | None = None
    normalise: Literal["half", "none", "imagenet", "clip"] = "half"
    encoder: str | None = None

    @model_validator(mode="after")
    def _embedded(self) -> Self:
        if self.encoder is not None and self.augmentation != Augmentation():
            raise ValueError("embeddings cannot be augmented; leave crop, flip, rotate, erase out")
        return self

    @property
    def same_tests(self) -> bool:
        """Whether all who follow the split test the same images."""
        drawn = self.split in ("pooled-stratified", "pooled-leaky", "random-fifth")
        return not drawn and self.test_limit is None

    @property
    def augmentation(self) -> Augmentation:
        """The settings of the training images' augmentation, as a value of their own."""
        return Augmentation(crop=self.crop, flip=self.flip, rotate=self.rotate, erase=self.erase)


class EarlyStop(_Spec):
    """Stop after ``patience`` rounds without a lower mean validation loss.

    untrained: the networks before the first round are tested too, as round 0, and may be the best.
    """

    always: ClassVar[frozenset[str]] = frozenset({"patience"})

    patience: int = Field(ge=1)
    untrained: bool = False


class Protocol(_Spec):
    """Everything about a run that is not the method, the seed or the machine.

    head: whose frozen head a client's network has, where networks have one: ``common`` the mean of
    all clients', ``own`` its own.
    weighting: of clients in their average, by images or alike. ``tensors``: MPFT's public code,
    where tensor j of a network becomes the clients' sum times client j's share of batches.
    participation: share of the clients that train in a round. turns: every client has had its turn
    before one has another, instead of a draw for each round by itself. stay: rounds for which the
    drawn clients stay.
    tested_on: ``home`` each client's network on its own domain; ``everywhere`` on the others too.
    tested_at: before the last five rounds, so many test images of a domain at most, always the
    same; all of them where None.
    """

    always: ClassVar[frozenset[str]] = frozenset(
        {"data", "model", "model_args", "rounds", "local_epochs", "batch_size", "optimizer"}
        | {"weighting", "participation", "early_stop", "precision", "scale"}
    )

    data: DataSpec
    model: str
    model_args: dict[str, Any] = {}
    rounds: int = Field(ge=1)
    local_epochs: int = Field(ge=1)
    batch_size: int = Field(ge=2)
    optimizer: OptimizerSpec = OptimizerSpec()
    weighting: Literal["samples", "uniform", "tensors"] = "samples"
    participation: float = Field(1.0, gt=0, le=1)
    turns: bool = False
    stay: int = Field(1, ge=1)
    early_stop: EarlyStop | None = None
    head: Literal["common", "own"] = "common"
    tested_on: Literal["home", "everywhere"] = "home"
    tested_at: int | None = Field(None, ge=1)
    precision: Literal["float32", "float64", "tf32", "bf16"] = "float32"
    scale: Scale = "paper"

    @model_validator(mode="after")
    def _known_end(self) -> Self:
        if self.tested_at is not None and self.early_stop is not None:
            raise ValueError("tested_at needs a known last round; leave it out with early_stop")
        return self

    def changed(self, **changes: Any) -> Protocol:
        """A copy with some settings replaced; a dotted key reaches inside (``data.size``)."""
        raw = self.model_dump()
        for key, value in changes.items():
            node, parts = raw, key.split(".")
            for part in parts[:-1]:
                node = node.setdefault(part, {})  # a setting at its default may be absent
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
