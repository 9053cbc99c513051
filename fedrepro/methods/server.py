"""The server of a federated run: the shared network, and whatever else a method keeps there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrepro.base.protocol import OptimizerSpec, Protocol
from fedrepro.base.rng import torch_stream
from fedrepro.data.batches import epoch_batches
from fedrepro.methods.messages import Network
from fedrepro.models import FLModel, TensorInfo, build_model


class Server:
    """State that outlives a round at the server.

    model: every tensor of the network by name (those that never travel keep their first value).
    modules: networks a method owns and trains here. tensors: anything else it keeps.
    log: what the method wants in the run's curve this round, by name.
    """

    def __init__(
        self,
        model: Mapping[str, Tensor],
        layout: Mapping[str, TensorInfo],
        protocol: Protocol,
        seed: int,
        clients: int,
        feature_size: int,
        classes: int,
        device: torch.device,
    ) -> None:
        self.model = dict(model)
        self.layout = layout
        self.protocol = protocol
        self.seed = seed
        self.clients = clients
        self.feature_size = feature_size
        self.classes = classes
        self.device = device
        self.round = 0
        self.modules: dict[str, nn.Module] = {}
        self.tensors: dict[str, Tensor] = {}
        self.log: dict[str, float] = {}
        self._networks: dict[tuple[str, bool], Network] = {}

    @property
    def dtype(self) -> torch.dtype:
        """The run's floating-point type."""
        return next(iter(self.model.values())).dtype

    def add_module(self, name: str, module: nn.Module) -> None:
        """Own a network; it moves to the run's device and type."""
        self.modules[name] = module.to(self.device, self.dtype)

    def new_network(self, size: int | None = None) -> FLModel:
        """Another network of the protocol's kind, for images or embeddings of that size."""
        kind, args = self.protocol.model, self.protocol.model_args
        return build_model(kind, self.classes, size or self.protocol.data.size, **args)

    def network(self, name: str, training: bool = False) -> Network:
        """An owned network as it travels; one and the same object until it is trained again."""
        key = name, training
        if key not in self._networks:
            self._networks[key] = Network(self.modules[name], training)
        return self._networks[key]

    def fit(
        self,
        name: str,
        inputs: Tensor,
        labels: Tensor,
        *,
        epochs: int,
        optimizer: OptimizerSpec,
        batch_size: int | None = None,
    ) -> None:
        """Train an owned network as a classifier of inputs (n, d) into labels (n,).

        Momentum is kept from round to round. Logs the mean loss and the accuracy in percent, both
        of the batches before their step, as `<name>_loss` and `<name>_accuracy`.
        """
        module = self.modules[name].train()
        self._networks.clear()
        inputs, labels = inputs.to(self.device), labels.to(self.device)
        sgd = torch.optim.SGD(module.parameters(), **optimizer.model_dump())
        for key, parameter in module.named_parameters():
            momentum = self.tensors.get(f"{name}/momentum/{key}")
            if momentum is not None:
                sgd.state[parameter]["momentum_buffer"] = momentum
        generator = torch_stream(self.seed, "server", round=self.round)
        loss_sum = hits = torch.zeros((), device=self.device)
        size = batch_size or self.protocol.batch_size
        for _ in range(epochs):
            for index in epoch_batches(len(labels), size, generator):
                index = index.to(self.device)
                logits = module(inputs[index])
                loss = F.cross_entropy(logits, labels[index])
                sgd.zero_grad(set_to_none=True)
                loss.backward()
                sgd.step()
                loss_sum = loss_sum + loss.detach() * len(index)
                hits = hits + (logits.detach().argmax(1) == labels[index]).sum()
        for key, parameter in module.named_parameters():
            if "momentum_buffer" in sgd.state[parameter] and optimizer.momentum:
                self.tensors[f"{name}/momentum/{key}"] = sgd.state[parameter]["momentum_buffer"]
        seen = epochs * len(labels)
        self.log[f"{name}_loss"] = float(loss_sum) / seen
        self.log[f"{name}_accuracy"] = 100 * float(hits) / seen

    @torch.no_grad()
    def accuracy(self, name: str, inputs: Tensor, labels: Tensor, training: bool = False) -> float:
        """An owned network's accuracy in percent, as one that travels in that mode: nothing of the
        server's own moves. In training mode BatchNorm reads all inputs as one batch."""
        parts = [inputs] if training else inputs.split(self.protocol.batch_size)
        logits = torch.cat([self.network(name, training)(p.to(self.device)) for p in parts])
        return 100 * float((logits.argmax(1) == labels.to(self.device)).double().mean())

    def replace(self, name: str, module: nn.Module) -> None:
        """Give an owned network the values of another of its architecture."""
        self.modules[name].load_state_dict(module.state_dict())
        self._networks.clear()

    def publish(self, name: str, prefix: str, chosen: Callable[[TensorInfo], bool]) -> None:
        """Put those chosen of an owned network's parameters, known by a prefix, into `model`."""
        for key, value in self.modules[name].named_parameters(prefix=prefix):
            if chosen(self.layout[key]):
                self.model[key] = value.detach().clone()

    # What a checkpoint keeps.

    def state(self) -> dict[str, Tensor]:
        """All tensors under flat names, for a checkpoint. What `fit` changes in place is copied."""
        flat = {f"model/{k}": v for k, v in self.model.items()}
        flat |= {f"tensors/{k}": v.clone() for k, v in self.tensors.items()}
        for name, module in self.modules.items():
            flat |= {f"modules/{name}/{k}": v.clone() for k, v in module.state_dict().items()}
        return flat

    def load_state(self, flat: Mapping[str, Tensor]) -> None:
        """Put a checkpoint's tensors back."""
        self.model = under(flat, "model/")
        self.tensors = under(flat, "tensors/")
        self._networks.clear()
        for name, module in self.modules.items():
            module.load_state_dict(under(flat, f"modules/{name}/"))


def under(flat: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose flat name starts with a prefix, by the rest of the name."""
    return {key[len(prefix) :]: value for key, value in flat.items() if key.startswith(prefix)}


def fit_until_flat(
    module: nn.Module,
    batches: Sequence[tuple[Tensor, Tensor]],
    spec: OptimizerSpec,
    window: int,
    threshold: float,
) -> list[float]:
    """Train a network by AdamW on the same batches until the losses of the last `window` of them
    deviate by less than the threshold, or the schedule ends; the batches' losses."""
    parameters = list(module.parameters())
    decay, end = spec.weight_decay, spec.cosine or 0
    optimizer = torch.optim.AdamW(parameters, lr=spec.lr, weight_decay=decay, fused=True)
    losses: list[float] = []
    for epoch in range(1, end + 1):
        optimizer.param_groups[0]["lr"] = spec.rate(epoch)
        seen = []
        for x, y in batches:
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(module(x).logits, y)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            seen.append(loss.detach())
        losses += torch.stack(seen).tolist()
        if len(losses) > window and np.std(losses[-window:]) < threshold:
            break
    return losses
