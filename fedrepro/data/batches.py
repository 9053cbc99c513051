"""The order in which a client or the server reads its samples."""

from __future__ import annotations

import torch
from torch import Tensor


def epoch_batches(
    n: int, batch_size: int, generator: torch.Generator, steps: int | None = None
) -> list[Tensor]:
    """Index batches of one shuffled epoch: int64 (batch_size,), the last one what is left.

    A last batch of one sample joins the one before it: BatchNorm has no statistics for it. steps:
    so many whole batches instead, out of as many shuffles as they need; a batch is all samples
    where they are fewer.
    """
    if steps is None:
        order = torch.randperm(n, generator=generator)
        return [order[part] for part in slices(n, batch_size)]
    size = min(n, batch_size)
    shuffles = [torch.randperm(n, generator=generator) for _ in range(-(-steps * size // n))]
    return list(torch.cat(shuffles)[: steps * size].split(size))


def slices(n: int, size: int) -> list[slice]:
    """0..n cut into runs of `size`; a last run of one joins the one before it (see above)."""
    starts = list(range(0, n, size))
    if len(starts) > 1 and n - starts[-1] == 1:
        starts.pop()
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], n], strict=True)]
