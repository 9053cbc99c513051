"""pfl-research: FederatedAveraging on its SimulatedBackend, as its CIFAR10 benchmark has it.

    python pfl_side.py WORK                                           one process
    python -m torch.distributed.run --nproc_per_node N pfl_side.py WORK    users shared out over N

Users are `pfl.data.dataset.Dataset`s in memory, which its guide calls the fastest; nothing is
evaluated after the first iteration; metrics go nowhere.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from shared import Clock, Probe, Work, answer, network, user_data
from torch import Tensor, nn

NARROW = {"bf16": torch.bfloat16}


class Ticks(TrainingProcessCallback):
    """Notes when each central iteration ends."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        self.clock.tick()
        return False, Metrics()


def prepared(work: Work) -> Any:
    """The network with the two functions pfl asks for; `steps` counts the training ones."""
    net: Any = network(work)
    net.steps = 0

    def loss(self: Any, x: Tensor, y: Tensor) -> Tensor:
        self.steps += 1
        return F.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self: Any, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        total = F.cross_entropy(self(x), y, reduction="sum")
        return {"loss": Weighted(total.item(), len(x))}

    net.loss, net.metrics = types.MethodType(loss, net), types.MethodType(metrics, net)
    return net


def federated(work: Work) -> FederatedDataset:
    users = dict(enumerate(user_data(work)))
    return FederatedDataset.from_slices(users, get_user_sampler("random", list(users)))


def whole(steps: int) -> int:
    """Steps of all processes."""
    context = pytorch_ops.distributed
    if context is None or context.world_size == 1:
        return steps
    total = torch.tensor(steps)
    torch.distributed.all_reduce(total)
    return int(total)


def main() -> None:
    work = Work.of(sys.argv[1])
    torch.set_num_threads(max(1, work.threads // work.processes))
    np.random.seed(work.seed)
    net: nn.Module = prepared(work)
    clock, probe = Clock(work.device), Probe(work, net)
    users = federated(work)
    central = torch.optim.SGD(net.parameters(), 1.0)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=work.rounds + 1,
            evaluation_frequency=work.rounds + 1,  # iteration 0, which is not timed
            train_cohort_size=work.cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(users, users, [WeightByDatapoints()]),
        PyTorchModel(net, torch.optim.SGD, central, amp_dtype=NARROW.get(work.precision)),
        NNTrainHyperParams(
            local_learning_rate=work.lr, local_num_epochs=1, local_batch_size=work.batch
        ),
        callbacks=[Ticks(clock)],
        send_metrics_to_platform=False,
    )
    steps = whole(net.steps)
    context = pytorch_ops.distributed
    if context is None or context.global_rank == 0:
        answer(clock, steps, probe.found(net), ["pfl"])
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # its threads may else abort a process that ends


if __name__ == "__main__":
    main()
