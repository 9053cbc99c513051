"""No framework: federated averaging as published code of the field usually writes it.

    python field_side.py WORK

A DataLoader a user whose images become PIL pictures and pass torchvision transforms one by one
(../field_loop.py), a deep copy of the network for each user of the round, ``.item()`` on every
loss, state dicts averaged key by key.
"""

from __future__ import annotations

import copy
import sys

import numpy as np
import torch
import torch.nn.functional as F
from field_loop import PictureSet
from shared import Clock, Probe, Work, answer, network, stored
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fedrepro.data.federation import Samples

Loader = DataLoader[tuple[Tensor, int]]


def trained(net: nn.Module, loader: Loader, work: Work) -> tuple[nn.Module, int, float]:
    """A copy of the network after one epoch; its steps and mean loss."""
    local = copy.deepcopy(net).train()
    optimizer = torch.optim.SGD(local.parameters(), work.lr)
    losses = []
    for x, y in loader:
        x, y = x.to(work.device), y.to(work.device)
        optimizer.zero_grad()
        loss = F.cross_entropy(local(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return local, len(losses), sum(losses) / len(losses)


def averaged(locals_: list[nn.Module], counts: list[int]) -> dict[str, Tensor]:
    """Their tensors' means, weighted by images."""
    states = [local.state_dict() for local in locals_]
    average = copy.deepcopy(states[0])
    for key in average:
        average[key] = torch.zeros_like(average[key])
        for state, count in zip(states, counts, strict=True):
            average[key] += state[key] * (count / sum(counts))
    return average


def main() -> None:
    work = Work.of(sys.argv[1])
    torch.set_num_threads(work.threads)
    net = network(work)
    clock, probe = Clock(work.device), Probe(work, net)
    images, labels = stored(work)
    sets = [PictureSet(Samples(x, y), work.size) for x, y in zip(images, labels, strict=True)]
    loaders: list[Loader] = [DataLoader(data, work.batch, shuffle=True) for data in sets]
    drawn = np.random.default_rng(work.seed)
    steps = 0
    for _ in range(work.rounds + 1):
        chosen = drawn.choice(work.users, work.cohort, replace=False)
        results = [trained(net, loaders[user], work) for user in chosen]
        net.load_state_dict(averaged([r[0] for r in results], [len(sets[u]) for u in chosen]))
        steps += sum(result[1] for result in results)
        clock.tick()
    answer(clock, steps, probe.found(net), ["torchvision"])


if __name__ == "__main__":
    main()
