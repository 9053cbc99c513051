"""Parallel work on the cores of a CPU: each task has one thread."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import psutil
import torch
from threadpoolctl import threadpool_limits

Task = TypeVar("Task")
Result = TypeVar("Result")

# Assumed memory for each parallel client: copies of the network, and a batch's activations.
COPIES, ACTIVATIONS = 8, 1 << 30

_outside: int | None = None  # torch's threads outside of `one_thread`


def free_threads() -> int:
    """The number of parallel threads: torch's number, or its number before `one_thread`."""
    return _outside or torch.get_num_threads()


def lanes(network: int) -> int:
    """The number of networks of `network` bytes to train at once: one per core if memory allows.
    On two free cores a recorded round becomes 1.5 to 1.7 times as fast, with the same results."""
    fitting = psutil.virtual_memory().available // (COPIES * network + ACTIVATIONS)
    return max(1, min(free_threads(), fitting))


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, each torch operation uses one thread, because several threads change the bits."""
    global _outside
    before, threads = _outside, torch.get_num_threads()
    _outside = free_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _outside = before


@contextmanager
def recorded(device: torch.device) -> Iterator[None]:
    """Inside, on a CPU, every operation, also of numpy and scikit-learn, uses one thread, so the
    numbers do not depend on the number of threads. A GPU is not affected."""
    if device.type == "cpu":
        with one_thread(), threadpool_limits(1):
            yield
    else:
        yield


def side_by_side(
    do: Callable[[Task], Result],
    tasks: Sequence[Task],
    count: int,
    stop: Callable[[], None] = lambda: None,
) -> Iterator[Result]:
    """Do all tasks, `count` at a time, each with one torch thread. Yields results in the tasks'
    order; at most two per thread wait. If the caller leaves or a task fails, `stop` is called, and
    running tasks are waited for."""
    waiting: deque[Future[Result]] = deque()
    with one_thread(), ThreadPoolExecutor(count, "client", torch.set_num_threads, (1,)) as pool:
        try:
            for task in tasks:
                if len(waiting) == 2 * count:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(do, task))
            while waiting:
                yield waiting.popleft().result()
        except BaseException:
            stop()
            pool.shutdown(cancel_futures=True)
            raise
