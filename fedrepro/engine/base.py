"""Shared by all engines: jobs and their results, and passes through one network."""

import contextlib
import ctypes
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.optim.swa_utils import update_bn
from torch.utils._pytree import tree_leaves

from fedrepro.base.errors import Diverged, FedReproError, need
from fedrepro.base.protocol import Augmentation, OptimizerSpec, Protocol
from fedrepro.base.rng import Purpose, torch_stream
from fedrepro.data.federation import Samples
from fedrepro.data.transforms import augment, epoch_batches, normalise, slices
from fedrepro.methods.base import Batch, LocalModel, Method, Phase
from fedrepro.methods.server import OWN, Message
from fedrepro.models import FLModel, Output, architecture, layout, run_with

EVALUATION_BATCH = {"cpu": 128, "cuda": 4096}  # measured fastest on 2 cores; fills a GPU


@dataclass(frozen=True)
class Job:
    """Local training of one client in one round. state: every tensor of the network at the start
    (read, never written). optimizer: its state, if it is kept between rounds. stream: the purpose
    of the random stream that orders the batches. batch_size: None for the protocol's."""

    client: int
    round: int
    seed: int
    state: Mapping[str, Tensor]
    samples: Samples
    received: Message
    phases: Sequence[Phase]
    optimizer: Mapping[str, Tensor] = field(default_factory=dict)
    stream: Purpose = "batches"
    batch_size: int | None = None

    def apart(self, stream: Purpose, phases: Sequence[Phase], state: Mapping[str, Tensor]) -> "Job":
        """Other training of the client, from this state and without its kept optimiser."""
        return replace(self, stream=stream, phases=phases, state=state, optimizer={})

    def of_few(self, shots: tuple[int, int] | None) -> "Job":
        """The same training on this many images of each class, in batches of a size; None: on all
        in its own batches."""
        if shots is None:
            return self
        pair = isinstance(shots, tuple) and [n > 0 for n in shots if type(n) is int] == [True] * 2
        said = "None or two whole numbers, images of each class and a batch size"
        need(pair, f"adapts_on must return {said}, not {shots!r}; correct it")
        per_class, batch_size = shots
        labels = self.samples.labels
        place = F.one_hot(labels).cumsum(dim=0).gather(1, labels[:, None])[:, 0]  # in its class
        few = place <= per_class
        samples = Samples(self.samples.images[few], labels[few])
        return replace(self, samples=samples, batch_size=batch_size)


class Streams:
    """A job's random streams: batch order, augmentation, and the draws of the method's loss."""

    def __init__(self, job: Job) -> None:
        key = job.client, job.round
        self.order = torch_stream(job.seed, job.stream, *key)
        self.augmentation = torch_stream(job.seed, "augmentation", *key)
        self.draws = torch_stream(job.seed, "draws", *key)


@dataclass(frozen=True)
class Trained:
    """state and optimizer after training; terms: each loss term's mean over all samples seen."""

    state: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    terms: dict[str, float]


# (position of the job, its result), in any order, as they become ready. A caller that stops early
# closes the iterator, which ends the running jobs.
Results = Generator[tuple[int, Trained], None, None]
Loss = Callable[[LocalModel, Batch, Message], dict[str, Tensor]]  # a method's, such as client_loss


def diverged(method: Method, seed: int, round: int, why: str) -> Diverged:
    """The error of a run with numbers that are not finite: later rounds would be useless."""
    return Diverged(f"{method.name}, seed {seed}: {why}", seed, round)


def must_be_finite(method: Method, job: Job, terms: Mapping[str, float]) -> None:
    """Raise Diverged if a loss term is not finite."""
    broken = [f"{term} = {value}" for term, value in terms.items() if not math.isfinite(value)]
    if broken:
        why = f"the loss of client {job.client} in round {job.round} is not finite "
        why += f"({', '.join(broken)}): training diverged; lower the learning rate, or see what "
        raise diverged(method, job.seed, job.round, f"{why}the method's fields feed it")


@contextlib.contextmanager
def unchanged(method: Method, jobs: Sequence[Job]) -> Iterator[None]:
    """FedReproError: inside, a tensor that clients received was changed in place. The server and
    the other clients read it too; a client's own memory may change."""
    sent = [[v for kind, v in job.received.items() if kind not in OWN] for job in jobs]
    sent += [[job.samples.images, job.samples.labels] for job in jobs]
    before = [value._version for value in tree_leaves(sent)]
    yield
    same = before == [value._version for value in tree_leaves(sent)]
    need(same, f"{method.name} changes what a client received in place; change a copy of it")


def gradients(
    total: Tensor, params: Mapping[str, Tensor], again: bool = False
) -> dict[str, Tensor]:
    """Of the parameters on which a loss depends. again: its graph is needed afterwards."""
    if not params:
        return {}
    values = list(params.values())
    found = torch.autograd.grad(total, values, retain_graph=again, allow_unused=True)
    return {name: g for name, g in zip(params, found, strict=True) if g is not None}


class Engine(ABC):
    """One network object, loaded with a client's or the server's tensors in turn."""

    def __init__(self, module: FLModel, protocol: Protocol, device: torch.device) -> None:
        if device.type == "cpu":
            keep_freed_memory()
        # A GPU multiplies plain float32 fastest in torch's default layout (measured: an H200).
        plain = device.type != "cpu" and protocol.precision in ("float32", "float64")
        self.format = torch.contiguous_format if plain else module.memory_format
        self.module = module.to(device).to(memory_format=self.format)  # type: ignore[call-overload]
        self.protocol = protocol
        self.device = device
        self.dtype = next(module.parameters()).dtype
        self.layout = layout(module)
        self.drops = any(isinstance(one, _DropoutNd) for one in module.modules())
        # Only the architecture, to run it with other tensors than the module's own.
        self._others = {mode: architecture(module, mode).to("meta") for mode in (False, True)}
        self.evaluation_batch = EVALUATION_BATCH.get(device.type, 256)

    @abstractmethod
    def train(self, method: Method, jobs: Sequence[Job]) -> Results:
        """Train each job's network."""

    @torch.no_grad()
    def outputs(
        self,
        state: Mapping[str, Tensor],
        samples: Samples,
        training: bool = False,
        augmentation: Augmentation | None = None,
        generator: torch.Generator | None = None,
        of: str = "features",
    ) -> Tensor:
        """The features (n, d) or logits (n, K), on the run's device and of its type. of: their name
        in `Output`. Samples are augmented only if an augmentation and a generator are given. In
        training mode with a generator, batches have random images, because stored ones may be
        ordered by class."""
        self._load(state)
        self.module.train(training)
        size = self.protocol.batch_size if training else self.evaluation_batch
        shuffled = training and generator is not None
        if shuffled:
            order = torch.randperm(len(samples), generator=generator).to(self.device)
            samples = Samples(samples.images[order], samples.labels[order])
        inputs = self._inputs(samples, size, augmentation, generator)
        found = torch.cat([getattr(self._output(x), of) for x, _ in inputs]).to(self.dtype)
        return torch.empty_like(found).index_copy_(0, order, found) if shuffled else found

    @torch.no_grad()
    def evaluate(
        self, state: Mapping[str, Tensor], samples: Samples
    ) -> tuple[float, float, Tensor]:
        """Accuracy in percent, mean cross-entropy and predicted classes (m,) of un-augmented
        samples; the classes on the host, uint8 if there are at most 256."""
        self._load(state)
        self.module.eval()
        loss = torch.zeros((), device=self.device)
        found = []
        for x, labels in self._inputs(samples, self.evaluation_batch):
            out = self._output(x)
            found.append(self.module.scores(out).argmax(1))
            loss = loss + F.cross_entropy(out.logits.float(), labels, reduction="sum")
        predicted = torch.cat(found)
        accuracy = 100 * int((predicted == samples.labels).sum()) / len(samples)
        small = predicted.to(torch.uint8 if out.logits.shape[1] <= 256 else torch.int16)
        return accuracy, float(loss.double()) / len(samples), small.cpu()

    @torch.no_grad()
    def bn_statistics(self, state: Mapping[str, Tensor], samples: Samples) -> dict[str, Tensor]:
        """BatchNorm running statistics re-estimated as plain averages over one pass."""
        self._load(state)
        with self._multiplying(), self._autocast():
            update_bn(self._inputs(samples, self.protocol.batch_size), self.module)
        after = self.snapshot()
        return {n: v for n, v in after.items() if self.layout[n].is_bn and self.layout[n].is_buffer}

    def _inputs(
        self,
        samples: Samples,
        size: int,
        augmentation: Augmentation | None = None,
        generator: torch.Generator | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """What the network reads and the labels, batch after batch."""
        for part in slices(len(samples), size):
            images = samples.images[part]
            if augmentation is not None and generator is not None:
                images = augment(images, augmentation, generator)
            x = normalise(images, self.protocol.data.normalise, self.dtype)
            yield x.contiguous(memory_format=self.format), samples.labels[part]

    def _output(self, x: Tensor) -> Output:
        with self._multiplying(), self._autocast():
            return self.module(x)  # type: ignore[no-any-return]

    def _run_other(
        self, tensors: Mapping[str, Tensor], x: Tensor, training: bool = False
    ) -> Output:
        return run_with(self._others[training], tensors, x)  # type: ignore[no-any-return]

    def _loss(
        self, loss: Loss, model: LocalModel, batch: Batch, received: Message, late: Sequence[str]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The sum of a loss's terms without the late ones, and all terms. FedReproError: the loss
        does not return scalars by name."""
        with self._autocast():
            terms: Any = loss(model, batch, received)  # a user's method may return anything
            values = list(terms.values()) if isinstance(terms, Mapping) else []
            named = values and all(isinstance(name, str) for name in terms)
            if not named or not all(isinstance(v, Tensor) and v.numel() == 1 for v in values):
                name = getattr(loss, "__qualname__", "the loss")
                wanted = 'scalar tensors by name, such as {"ce": loss}'
                raise FedReproError(f"{name} must return {wanted}")
            said = f"unclipped may name some of the terms {', '.join(terms)}, not all and no others"
            need({*late} < {*terms}, f"{said}; correct it")
            return torch.stack([v for n, v in terms.items() if n not in late]).sum(), terms

    # The batches of a job.

    def _epoch(self, method: Method, phase: Phase, job: Job, own: Streams) -> list[list[Tensor]]:
        """The indices of each step of a shuffled epoch: of one batch or, with lookahead, of two."""
        size, width = job.batch_size or self.protocol.batch_size, 1 + (phase.lookahead is not None)
        order = epoch_batches(len(job.samples), size, own.order, phase.steps)
        few = f"{method.name} reads two batches in a step; {len(job.samples)} images are one"
        mend = "give clients more images, lower batch_size, or leave the method out"
        need(len(order) >= width, f"{few}: {mend}")
        return [order[i : i + width] for i in range(0, len(order) - width + 1, width)]

    def _batch(self, method: Method, job: Job, streams: Streams, index: Tensor) -> Batch:
        draws = method.draw(len(index), streams.draws)
        if draws is not None:
            right = isinstance(draws, Tensor) and draws.shape[:1] == (len(index),)
            need(right, f"{method.name}.draw must return None or a tensor, a row for each image")
            draws = draws.to(self.device, self.dtype, non_blocking=True)
        index = index.to(self.device, non_blocking=True)
        images, data = job.samples.images[index], self.protocol.data
        x = normalise(augment(images, data, streams.augmentation), data.normalise, self.dtype)
        return Batch(x.contiguous(memory_format=self.format), job.samples.labels[index], draws)

    # Tensors in and out of the one network object.

    def _load(self, state: Mapping[str, Tensor]) -> None:
        own = self.module.state_dict()
        for name, value in state.items():
            if own[name].shape != value.shape:
                shapes = tuple(value.shape), tuple(own[name].shape)
                raise FedReproError("{} has shape {}, not the network's {}".format(name, *shapes))
            own[name].copy_(value)

    def snapshot(self) -> dict[str, Tensor]:
        """The network's tensors by name, without batch counters. Contiguous for any format of the
        network, as in a checkpoint: a norm must be summed in the same order after a resume."""
        return {
            name: value.detach().clone(memory_format=torch.contiguous_format)
            for name, value in self.module.state_dict().items()
            if not self.layout[name].is_counter
        }

    # The protocol's precision.

    def _autocast(self) -> torch.autocast:
        """Autocast without torch's cache of cast weights, which is shared between threads."""
        low = self.protocol.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=low, cache_enabled=False)

    @contextlib.contextmanager
    def _multiplying(self) -> Iterator[None]:
        """Inside, a GPU multiplies float32 in TF32 if, and only if, the protocol says so."""
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


@cache
def keep_freed_memory() -> None:
    """Let this process keep freed memory for the next step.
    By default, glibc returns each large tensor to the system, which fills it with zeros before the
    next step gets it: a fifth of FedAvg's round of a digit CNN. The price: a process holds its peak
    memory until it ends. Nothing is done without glibc, or if the environment sets its malloc."""
    own = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
    if any(name in os.environ for name in own):
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):  # no glibc; Windows
        mallopt = ctypes.CDLL(None).mallopt
        mmap_threshold, trim_threshold = -3, -1  # from malloc.h
        if any(mallopt(mmap_threshold, size) for size in (1 << 30, 1 << 25)):  # old glibc: second
            mallopt(trim_threshold, -1)


class Updates:
    """The optimisers of one phase of clients that are trained together. moving: each client's
    trained parameters; memory: its optimiser state by stored name, replaced by `keep`."""

    def __init__(
        self,
        phase: Phase,
        default: OptimizerSpec,
        moving: Sequence[Mapping[str, nn.Parameter]],
        memory: Sequence[dict[str, Tensor]],
        round: int,
    ) -> None:
        self._moving, self._memory = moving, memory
        apart = {name: spec for name, spec in phase.apart if name in moving[0]}
        rest = [name for name in moving[0] if name not in apart]
        groups = [(phase.optimizer or default, rest)] if rest else []
        groups += [(spec, [name]) for name, spec in apart.items()]
        self._groups = [(spec, names, self._built(spec, names, round)) for spec, names in groups]

    def _built(self, spec: OptimizerSpec, names: list[str], round: int) -> torch.optim.Optimizer:
        """An optimiser of these parameters of all clients, with the state of earlier rounds."""
        values = [own[name] for own in self._moving for name in names]
        rate, decay = spec.rate(round), spec.weight_decay
        optimizer: torch.optim.Optimizer
        if spec.kind == "adamw":
            optimizer = torch.optim.AdamW(values, lr=rate, weight_decay=decay, fused=True)
        else:
            # Fused steps need momentum for all or for none; clients may start in any round.
            fused, momentum = len(self._moving) == 1, spec.momentum
            optimizer = torch.optim.SGD(values, rate, momentum, weight_decay=decay, fused=fused)
        for value, key, slot, memory in self._states(spec, names):
            if slot == "momentum_buffer" and key not in memory:  # one may get its gradient later
                optimizer.state[value][slot] = torch.zeros_like(value, requires_grad=False)
            if key in memory:
                # In the parameter's own memory format, as fused steps require.
                like = value if slot != "step" else memory[key]
                place = torch.empty_like(like, device=value.device, requires_grad=False)
                optimizer.state[value][slot] = place.copy_(memory[key])
        return optimizer

    def _states(
        self, spec: OptimizerSpec, names: list[str]
    ) -> Iterator[tuple[nn.Parameter, str, str, dict[str, Tensor]]]:
        """Each parameter, stored and torch's name of its states, and its client's memory."""
        for own, memory in zip(self._moving, self._memory, strict=True):
            for name in names:
                if spec.kind == "adamw":
                    for slot in ("exp_avg", "exp_avg_sq", "step"):
                        yield own[name], f"{slot}/{name}", slot, memory
                elif spec.momentum:
                    yield own[name], name, "momentum_buffer", memory

    def step(self, late: Sequence[Mapping[str, Tensor]], clients: slice = slice(None)) -> None:
        """Take the step of some clients, whose gradients are in their parameters. late: by client,
        gradients to add after clipping. Parameters without a gradient do not change."""
        for own, added in zip(self._moving[clients], late, strict=True):
            for spec, names, _ in self._groups:
                if spec.clip is not None:
                    nn.utils.clip_grad_norm_([own[name] for name in names], spec.clip)
            for name, gradient in added.items():
                had = own[name].grad
                own[name].grad = gradient if had is None else had.add_(gradient)
        for _, _, optimizer in self._groups:
            optimizer.step()
            optimizer.zero_grad()

    def keep(self) -> None:
        for spec, names, optimizer in self._groups:
            for value, key, slot, memory in self._states(spec, names):
                if slot in optimizer.state[value]:
                    memory[key] = optimizer.state[value][slot].contiguous()
