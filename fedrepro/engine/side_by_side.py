"""How many clients the plain loop trains at once on a CPU, and their threads."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Task = TypeVar("Task")
Result = TypeVar("Result")
Seat = TypeVar("Seat")

# Parameters up to which clients at once pay. benchmarks/at_once.py on two cores: small-cnn and
# narrow-resnet gain most, pfl-cnn little; of digit-cnn and resnet10 some lose.
SMALL = 2_000_000


def best_lanes(work: Sequence[int], threads: int) -> int:
    """How many clients to train at once on `threads` threads, shared evenly among them.

    work: each client's, in the order they are started in. A step of a small network on k threads
    is taken to be sqrt(k) times as fast as on one, about what two threads gained.
    """

    def seconds(lanes: int) -> float:
        return makespan(work, lanes) / math.sqrt(threads // lanes)

    return min(range(1, min(threads, len(work)) + 1), key=seconds, default=1)


def makespan(work: Sequence[int], lanes: int) -> int:
    """When the last of `lanes` workers is done, each taking the next piece when it is free."""
    free = [0] * lanes
    for piece in work:
        heapq.heapreplace(free, free[0] + piece)
    return max(free)


@contextmanager
def threads_each(count: int) -> Iterator[None]:
    """Inside, torch's operations take `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def side_by_side(
    do: Callable[[Seat, Task], Result],
    tasks: Sequence[Task],
    seats: Sequence[Seat],
    stop: Callable[[], None],
) -> Iterator[tuple[int, Result]]:
    """Do all tasks, as many at once as there are seats, each at a seat of its own.

    Results come in the order of the tasks, so that what is summed up of them has the same bits as
    in a plain loop; no more than two a seat are waited for at a time. Each takes its share of
    torch's threads, as the caller does meanwhile. Where the caller leaves or a task fails, `stop`
    is called and the tasks under way are waited for.
    """
    count = max(1, torch.get_num_threads() // len(seats))
    free = deque(seats)

    def at_a_seat(task: Task) -> Result:
        seat = free.popleft()  # there is one: no more tasks run at once than there are seats
        try:
            return do(seat, task)
        finally:
            free.append(seat)

    waiting: deque[tuple[int, Future[Result]]] = deque()
    pool = ThreadPoolExecutor(len(seats), "client", torch.set_num_threads, (count,))
    with threads_each(count):
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
