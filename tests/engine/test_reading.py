"""Which clients of a stack step together, and what they read."""

import pytest
import torch

from fedrepro import methods
from fedrepro.base.rng import torch_stream
from fedrepro.data.batches import epoch_batches
from fedrepro.data.transforms import prepare_batch
from fedrepro.engine.reading import Reader, plan, stacking_order
from fedrepro.federated.rounds import Training
from tests import toys


def training(seed=0, **changes):
    protocol = toys.protocol(batch_size=8, **changes)
    return Training(methods.create("FedAvg"), protocol, toys.federation((21, 13)), seed)


@pytest.mark.parametrize("pairs", [False, True])
def test_a_plan_reads_everything_once_in_each_clients_own_order(pairs):
    sizes = sorted((33, 21, 17, 16, 13, 13, 9, 8, 5), key=lambda n: stacking_order(n, 8))
    epoch = []
    for n in sizes:
        batches = epoch_batches(n, 8, torch.Generator().manual_seed(n))
        pair = list(zip(batches[::2], batches[1::2], strict=False))
        epoch.append(pair if pairs else [(batch,) for batch in batches])
    read = [[] for _ in sizes]
    for start, steps in plan(epoch, 8):
        assert len({tuple(len(b) for b in step) for step in steps}) == 1
        for client, step in enumerate(steps, start):
            read[client].append(step)
    assert all(a is b for x, y in zip(read, epoch, strict=True) for a, b in zip(x, y, strict=True))


def test_full_batches_are_stepped_by_all_clients_that_have_one():
    sizes = sorted((33, 16, 20, 5, 21), key=lambda n: stacking_order(n, 8))
    epoch = [[(b,) for b in epoch_batches(n, 8, torch.Generator())] for n in sizes]
    steps = [(len(members[0][0]), len(members)) for _, members in plan(epoch, 8)]
    full = [count for size, count in steps if size == 8]
    assert full == [4, 4, 1]  # 33 is cut into 8, 8, 8, 9; the 5 of the smallest is a rest
    assert sorted(s for s in steps if s[0] != 8) == [(4, 1), (5, 2), (9, 1)]


@pytest.mark.parametrize("flip, rotate", [(False, 0.0), (True, 0.0), (False, 9.0), (True, 30.0)])
def test_a_reader_prepares_what_the_reference_would(flip, rotate):
    run = training(data__flip=flip, data__rotate=rotate, data__normalise="imagenet")
    jobs = [run._job(c, {}, 1) for c in run.clients[:2]]  # 21 and 13: three batches and two
    reader = Reader(run.method, jobs, run.protocol.data, 8, run.device, torch.float64)
    steps = [*reader.epoch(pairs=False), *reader.epoch(pairs=False)]
    for client, job in enumerate(jobs):
        order = torch_stream(0, "batches", job.client, 1)
        augment = torch_stream(0, "augmentation", job.client, 1)
        expected = [
            (
                prepare_batch(job.samples.images[i], run.protocol.data, augment, torch.float64),
                job.samples.labels[i],
            )
            for _ in range(2)
            for i in epoch_batches(len(job.samples), 8, order)
        ]
        got = [
            tuple(value[client - s.start] for value in s.batches[0])
            for s in steps
            if s.start <= client < s.stop
        ]
        assert len(got) == len(expected)
        for (x, y), (x_expected, y_expected) in zip(got, expected, strict=True):
            assert torch.equal(x, x_expected) and torch.equal(y, y_expected)
