"""Work done at once on the cores of a CPU, each piece by one thread."""

from __future__ import annotations

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
Seat = TypeVar("Seat")

# Taken to be needed for each client at once: copies of the network, and a batch's activations.
COPIES, ACTIVATIONS = 8, 1 << 30

_outside: int | None = None  # torch's threads outside of `one_thread`


def cores() -> int:
    """Threads that may be busy at once: torch's own number, or that of before `one_thread`."""
    return _outside or torch.get_num_threads()


def lanes(tasks: int, network: int) -> int:
    """How many tasks to do at once with a network of so many bytes: one a core, as far as there
    are tasks and memory. No number depends on it."""
    fitting = psutil.virtual_memory().available // (COPIES * network + ACTIVATIONS)
    return max(1, min(cores(), tasks, fitting))


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
    do: Callable[[Seat, Task], Result],
    tasks: Sequence[Task],
    seats: Sequence[Seat],
    stop: Callable[[], None],
) -> Iterator[tuple[int, Result]]:
    """Do all tasks, as many at once as there are seats, each at a seat of its own.

    Results come in the order of the tasks, so that what is summed up of them has the same bits as
    in a plain loop; no more than two a seat are waited for at a time. Each has one of torch's
    threads, as the caller has meanwhile. Where the caller leaves or a task fails, `stop` is called
    and the tasks under way are waited for.
    """
    free = deque(seats)

    def at_a_seat(task: Task) -> Result:
        seat = free.popleft()  # there is one: no more tasks run at once than there are seats
        try:
            return do(seat, task)
        finally:
            free.append(seat)

    waiting: deque[tuple[int, Future[Result]]] = deque()
    pool = ThreadPoolExecutor(len(seats), "client", torch.set_num_threads, (1,))
    with one_thread():
        try:
            for position, task in enumerate(tasks):
                if len(waiting) == 2 * len(seats):
                    first, found = waiting.popleft()
                    yield first, found.result()
                waiting.append((position, pool.submit(at_a_seat, task)))
            for position, found in waiting:
                yield position, found.result()
        except BaseException:
            stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
