"""How a process that trains on a CPU asks the system for memory."""

from __future__ import annotations

import ctypes
import os
from functools import cache

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # glibc's numbers of its settings, from malloc.h
BLOCKS = (1 << 30, 1 << 25)  # bytes from which on a block goes back even so; old glibc: the second
OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


@cache
def keep_freed_memory() -> bool:
    """Let this process keep memory it frees, for the next step to use; True where it now does.

    A training step makes and drops the same large tensors again and again. Left alone, glibc gives
    each back to the system, which fills it with zeros before the next step gets it: a fifth of
    FedAvg's round of a digit CNN, a third in bf16. The price: a process holds its peak until it
    ends.

    Nothing is done where the C library is not glibc, or where the environment sets its malloc.
    """
    if any(name in os.environ for name in OWN_SETTINGS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library; no such way to ask (Windows)
        return False
    large = any(mallopt(MMAP_THRESHOLD, size) for size in BLOCKS)
    return large and bool(mallopt(TRIM_THRESHOLD, -1))
