"""The server of a federated run, and the messages between it and the clients."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import register_pytree_node, tree_leaves

from fedrepro.base.errors import need
from fedrepro.base.protocol import OptimizerSpec, Protocol
from fedrepro.base.rng import seeded_modules, torch_stream
from fedrepro.data.transforms import epoch_batches
from fedrepro.models import FLModel, TensorInfo, architecture, build_model, run_with

#: Payloads by kind ("model", "representations", "discriminator", ...): a tensor, a mapping of named
#: tensors, or a `Network` each.
Message = dict[str, Any]
OWN = ("memory", "schedule")  # kinds that a loss receives but that are not sent


class Network:
    """A sent network: its weights are sent; the receiver can call it, but does not train it.

    training: whether the receiver's BatchNorm uses the batch's own statistics.
    """

    def __init__(self, module: nn.Module, training: bool = False) -> None:
        self.tensors = {
            name: value.detach().clone()
            for name, value in module.state_dict().items()
            if not name.endswith("num_batches_tracked")
        }
        self._skeleton = architecture(module, training)

    def __call__(self, inputs: Tensor) -> Tensor:
        """The network's output; gradients flow to the inputs, not to its weights."""
        return run_with(self._skeleton, self.tensors, inputs)  # type: ignore[no-any-return]


def _filled(tensors: Iterable[Any], context: tuple[nn.Module, bool]) -> Network:
    network = Network.__new__(Network)
    (network.tensors,), (network._skeleton, _) = tensors, context
    return network


# So vmap, and everything that walks through a message, finds the tensors of a network in it.
register_pytree_node(
    Network, lambda sent: ([sent.tensors], (sent._skeleton, sent._skeleton.training)), _filled
)


def must_be_tensors(named: Mapping[str, Any], where: str, nested: bool = False) -> None:
    """FedReproError: a value is no tensor or, if they may be nested, holds something else."""
    for name, value in named.items():
        for one in tree_leaves(value) if nested else [value]:
            kind = type(one).__name__
            need(isinstance(one, Tensor), f"{where}: {name} must be a tensor, not {kind}")


def payload_bytes(payload: Any) -> int:
    """Bytes of the tensors of one payload."""
    return sum(value.nbytes for value in tree_leaves(payload))


def count_bytes(messages: Iterable[Message]) -> dict[str, int]:
    """Bytes by kind, summed over messages. Ids, names and framing, which every method needs, are
    not counted, nor what a client has itself: its ``memory``, and a ``schedule``, values that
    follow from the round's number. If a message has a boolean ``present``, only the rows that it
    marks as used are counted: the others only keep the table's shape the same in all rounds."""
    total: Counter[str] = Counter()
    for message in messages:
        marks = message.get("present")
        present = marks if isinstance(marks, Tensor) and marks.dtype == torch.bool else None
        for kind, payload in message.items():
            if kind in OWN:
                continue
            if isinstance(payload, Tensor) and payload.ndim == 2 and present is not None:
                payload = payload[present] if len(payload) == len(present) else payload
            total[kind] += payload_bytes(payload)
    return total


@dataclass(eq=False)
class Server:
    """The server's state between rounds.

    model: every tensor of the network by name; those that are never sent keep their first value.
    clients, classes: their numbers. size: as in `Federation`. round: its number, from 1; 0 in
    `init_server`. modules: networks that a method trains here. tensors: anything else it keeps.
    log: values for the curve in this round, by name.
    Random numbers: `fedrepro.base.rng.torch_stream(server.seed, "method", round=server.round)`.
    """

    model: dict[str, Tensor]
    layout: Mapping[str, TensorInfo]
    protocol: Protocol
    seed: int
    clients: int
    feature_size: int
    classes: int
    device: torch.device
    size: int
    round: int = 0
    modules: dict[str, nn.Module] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    log: dict[str, float] = field(default_factory=dict)
    _networks: dict[tuple[str, bool], Network] = field(default_factory=dict)

    def __setattr__(self, name: str, value: Any) -> None:
        lost = f"server.{name} would be lost on resume; keep tensors in server.tensors"
        need(name in self.__dataclass_fields__, lost)
        super().__setattr__(name, value)

    @property
    def dtype(self) -> torch.dtype:
        """The run's floating-point type."""
        return next(v.dtype for v in self.model.values() if v.is_floating_point())

    def add_module(self, name: str, module: nn.Module) -> None:
        """Add a network of the server; it moves to the run's device and type. FedReproError: not in
        `init_server`, so that a resumed run would lack it."""
        need(self.round == 0, f"the server's {name} is added in a round; add it in init_server")
        self.modules[name] = module.to(self.device, self.dtype)

    def new_network(self) -> FLModel:
        """Another network of the protocol's kind, for images or embeddings of the same size."""
        return build_model(self.protocol.model, self.classes, self.size, **self.protocol.model_args)

    def network(self, name: str, training: bool = False) -> Network:
        """A server's network for sending; the same object until a tensor of it changes."""
        now, sent = self.modules[name].state_dict(), self._networks.get((name, training))
        if sent is None or not all(torch.equal(v, now[n]) for n, v in sent.tensors.items()):
            sent = self._networks[name, training] = Network(self.modules[name], training)
        return sent

    def fit(
        self, name: str, inputs: Tensor, labels: Tensor, *, epochs: int, optimizer: OptimizerSpec
    ) -> None:
        """Train a server's network as a classifier of inputs (n, d) into labels (n,), by `learn`.
        For another loss or optimiser, train `modules[name]` yourself."""
        inputs, labels = inputs.to(self.device), labels.to(self.device)
        size, stream = self.protocol.batch_size, torch_stream(self.seed, "server", round=self.round)
        shuffled = (epoch_batches(len(labels), size, stream) for _ in range(epochs))
        indices = (index.to(self.device) for epoch in shuffled for index in epoch)
        batches = ((inputs[index], labels[index]) for index in indices)
        self.learn(name, self.modules[name].train(), optimizer, batches)

    def learn(
        self,
        name: str,
        module: nn.Module,
        optimizer: OptimizerSpec,
        batches: Iterable[tuple[Tensor, Tensor]],
        wrapped: Callable[[torch.optim.SGD], Any] = lambda sgd: sgd,
    ) -> None:
        """Train a server's network, or a copy of it, on batches of inputs and labels by SGD, with
        momentum kept between rounds. Logs the mean loss, and the accuracy in percent, before each
        step. wrapped: makes of the optimiser the one that takes the steps.
        FedReproError: the optimiser has more than lr, momentum and weight_decay."""
        lacks = f"the server's {name} has nothing to train, as the protocol's predictor is frozen"
        need(list(module.parameters()), f"{lacks}; use a protocol on images")
        plain = optimizer.model_dump()
        other = ", ".join(plain.keys() - {"lr", "momentum", "weight_decay"})
        need(not other, f"the server's {name} is trained by plain SGD, which has no {other}")
        sgd = torch.optim.SGD(module.parameters(), **plain)
        own = (f"{name}/momentum/{key}" for key, _ in self.modules[name].named_parameters())
        slots = dict(zip(own, module.parameters(), strict=True))
        for slot in slots.keys() & self.tensors.keys():
            sgd.state[slots[slot]]["momentum_buffer"] = self.tensors[slot]
        stepper, sums, count = wrapped(sgd), torch.zeros(2, dtype=self.dtype, device=self.device), 0
        with seeded_modules(self.seed, self.round, "dropout"):
            for x, y in batches:
                stepper.zero_grad(set_to_none=True)
                logits = module(x)
                loss = F.cross_entropy(logits, y)
                loss.backward()
                stepper.step()
                hits = (logits.detach().argmax(1) == y).sum()
                sums += torch.stack([loss.detach() * len(y), hits.to(loss)])
                count += len(y)
        for slot, parameter in slots.items():
            if "momentum_buffer" in sgd.state[parameter] and optimizer.momentum:
                self.tensors[slot] = sgd.state[parameter]["momentum_buffer"]
        total, right = sums.tolist()
        self.log[f"{name}_loss"] = total / max(count, 1)
        self.log[f"{name}_accuracy"] = 100 * right / max(count, 1)

    @torch.no_grad()
    def accuracy(self, name: str, inputs: Tensor, labels: Tensor, training: bool = False) -> float:
        """A server's network's accuracy in percent; the network does not change. In training mode
        BatchNorm reads all inputs as one batch."""
        parts = [inputs] if training else inputs.split(self.protocol.batch_size)
        logits = torch.cat([self.network(name, training)(p.to(self.device)) for p in parts])
        return 100 * float((logits.argmax(1) == labels.to(self.device)).double().mean())

    def publish(self, name: str, prefix: str, chosen: Callable[[TensorInfo], bool]) -> None:
        """Copy chosen parameters of a server's network, named with a prefix, into `model`."""
        for key, value in self.modules[name].named_parameters(prefix=prefix):
            if chosen(self.layout[key]):
                self.model[key] = value.detach().clone()

    def state(self) -> dict[str, Tensor]:
        """All tensors by flat names, for a checkpoint: copies, as a method may change its own in
        place."""
        must_be_tensors(self.tensors, "server.tensors")
        for name, module in self.modules.items():
            every = (leaf for part in module.modules() for leaf in tree_leaves(vars(part)))
            held = any(isinstance(leaf, torch.optim.Optimizer) for leaf in every)
            need(not held, f"the optimiser in {name} is lost on resume; use server.tensors")
        modules = {f"modules/{name}": module.state_dict() for name, module in self.modules.items()}
        whole = flat({"model": self.model, "tensors": self.tensors, **modules})
        return {name: value.clone() for name, value in whole.items()}

    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        self.model = under(saved, "model/")
        self.tensors = under(saved, "tensors/")
        for name, module in self.modules.items():
            module.load_state_dict(under(saved, f"modules/{name}/"))


def flat(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The values of several parts by flat names, ``part/name``."""
    return {f"{part}/{name}": v for part, named in parts.items() for name, v in named.items()}


def under(flat: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors with a prefix in their flat name, by the rest of the name."""
    return {key[len(prefix) :]: value for key, value in flat.items() if key.startswith(prefix)}
