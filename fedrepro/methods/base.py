"""The base class of federated methods: hyper-parameters with their sources, a pure loss, and what
is averaged, kept and sent. Round loop and engine use only this and know no method by name."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, ClassVar, Literal, NamedTuple, dataclass_transform, get_args, get_origin

import torch
from torch import Tensor

from fedrepro.base.errors import FedReproError, need
from fedrepro.base.protocol import Augmentation, OptimizerSpec, Protocol, Status, sides
from fedrepro.methods.losses import cross_entropy
from fedrepro.methods.server import Message, Server, must_be_tensors
from fedrepro.models import FLModel, Output, TensorInfo

#: How BatchNorm is shared. average: weights and statistics are averaged; local: both stay at the
#: client; first: statistics are the round's first client's; recompute: only weights are averaged,
#: and before a test each client computes the statistics from its training images.
BNPolicy = Literal["average", "local", "first", "recompute"]
Terms = dict[str, Tensor]  #: Terms of a loss by name, scalars.
Layout = Mapping[str, TensorInfo]  #: A network's tensors by name.
NETWORKS = "global", "personal", "trained", "twin"  # that can be tested


def hyper(
    default: Any,
    source: str,
    status: Status = "decided",
    alternatives: Sequence[Any] | None = None,
    *,
    text: str = "",
    code: str = "",
    low: float | None = 0,
    high: float | None = None,
    later: bool = False,
) -> Any:
    """A dataclass field for a hyper-parameter: its value, source, status, and alternatives (None:
    the other values of a bool or a Literal).

    text, code: what the paper or public code says of it, if the value comes from elsewhere.
    low, high: inclusive bounds of a number, checked when a method is created by name; None: there
    is none. later: it was added after the first recorded runs of the method, so it must not change
    their ids.
    """
    plain = not isinstance(default, list | dict | set)
    need(plain, f"the default {default!r} could be changed by a run; write a tuple, as in (1, 2)")
    said = {"status": status, **sides(status, source, text, code)}
    facts = {"alternatives": alternatives, "low": low, "high": high, "later": later}
    return field(default=default, metadata=said | facts)


def _alternatives(field: dataclasses.Field[Any], kind: Any) -> list[Any]:
    given = field.metadata["alternatives"]
    if given is None:
        kind = Literal[True, False] if kind is bool else kind
        values = get_args(kind) if get_origin(kind) is Literal else ()
        given = [value for value in values if value != field.default]
    return list(given)


class Batch(NamedTuple):
    """x float (b, 3, H, W) after augmentation and normalisation; y int64 (b,).

    draws (b, k): random numbers for each image in the method's own loss (`Method.draw`).
    """

    x: Tensor
    y: Tensor
    draws: Tensor | None = None


@dataclass(frozen=True)
class LocalModel:
    """A client's network as a loss sees it: call it, or read its trained parameters.

    run(tensors, x, training=False): the output for x of another network of its architecture, whose
    parameters and running statistics are `tensors`; with `training` BatchNorm uses the batch's own
    statistics. It changes nothing. `tensors` holds all tensors of the network: those that are not
    sent are in `params`, if this phase trains them. Gradients flow to those that require them.
    """

    network: Callable[[Tensor], Output]
    params: Mapping[str, Tensor]
    run: Callable[..., Output]

    def __call__(self, x: Tensor) -> Output:
        return self.network(x)


@dataclass(frozen=True)
class TrainedClient:
    """A client after local training, for `upload` and `remember`.

    round: counted from 1. labels (n,) int64; classes: their number in the federation. inputs:
    embeddings (n, d) or uint8 images (n, 3, H, W). state: its network's tensors. received: this
    round's message, with its own ``memory``. augmentation: the protocol's. generator: a CPU stream
    of this client and round. features(training, augmentation): (n, d) in the order of the labels,
    of images augmented only if an augmentation is given; in training mode of batches in random
    order, because of BatchNorm. logits: the same of its class logits (n, K).
    """

    index: int
    round: int
    classes: int
    labels: Tensor
    inputs: Tensor
    state: Mapping[str, Tensor]
    received: Message
    augmentation: Augmentation
    generator: torch.Generator
    features: Callable[..., Tensor]
    logits: Callable[..., Tensor]

    def embeddings(self) -> Tensor:
        """Its inputs in the precision of its network. Raises FedReproError if they are images."""
        if self.inputs.ndim != 2:
            mend = "use frozen features, such as data set office10-frozen or folder-frozen:PATH"
            raise FedReproError(f"the method works on embeddings; {mend}")
        return self.inputs.to(next(v for v in self.state.values() if v.is_floating_point()).dtype)


@dataclass(frozen=True)
class Upload:
    """One client's message at the server; n is its number of training images.

    Shared tensors ("model") are averaged when they arrive; at `server_step` they are removed.
    """

    client: int
    n: int
    message: Message


Uploads = Sequence[Upload]  #: The messages of a round's clients, in their order.


@dataclass(frozen=True)
class Phase:
    """A part of local training. Phases of a round run in order on the same network.

    trains: which parameters are trained; BatchNorm's statistics always follow the batches.
    optimizer: by default the protocol's. lookahead: if set, a step reads two batches. It takes the
    gradient of the second after a plain step of this size on the first, and applies it to the
    parameters before that step (Per-FedAvg).
    loss: the name of the method's function to minimise, with `client_loss`'s signature.
    steps: batches in an epoch, for any number of images; None: one pass over the images.
    unclipped: loss terms whose gradient is added after the others' is clipped.
    apart: parameters by name with their own constant-rate optimiser and their own clipping.
    """

    name: str
    epochs: int
    trains: Any = lambda tensor: True
    optimizer: OptimizerSpec | None = None
    lookahead: float | None = None
    loss: str = "client_loss"
    steps: int | None = None
    unclipped: tuple[str, ...] = ()
    apart: tuple[tuple[str, OptimizerSpec], ...] = ()


#: A pass that updates only BatchNorm's statistics.
CLOSING = Phase("closing", 1, trains=lambda tensor: False)


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Method:
    """Base class of all methods. A subclass becomes a frozen dataclass without a decorator. By
    default it does federated averaging."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    reference: ClassVar[str]
    keeps_optimizer: ClassVar[bool] = False  #: Momenta stay at the client between rounds.
    needs_embeddings: ClassVar[bool] = False  #: Its clients must get these, not images.
    averages: ClassVar[bool] = True  #: Networks are sent and averaged.
    equations: ClassVar[tuple[str, ...]] = ()  #: LaTeX, for the method's page.

    bn_policy: BNPolicy = hyper("average", "base class")

    def __init_subclass__(cls) -> None:
        mend = "write fields with hyper(), and server.tensors in init_server"
        need("__init__" not in vars(cls), f"{cls.__name__}.__init__ has no effect; {mend}")
        dataclass(frozen=True)(cls)

    def network(self, module: FLModel) -> FLModel:
        """The protocol's network, unchanged or wrapped with the method's own tensors."""
        return module

    # Which tensors of the network are sent, and which a client overwrites.

    def shares(self, tensor: TensorInfo) -> bool:
        """Whether a tensor of the network is sent to the server and averaged there."""
        return self.averages

    def travels(self, tensor: TensorInfo) -> bool:
        """`shares` after the BatchNorm policy; batch counters and frozen heads are never sent."""
        if tensor.is_counter or tensor.is_fixed or not checked(self.shares, bool, tensor):
            return False
        if tensor.is_bn and self.bn_policy == "local":
            return False
        return not (tensor.is_bn and tensor.is_buffer and self.bn_policy == "recompute")

    def broadcast(self, tensor: TensorInfo) -> bool:
        """Whether the server sends this tensor to the clients."""
        return self.travels(tensor)

    def overwrites(self, tensor: TensorInfo) -> bool:
        """Whether a client replaces this tensor with the server's at the start of a round."""
        return self.broadcast(tensor)

    def evaluated_models(self, layout: Layout) -> tuple[str, ...]:
        """The networks whose test accuracy is the method's result: "global", the server's, if all
        of it is shared, else "personal", each client's at the start of the next round. Others:
        "trained", each client's after local training; "twin", its second network."""
        whole = all(self.overwrites(t) for t in layout.values() if not (t.is_counter or t.is_fixed))
        return ("global",) if whole else ("personal",)

    def watched(self) -> str | None:
        """The networks whose validation loss stops a run and selects its round, if not the tested
        ones."""
        return None

    # Local training.

    def phases(self, protocol: Protocol) -> tuple[Phase, ...]:
        """The local training of one round."""
        return (Phase("local", protocol.local_epochs),)

    def personal_phases(self, protocol: Protocol) -> tuple[Phase, ...]:
        """Training of a second network, which stays at its client; empty: there is none. It starts
        as a copy of the first, and receives the same messages. Neither loss can read the other
        network: keep a teacher in `first_memory`, or wrap both in `network`."""
        return ()

    def before_test(self, protocol: Protocol, last_round: bool) -> tuple[Phase, ...]:
        """Training on a temporary copy before a personal network is tested."""
        return ()

    def adapts_on(self, protocol: Protocol) -> tuple[int, int] | None:
        """How many images of each class (the first ones) the training before a test reads, and its
        batch size; None: all of the client's, in the protocol's batches."""
        return None

    def client_loss(self, model: LocalModel, batch: Batch, received: Message) -> Terms:
        """The objective's terms by name, weights included; their sum is minimised."""
        return {"ce": cross_entropy(model(batch.x).logits, batch.y)}

    def draw(self, n: int, generator: torch.Generator) -> Tensor | None:
        """Random numbers float32 (n, k) for the loss of a batch of n images, from a CPU generator.
        The loss itself must not draw, so that it is the same in every engine."""
        return None

    # Messages and the server.

    def init_server(self, server: Server) -> None:
        """Build what the server needs besides the network (random initialisation is seeded)."""

    def download(self, server: Server, client: int) -> Message:
        """The message to a client besides the shared tensors."""
        return {}

    def upload(self, client: TrainedClient) -> Message:
        """The message from a client besides the shared tensors. A ``model`` in it is sent in their
        place, for example with noise for privacy."""
        return {}

    def weights(self, protocol: Protocol, counts: Sequence[int]) -> list[float]:
        """Weights of the clients' shared tensors in their average, from numbers of images: n_i /
        sum n; 1/N if the protocol says so; 1 each if its `weighting` is `tensors`."""
        if protocol.weighting == "tensors":
            return [1.0] * len(counts)
        if protocol.weighting == "uniform":
            return [1 / len(counts)] * len(counts)
        return [count / sum(counts) for count in counts]

    def server_step(self, server: Server, uploads: Uploads) -> None:
        """Train the server on the uploads; the average is in `server.model` already."""

    # What a client remembers.

    def first_memory(self, server: Server) -> dict[str, Tensor]:
        """Tensors that each client keeps between rounds besides networks, at first. A loss finds
        them in the message as ``memory``; they are never sent."""
        return {}

    def remember(self, client: TrainedClient) -> dict[str, Tensor]:
        """The memory after local training, with the same names, if `first_memory` has any."""
        return dict(client.received["memory"])

    # Description.

    def fields(self) -> dict[str, Any]:
        """Hyper-parameters by name, as run ids hash them: a ``later`` one if it is not default."""
        return {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if not f.metadata["later"] or getattr(self, f.name) != f.default
        }

    @classmethod
    def describe(cls) -> list[dict[str, Any]]:
        """One row per hyper-parameter: name, default, status, source, its sides, alternatives."""
        kinds = typing.get_type_hints(cls)  # resolves those of `from __future__ import annotations`
        return [
            {"name": f.name, "default": f.default, **f.metadata}
            | {"alternatives": _alternatives(f, kinds[f.name])}
            for f in dataclasses.fields(cls)
        ]

    @classmethod
    def layers(cls) -> list[type[Method]]:
        """The classes with its name: first the method as in its paper, then its variants."""
        return [c for c in cls.__mro__[::-1] if getattr(c, "name", None) == cls.name]


# What a method's functions return is checked: a user may have written them.


def checked(hook: Callable[..., Any], kind: Any, *given: Any) -> Any:
    """What a method's function returns. FedReproError: it is not of this kind."""
    found, name = hook(*given), getattr(hook, "__qualname__", "a function of the method")
    known = {Mapping: "a dict", Sequence: "a tuple", NoneType: "nothing", Iterable: "a list"}
    wanted = known.get(kind, f"a {kind.__name__}")
    got = type(found).__name__
    need(isinstance(found, kind), f"{name} must return {wanted}, not {got}; correct it")
    return found


def returned(
    hook: Callable[..., Any], *given: Any, sent: Sequence[str] | None = None
) -> dict[str, Any]:
    """The tensors that a method's function returns by name. sent: it is a message; these names are
    the client's own. FedReproError: it returns others."""
    found, name = checked(hook, Mapping, *given), getattr(hook, "__qualname__", "a message")
    must_be_tensors(found, name, nested=sent is not None)
    own = ", ".join(found.keys() & set(sent or ()))
    need(not own, f"{name}: {own} is a name of what a client gets anyway; choose another")
    return dict(found)


def phases_of(
    method: Method, layout: Layout, hook: Callable[..., Any], *given: Any
) -> tuple[Phase, ...]:
    """The phases that a method's function returns. FedReproError: one cannot be trained."""
    found = tuple(checked(hook, Sequence, *given))
    for one in found:
        phase = isinstance(one, Phase) and isinstance(one.epochs, int) and callable(one.trains)
        phase = phase and (one.steps is None or (isinstance(one.steps, int) and one.steps > 0))
        phase = phase and isinstance(one.optimizer, OptimizerSpec | None)
        told = "Phase(name, epochs), with trains a function, optimizer an OptimizerSpec, steps >= 1"
        need(phase, f"{method.name}: a phase is {told}, not {one!r}; correct it")
        need(hasattr(method, one.loss), f"{method.name}: a phase has an unknown loss {one.loss!r}")
        trains = one.trains is CLOSING.trains or any(
            one.trains(tensor) for tensor in layout.values() if not tensor.is_buffer
        )
        frozen = any(tensor.is_fixed for tensor in layout.values())
        mend = "the predictor is frozen, use images" if frozen else "correct its trains"
        need(trains, f"{method.name}: phase {one.name} trains no parameter; {mend}")
        other = ", ".join(name for name, _ in one.apart if name not in layout)
        need(not other, f"{method.name}: phase {one.name} has no tensor {other} to train apart")
    return found


def weights_of(method: Method, protocol: Protocol, counts: Sequence[int]) -> list[float]:
    """The clients' weights. FedReproError: not one number per client with the sum 1 (any sum, if
    the protocol weights tensors)."""
    found = [float(weight) for weight in checked(method.weights, Iterable, protocol, counts)]
    right = len(found) == len(counts)
    need(right, f"{method.name}.weights must return one weight per client")
    whole = protocol.weighting == "tensors" or math.isclose(sum(found), 1, abs_tol=1e-6)
    need(whole, f"{method.name}.weights must have the sum 1, not {sum(found):g}; divide by it")
    return found


def evaluated(method: Method, layout: Layout, protocol: Protocol, lone: str) -> tuple[str, ...]:
    """The networks to test. lone: a domain without a client, if there is one. FedReproError: they
    are not known, there are none, or they are clients' and a domain has no client."""
    found: tuple[str, ...] = checked(method.evaluated_models, tuple, layout)
    tested = {*found, method.watched() or "".join(found[:1])}
    wrong = f"{method.name}: tested networks are {', '.join(NETWORKS)}; correct it"
    need(found and tested <= {*NETWORKS}, wrong)
    lacks = "twin" in tested and not method.personal_phases(protocol)
    need(not lacks, f"{method.name} tests second networks but trains none; add personal_phases")
    ends = (phases_of(method, layout, method.before_test, protocol, end) for end in (False, True))
    alike = len({tuple((phase.name, phase.epochs) for phase in phases) for phases in ends}) == 1
    late = f"{method.name} trains more before the last test, and an early stop does not know which"
    need(alike or protocol.early_stop is None, f"{late} that is; leave early_stop out")
    fewer = f"{method.name} tests each client's network on its own domain, and {lone} has no client"
    mend = "so its mean would have fewer domains than other rows'; give it a client or leave it out"
    need(not lone or found[0] == "global", f"{fewer}, {mend}")
    return found
