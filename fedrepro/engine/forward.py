"""What every engine does alike: passes through one network without training it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedrepro.base.protocol import Augmentation, Protocol
from fedrepro.base.threads import lanes, side_by_side
from fedrepro.data.batches import slices
from fedrepro.data.federation import Samples
from fedrepro.data.transforms import augment, draw, normalise
from fedrepro.engine.memory import keep_freed_memory
from fedrepro.engine.received import callable_under_vmap
from fedrepro.models import FLModel, Output, TensorInfo, layout

EVALUATION_BATCH = {"cpu": 128, "cuda": 4096}  # measured fastest on 2 cores; fills a GPU


RunOther = Callable[[Mapping[str, Tensor], Tensor, bool], Output]


class BoundModel:
    """The network of one client as its loss sees it."""

    def __init__(
        self,
        network: Callable[[Tensor], Output],
        params: Mapping[str, Tensor],
        run: RunOther | None = None,
    ) -> None:
        self._network = network
        self.params = params
        self._run = run

    def __call__(self, x: Tensor) -> Output:
        return self._network(x)

    def run(self, tensors: Mapping[str, Tensor], x: Tensor, training: bool = False) -> Output:
        assert self._run is not None
        return self._run(tensors, x, training)


class ForwardEngine:
    """One network object, loaded with a client's or the server's tensors in turn."""

    def __init__(self, module: FLModel, protocol: Protocol, device: torch.device) -> None:
        if device.type == "cpu":
            keep_freed_memory()
        self.format = module.memory_format
        self.module = module.to(device).to(memory_format=self.format)  # type: ignore[call-overload]
        self.protocol = protocol
        self.device = device
        self.dtype = next(module.parameters()).dtype
        self.layout: dict[str, TensorInfo] = layout(module)
        # The architecture alone, for running other tensors than the module's own.
        self._others = {mode: _skeleton(self.module, mode) for mode in (False, True)}
        self.evaluation_batch = EVALUATION_BATCH.get(device.type, 256)

    @torch.no_grad()
    def features(
        self,
        state: Mapping[str, Tensor],
        samples: Samples,
        training: bool = False,
        augmentation: Augmentation | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Features (n, d) on the run's device, without gradients, of un-augmented samples unless
        an augmentation and a generator to draw it from are given. In training mode with a
        generator, batches are of random images: stored ones may be in the order of their class.
        They come in the run's type, whatever its products are computed in."""
        self._load(state)
        self.module.train(training)
        if not training or generator is None:
            size = self.protocol.batch_size if training else self.evaluation_batch
            parts = self._outputs(samples, size, augmentation, generator)
            return torch.cat([out.features for out, _ in parts]).to(self.dtype)
        order = torch.randperm(len(samples), generator=generator).to(self.device)
        shuffled = Samples(samples.images[order], samples.labels[order])
        parts = self._outputs(shuffled, self.protocol.batch_size, augmentation, generator)
        found = torch.cat([out.features for out, _ in parts]).to(self.dtype)
        return torch.empty_like(found).index_copy_(0, order, found)

    @torch.no_grad()
    def evaluate(
        self, state: Mapping[str, Tensor], samples: Samples
    ) -> tuple[float, float, Tensor]:
        """See `base.Engine`."""
        self._load(state)
        self.module.eval()
        loss = torch.zeros((), device=self.device)
        found, classes = [], 0
        for out, labels in self._outputs(samples, self.evaluation_batch):
            found.append(self.module.scores(out).argmax(1))
            loss = loss + F.cross_entropy(out.logits.float(), labels, reduction="sum")
            classes = out.logits.shape[1]
        predicted = torch.cat(found)
        accuracy = 100 * int((predicted == samples.labels).sum()) / len(samples)
        small = predicted.to(torch.uint8 if classes <= 256 else torch.int16)
        return accuracy, float(loss.double()) / len(samples), small.cpu()

    @torch.no_grad()
    def bn_statistics(self, state: Mapping[str, Tensor], samples: Samples) -> dict[str, Tensor]:
        """BatchNorm running statistics re-estimated as plain averages over one pass."""
        self._load(state)
        norms = [m for m in self.module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        usual = [norm.momentum for norm in norms]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # torch's word for a plain average over batches
        self.module.train()
        for _ in self._outputs(samples, self.protocol.batch_size):
            pass
        for norm, momentum in zip(norms, usual, strict=True):
            norm.momentum = momentum
        after = self._snapshot()
        statistics = (n for n, i in self.layout.items() if i.is_bn and i.is_buffer)
        return {n: after[n] for n in statistics if n in after}

    def _outputs(
        self,
        samples: Samples,
        size: int,
        augmentation: Augmentation | None = None,
        generator: torch.Generator | None = None,
    ) -> Iterator[tuple[Output, Tensor]]:
        def one(_: object, part: slice) -> tuple[Output, Tensor]:
            images = samples.images[part]
            if augmentation is not None and generator is not None:
                images = augment(images, draw(len(images), augmentation, generator))
            x = normalise(images, self.protocol.data.normalise, self.dtype)
            x = x.contiguous(memory_format=self.format)
            with torch.no_grad(), self._multiplying(), self._autocast():
                return self.module(x), samples.labels[part]

        parts = slices(len(samples), size)
        # One after another where they move statistics or draw, and on a GPU.
        alone = self.module.training or generator is not None or self.device.type != "cpu"
        count = 1 if alone else lanes(len(parts), self._bytes())
        if count == 1:
            yield from (one(None, part) for part in parts)
        else:
            found = side_by_side(one, parts, [None] * count, lambda: None)
            yield from (out for _, out in found)

    def _bytes(self) -> int:
        """Of the network's tensors."""
        return sum(value.nbytes for value in self.module.state_dict().values())

    def _run_other(self, tensors: Mapping[str, Tensor], x: Tensor, training: bool) -> Output:
        module = self._others[training]
        missing = module.state_dict().keys() - tensors.keys()
        if missing:
            raise KeyError(f"run needs a whole network; {sorted(missing)[0]} is missing")
        used = {n: v for n, v in tensors.items() if n in module.state_dict()}
        return cast(Output, functional_call(module, used, (x,)))

    # Tensors in and out of the one network object.

    def _load(self, state: Mapping[str, Tensor]) -> None:
        own = self.module.state_dict()
        for name, value in state.items():
            own[name].copy_(value)

    def _snapshot(self) -> dict[str, Tensor]:
        # Contiguous whatever the network's own format: a checkpoint brings tensors back so, and
        # the order in which a norm is summed must not depend on having been resumed.
        return {
            name: value.detach().clone(memory_format=torch.contiguous_format)
            for name, value in self.module.state_dict().items()
            if not self.layout[name].is_counter
        }

    # The protocol's precision.

    def _autocast(self) -> AbstractContextManager[object]:
        """Narrow weights are not kept for a second pass: torch keeps those of all threads
        together."""
        if self.protocol.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False)
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def _multiplying(self) -> Iterator[None]:
        """Inside, a GPU multiplies float32 in TF32 where the protocol says so, and only there."""
        if self.device.type != "cuda":
            yield
            return
        products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
        before = products.allow_tf32, convolutions.allow_tf32
        products.allow_tf32 = convolutions.allow_tf32 = self.protocol.precision == "tf32"
        try:
            yield
        finally:
            products.allow_tf32, convolutions.allow_tf32 = before


def _skeleton(module: FLModel, training: bool) -> FLModel:
    """A network without values."""
    copied = callable_under_vmap(copy.deepcopy(module).train(training))
    return copied.requires_grad_(False).to("meta")
