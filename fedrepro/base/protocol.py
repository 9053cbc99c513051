"""How a paper trains, whatever the method: data, network, optimiser, rounds. Validated on entry."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import pydantic
from pydantic import BaseModel, Field, ValidationError

from fedrepro.base.errors import FedReproError, first_mistake, need, one_of

Scale = Literal["smoke", "reduced", "paper"]
# The origin of a value: the paper states it, public code has it, other facts imply it, or we chose.
Status = Literal["stated", "code", "inferred", "decided"]
SIDES = {"stated": "text", "code": "code", "inferred": "settled", "decided": "settled"}


def sides(status: Status, source: str, text: str = "", code: str = "") -> dict[str, str]:
    """A value's source: ``source`` is all of it, ``text`` what the paper says, ``code`` what public
    code has, ``settled`` what else settles it. What settles it is on the side of its status."""
    parts = {"text": text, "code": code, "settled": ""}
    side = SIDES[one_of(status, SIDES, "status")]
    parts[side] = "; ".join(filter(None, (parts[side], source)))
    return {"source": "; ".join(filter(None, (text, source, code))), **parts}


DEVICES = ("auto", "cpu", "cuda")
# An engine's names, and the word that run ids hold. `auto` is the plain loop: on a CPU stacked
# clients, as grouped convolutions, are slower. Here, because it imports nothing heavy.
ENGINES = {"auto": "reference", "loop": "reference", "stacked": "fused"}
ENGINES |= {word: word for word in ENGINES.values()}


def resolve_engine(name: str) -> str:
    """The run ids' word of an engine."""
    return ENGINES[one_of(name, ENGINES, "engine")]


class _Spec(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Settings. Run ids hash their dump. So a setting that came after the first recorded runs, in
    ``later``, is dumped only if it differs from its default: old ids stay."""

    later: ClassVar[tuple[str, ...]] = ()

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _no_flag(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and kind not in (bool, Any):  # pydantic takes it for 0 or 1
            raise ValueError(f"{str(value).lower()} is not a value of it")
        return value

    @pydantic.model_serializer(mode="wrap")
    def _dump(self, dump: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        unset = {name for name in self.later if getattr(self, name) == fields[name].default}
        return {name: value for name, value in dump(self).items() if name not in unset}


class OptimizerSpec(_Spec):
    """The clients' optimiser: ``sgd`` or ``adamw`` as in torch.optim.
    weight_decay: by default PyTorch's: 0 for sgd and 0.01 for adamw.
    clip: largest norm of the gradient of what a client's optimiser trains.
    warmup: rounds over which the rate rises linearly; the first round has lr / warmup.
    cosine: the round after which the rate is 0; it falls as half a cosine after the warm-up.
    kept: each client keeps its momenta and step counts between rounds."""

    later = "kind", "clip", "warmup", "cosine", "kept"

    kind: Literal["sgd", "adamw"] = "sgd"
    lr: float = Field(0.01, gt=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    clip: float | None = Field(None, gt=0)
    warmup: int = Field(0, ge=0)
    cosine: int | None = Field(None, ge=1)
    kept: bool = False

    @pydantic.model_validator(mode="before")
    @classmethod
    def _own_decay(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and raw.get("kind") == "adamw":
            return {"weight_decay": 0.01, **raw}
        return raw

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kind == "adamw" and self.momentum:
            raise ValueError("adamw has its own moments; leave momentum at 0")
        if self.cosine is not None and self.cosine <= self.warmup:
            raise ValueError("cosine must end after the warm-up")
        return self

    def rate(self, round: int) -> float:
        """The learning rate in a round, counted from 1; round 0 is the test before the first."""
        before = round - 1
        if self.warmup and before < self.warmup:
            return self.lr * (before + 1) / self.warmup
        if self.cosine is None:
            return self.lr
        share = min(1.0, (before - self.warmup) / (self.cosine - self.warmup))
        return self.lr * 0.5 * (1 + math.cos(math.pi * share))


#: The rule that reads a setting of `AllocationSpec`, where only one does.
RULES = {"clients": "table", "count": "dirichlet", "alpha": "dirichlet", "ratio": "mixed"}


class AllocationSpec(_Spec):
    """How training images become clients' images.
    rule: ``domain`` one client per domain; ``table`` ``clients`` per domain; ``dirichlet`` label
    skew with concentration ``alpha`` over ``count`` clients (every domain is pooled first);
    ``mixed`` one client per domain, a share ``ratio`` of its training, test and validation images
    exchanged with the next domain's.
    per_client: images each client keeps: ``all``, ``smallest`` (cut to the smallest client), a
    count, or a fraction of the domain's training images (0 < f <= 1), never overlapping; or a
    count or fraction by domain.
    draw: ``random`` from the allocation stream, or ``first`` in the split's order.
    by_class: divide (rule table) or exchange (rule mixed) each class separately.
    every_class: every client gets an image of each class of its domain, in exchange for one of a
    class that it has twice.
    remainder: a domain's last client takes the rest, if that is less than ``per_client``.
    disjoint: training images of which a test image shows the same are removed: MNIST-M is MNIST
    recoloured, and Amazon has pictures twice.
    cut_tests: under rule table, test images are divided among a domain's clients too, and each
    client is its own domain (MPFT, Table 6). Parts have one size, rounded up per class, so a few
    images are in two of them."""

    later = "by_class", "every_class", "remainder", "disjoint", "cut_tests"

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
    """Random augmentation of a training image, in this order.
    crop: shift by up to this many pixels in each direction, filled with black; flip: left-right,
    with probability 1/2; rotate: by up to this many degrees in both directions; erase: probability
    that a rectangle of 2 to 33 % of the area, height to width 0.3 to 3.3, becomes black."""

    crop: int = Field(0, ge=0)
    flip: bool = False
    rotate: float = Field(0.0, ge=0, le=180)
    erase: float = Field(0.0, ge=0, le=1)

    @property
    def changes_images(self) -> bool:
        return bool(self.crop or self.flip or self.rotate or self.erase)


class DataSpec(Augmentation):
    """Which images, their size, their split, and their augmentation.
    split: ``pooled-stratified`` official parts merged, then divided by class; a fifth or
    ``test_share`` of them is test (FedBN, FedPall); ``official`` the release's own parts;
    ``official-leaky`` the official training list, tested on the whole domain (PACS in the FPL
    family); ``pooled-leaky`` pooled-stratified's training part, tested on the whole domain (PACS
    in MPFT's files); ``random-fifth`` a random 1/5 is test (ADCOL); ``class-first`` the first 80 %
    of each class is train (FedPall); ``every-tenth`` index mod 10 in 8, 9 is test (FPL family).
    normalise: ``half`` mean 0.5 std 0.5; ``none`` [0, 1]; ``imagenet`` or ``clip``, the mean and
    std of those networks' images.
    validation: at most this many training images per domain, of those that no client has (0:
    none), or a share (0 < f < 1) of them, set aside by class before clients get theirs.
    test_limit: cut each domain's test set to this many images; a mapping does so by domain.
    encoder: a frozen network whose embeddings replace the images (`data.embeddings`)."""

    later = "crop", "erase", "test_share", "encoder"

    dataset: str
    size: int = Field(gt=0)
    split: Literal[
        "pooled-stratified", "official", "official-leaky", "pooled-leaky", "random-fifth",
        "class-first", "every-tenth",
    ] = "pooled-stratified"  # fmt: skip
    split_seed: int = Field(0, ge=0, lt=2**32)
    test_share: float | None = Field(None, gt=0, lt=1)
    allocation: AllocationSpec = AllocationSpec()
    validation: int | float = Field(500, ge=0)
    test_limit: Annotated[int, Field(ge=1)] | dict[str, Annotated[int, Field(ge=1)]] | None = None
    normalise: Literal["half", "none", "imagenet", "clip"] = "half"
    encoder: str | None = None

    @pydantic.model_validator(mode="after")
    def _possible(self) -> Self:
        if self.encoder is not None and self.changes_images:
            raise ValueError("embeddings cannot be augmented; leave crop, flip, rotate, erase out")
        if self.crop >= self.size:
            raise ValueError(f"crop {self.crop} can move all of an image away; give a smaller one")
        return self

    @property
    def same_tests(self) -> bool:
        """Whether everybody who uses this split has the same test images."""
        drawn = self.split in ("pooled-stratified", "random-fifth")
        drawn |= self.allocation.rule == "mixed"
        return not drawn and self.test_limit is None


class EarlyStop(_Spec):
    """Stop after ``patience`` rounds without a lower mean validation loss.
    untrained: the networks before the first round are tested too, as round 0; they may be best."""

    later = ("untrained",)

    patience: int = Field(ge=1)
    untrained: bool = False


#: Settings that are groups, and one of each: to replace a whole group would lose the others.
GROUPS = {"optimizer": "lr", "data": "size"}


class Protocol(_Spec):
    """Everything about a run except the method, the seed and the machine.
    head: a client's frozen head, if networks have one: ``common`` the mean of all clients' heads,
    ``own`` its own.
    weighting: of clients in the average: by images or equal. ``tensors``: as in MPFT's public
    code, tensor j of a network becomes the clients' sum times client j's share of batches.
    participation: share of the clients that train in a round. turns: no client participates again
    before all have. stay: number of rounds for which the drawn clients stay.
    tested_on: ``home`` each client's network on its own domain; ``everywhere`` on the others too.
    tested_at: before the last five rounds, test on at most this many images per domain, always
    the same; None: all."""

    later = "turns", "stay", "head", "tested_on", "tested_at"

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

    @pydantic.model_validator(mode="after")
    def _known_end(self) -> Self:
        if self.tested_at is not None and self.early_stop is not None:
            raise ValueError("tested_at needs a known last round; leave it out with early_stop")
        return self

    def changed(self, **changes: Any) -> "Protocol":
        """A copy with some settings replaced; a dotted key reaches inside (``data.size``)."""
        return parse_protocol(self.model_dump(), changes) if changes else self

    def must_read(self, before: "Protocol") -> None:
        """FedReproError: a change has no effect, because the allocation's rule or the network does
        not read it."""
        own, old = self.data.allocation, before.data.allocation
        for part, needs in RULES.items():
            value = getattr(own, part)
            idle = own.rule != needs and value and value != getattr(old, part)
            mend = f"has no effect with rule {own.rule}; add data.allocation.rule={needs}"
            need(not idle, f"protocol setting data.allocation.{part} {mend}")
        fits = (self.model == "adapter") == (self.data.encoder is not None)
        both = "network adapter reads embeddings, the others read images: set data.encoder"
        need(fits, f"protocol setting model = {self.model!r}: {both} too, or null")


def parse_protocol(raw: dict[str, Any], changes: Mapping[str, Any] | None = None) -> Protocol:
    """The protocol of a nested mapping, changed. FedReproError names the first wrong setting."""
    for key, value in (changes or {}).items():
        node, parts = raw, key.split(".")
        one_of(parts[0], Protocol.model_fields, "protocol setting")
        for part in parts[:-1]:
            node[part] = node = node.get(part) or {}  # at its default it may be absent, or null
            if not isinstance(node, dict):
                raise FedReproError(f"protocol has no setting {key!r}; {part} has no parts")
        node[parts[-1]] = value
    try:
        return Protocol.model_validate(raw)
    except ValidationError as error:
        raise FedReproError(f"protocol setting {first_mistake(error)}") from None
