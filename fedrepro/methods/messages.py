"""Messages between server and clients, and their size in bytes by kind of payload.

A message maps a kind ("model", "representations", "discriminator", ...) to a payload: a tensor, a
mapping of named tensors, or a network. Sizes are those of the tensors. Ids, names and framing,
which every method needs, are not counted. Values that a client has itself are not counted either:
its own ``memory``, and a ``schedule``, values that follow from the round's number.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import register_pytree_node, tree_leaves

from fedrepro.models import architecture, run_with


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


OWN = ("memory", "schedule")  # kinds that a loss receives but that are not sent

Payload = Tensor | Mapping[str, Tensor] | Network
Message = dict[str, Payload]  #: Payloads by kind.


def payload_bytes(payload: Payload) -> int:
    """Bytes of the tensors of one payload."""
    return sum(value.nbytes for value in tree_leaves(payload))


def count_bytes(messages: Iterable[Message]) -> dict[str, int]:
    """Bytes by kind, summed over messages.

    If a message has ``present``, only the rows it marks as used are counted: the other rows only
    keep the table's shape the same in all rounds.
    """
    total: Counter[str] = Counter()
    for message in messages:
        present = message.get("present")
        for kind, payload in message.items():
            if kind in OWN:
                continue
            if isinstance(payload, Tensor) and payload.ndim == 2 and isinstance(present, Tensor):
                payload = payload[present] if len(payload) == len(present) else payload
            total[kind] += payload_bytes(payload)
    return total


def tensors_of(message: Message, kind: str) -> Mapping[str, Tensor]:
    """The named tensors of one payload; raises KeyError if the kind was not sent."""
    payload = message[kind]
    if not isinstance(payload, Mapping):
        raise TypeError(f"payload {kind!r} has no named tensors")
    return payload


def network_of(message: Message, kind: str) -> Network:
    """The network of one payload; raises KeyError if the kind was not sent."""
    payload = message[kind]
    if not isinstance(payload, Network):
        raise TypeError(f"payload {kind!r} is not a network")
    return payload


def tensor_of(message: Message, kind: str) -> Tensor:
    """The single tensor of one payload; raises KeyError if the kind was not sent."""
    payload = message[kind]
    if not isinstance(payload, Tensor):
        raise TypeError(f"payload {kind!r} is not a tensor")
    return payload
