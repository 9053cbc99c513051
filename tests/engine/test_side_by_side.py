"""Clients trained at once on a CPU give the plain loop's bits, and end when they are told to."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from fedrepro.base.progress import Silent
from fedrepro.base.threads import cores, lanes, one_thread, recorded, side_by_side
from fedrepro.engine import forward
from fedrepro.engine.loop import LoopEngine
from fedrepro.methods.base import hyper
from fedrepro.methods.fedavg import FedAvg
from tests import toys
from tests.engine.test_fused import assert_same_run, start


def plain(**settings):
    return start(engine="reference", **settings)  # tests have one thread


def several(**settings):
    """Three clients at once, on that thread's core."""
    run = start(engine="reference", **settings)
    run.engine.lanes = 3
    return run


# The same bits.


@pytest.mark.parametrize("name", toys.ON_IMAGES)
def test_every_method_has_the_plain_loops_bits(name):
    both = several(name=name)
    assert_same_run(plain(name=name), both, tolerance=0)
    assert len(both.engine._seats) == 3  # it did train several at once


@pytest.mark.parametrize("name", ["ADCOL", "MOON"])
def test_narrow_products_have_the_plain_loops_bits(name):
    settings = {"name": name, "precision": "bf16", "rounds": 2}
    assert_same_run(plain(**settings), several(**settings), tolerance=0)


def elsewhere():
    """What another client's step does at its end, in a thread of its own."""

    def leave():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            pass

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()


@dataclass(frozen=True)
class Twice(FedAvg):
    """Its loss passes the images twice, and something happens between."""

    between: Callable[[], None] = hyper(lambda: None, source="this test")

    def client_loss(self, model, batch, received):
        first = super().client_loss(model, batch, received)["ce"]
        self.between()
        return {"ce": first, "again": super().client_loss(model, batch, received)["ce"].square()}


def test_a_step_does_not_feel_another_threads_narrow_weights():
    """torch drops all threads' copies of narrow weights where one leaves its autocast."""
    settings = {"precision": "bf16", "rounds": 1}
    alone, disturbed = (plain(method=Twice(between=b), **settings) for b in (int, elsewhere))
    for run in (alone, disturbed):
        run.one_round()
    for name, value in alone.server.model.items():
        assert torch.equal(value, disturbed.server.model[name]), name


def test_an_interrupted_run_goes_on_to_the_same_bits(monkeypatch):
    whole, broken = several(name="MOON"), several(name="MOON")
    whole.run(Silent())
    train = LoopEngine._train_one

    def one(self, job, method):
        if job.round == 2 and job.client == 1:
            raise KeyboardInterrupt
        return train(self, job, method)

    with monkeypatch.context() as patch:
        patch.setattr(LoopEngine, "_train_one", one)
        with pytest.raises(KeyboardInterrupt):
            broken.run(Silent())
    assert broken.round == 1
    broken.run(Silent())
    for name, value in whole.server.model.items():
        assert torch.equal(value, broken.server.model[name]), name


# How many at once.


@pytest.mark.parametrize(
    ("threads", "tasks", "free", "count"),
    [(2, 5, 1 << 40, 2), (8, 5, 1 << 40, 5), (1, 5, 1 << 40, 1), (4, 0, 1 << 40, 1), (4, 5, 0, 1)],
)
def test_one_a_core_as_memory_allows(threads, tasks, free, count, monkeypatch):
    monkeypatch.setattr("fedrepro.base.threads.cores", lambda: threads)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=free))
    assert lanes(tasks, network=1 << 20) == count


def test_inside_an_operation_has_one_thread_and_the_cores_are_told():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with recorded(torch.device("cpu")):
        assert (torch.get_num_threads(), cores()) == (1, 2)
        with one_thread():
            assert (torch.get_num_threads(), cores()) == (1, 2)
        assert (torch.get_num_threads(), cores()) == (1, 2)
    assert torch.get_num_threads() == cores() == 2
    with recorded(torch.device("cuda")):
        assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_test_at_once_has_the_bits_of_batch_after_batch(precision, monkeypatch):
    run = plain(precision=precision, sizes=(400, 90))
    run.engine.evaluation_batch = 32
    state, samples = run.server.model, run.federation.clients[0].train
    alone = run.engine.evaluate(state, samples), run.engine.features(state, samples)
    used = []
    monkeypatch.setattr("fedrepro.base.threads.cores", lambda: 3)
    monkeypatch.setattr(forward, "side_by_side", lambda *a: used.append(a) or side_by_side(*a))
    both = run.engine.evaluate(state, samples), run.engine.features(state, samples)
    assert len(used) == 2 and both[0][:2] == alone[0][:2]
    assert torch.equal(both[0][2], alone[0][2]) and torch.equal(both[1], alone[1])


# Tasks and seats.


def test_tasks_take_seats_of_their_own_and_end_in_order():
    taken, busy, most = set(), [], []
    lock = threading.Lock()

    def do(seat, task):
        with lock:
            assert seat not in taken
            taken.add(seat)
            busy.append(task)
            most.append(len(taken))
        time.sleep(0.02 if task % 3 else 0.05)
        with lock:
            taken.remove(seat)
        return task * 10

    results = list(side_by_side(do, range(9), ["a", "b", "c"], lambda: None))
    assert results == [(i, 10 * i) for i in range(9)]
    assert max(most) == 3


def test_few_results_wait_at_a_time():
    begun = []
    results = side_by_side(lambda seat, task: begun.append(task), range(100), "ab", lambda: None)
    next(results)
    time.sleep(0.1)
    assert len(begun) <= 4 + 1
    results.close()


@pytest.mark.parametrize("leaves", ["caller", "task"])
def test_nothing_runs_on_where_the_caller_leaves_or_a_task_fails(leaves):
    stopped, begun = threading.Event(), []

    def do(seat, task):
        begun.append(task)
        if task == 1 and leaves == "task":
            raise ValueError("task 1")
        if task:
            assert stopped.wait(60)

    before = torch.get_num_threads(), threading.active_count()
    torch.set_num_threads(2)
    results = side_by_side(do, range(50), "ab", stopped.set)
    assert next(results) == (0, None)
    assert torch.get_num_threads() == 1
    if leaves == "caller":
        results.close()
    else:
        with pytest.raises(ValueError, match="task 1"):
            next(results)
    assert stopped.is_set()
    assert max(begun) < 5
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before[0])
    assert threading.active_count() == before[1]


class Broken(FedAvg):
    """One of its clients fails, whichever the first thread trains."""

    def client_loss(self, model, batch, received):
        if threading.current_thread().name.endswith("_0"):
            raise RuntimeError("broken")
        return super().client_loss(model, batch, received)


def test_a_client_under_way_ends_after_its_batch():
    """The others have hours to go."""
    run = several(method=Broken(), sizes=(16, 16, 16), local_epochs=100_000)
    begun = time.perf_counter()
    with pytest.raises(RuntimeError, match="broken"):
        run.one_round()
    assert time.perf_counter() - begun < 60
    assert not any(thread.name.startswith("client_") for thread in threading.enumerate())


def test_what_comes_after_an_error_trains():
    run = several(method=Broken(), sizes=(16, 16, 16), rounds=1)
    with pytest.raises(RuntimeError, match="broken"):
        run.one_round()
    run.method = FedAvg()
    run.one_round()
    assert run.round == 1
