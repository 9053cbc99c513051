"""Work done at once on the cores of a CPU, each piece by one thread."""

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

# Taken to be needed for each client at once: copies of the network, and a batch's activations.
COPIES, ACTIVATIONS = 8, 1 << 30

_outside: int | None = None  # torch's threads outside of `one_thread`


def free_threads() -> int:
    """Threads that may be busy at once: torch's own number, or that of before `one_thread`."""
    return _outside or torch.get_num_threads()


def lanes(network: int) -> int:
    """How many networks of so many bytes to train at once: one a core, as far as memory goes.

    On two free cores a recorded round is 1.5 to 1.7 times as fast so; where a sweep fills the cores
    each process has one thread and trains one network at a time. No number depends on it.
    """
    fitting = psutil.virtual_memory().available // (COPIES * network + ACTIVATIONS)
    return max(1, min(free_threads(), fitting))


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, torch's operations take one thread each: split among several they have other bits."""
    global _outside
    if _outside is not None:
        yield
        return
    _outside = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(_outside)
        _outside = None


@contextmanager
def recorded(device: torch.device) -> Iterator[None]:
    """What a recorded run computes in: on a CPU one thread an operation, numpy's and scikit-learn's
    too, so that its numbers are those of any number of threads. A GPU's are its own."""
    if device.type != "cpu":
        yield
        return
    with one_thread(), threadpool_limits(1):
        yield


def side_by_side(
    do: Callable[[Task], Result],
    tasks: Sequence[Task],
    count: int,
    stop: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, Result]]:
    """Do all tasks, so many at once, each with one of torch's threads.

    Results come in the tasks' order with their position, at most two a thread waiting. Where the
    caller leaves or a task fails, `stop` is called and the tasks under way are waited for.
    """
    waiting: deque[tuple[int, Future[Result]]] = deque()
    pool = ThreadPoolExecutor(count, "client", torch.set_num_threads, (1,))
    with one_thread():
        try:
            for position, task in enumerate(tasks):
                if len(waiting) == 2 * count:
                    first, found = waiting.popleft()
                    yield first, found.result()
                waiting.append((position, pool.submit(do, task)))
            for position, found in waiting:
                yield position, found.result()
        except BaseException:
            stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
