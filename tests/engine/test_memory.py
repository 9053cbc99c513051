"""A process that trains on a CPU keeps the memory it frees."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, torch
from fedrepro.engine.memory import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

kept = keep_freed_memory()
torch.ones(8 << 20)  # 32 MiB
before = faults()
for _ in range(10):
    torch.ones(8 << 20)
print(kept, faults() - before)
"""
PAGES = 8192  # of 4 KiB, in one such tensor; ten cost as many faults each without the setting


def answer(**variables: str) -> tuple[str, int]:
    inherited = {k: v for k, v in os.environ.items() if "MALLOC" not in k and "GLIBC" not in k}
    words = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        words, env={**inherited, **variables}, capture_output=True, text=True, check=True
    )
    kept, faults = done.stdout.split()
    return kept, int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc's malloc")
def test_freed_memory_is_used_again_without_asking_the_system() -> None:
    kept, faults = answer()
    assert kept == "True"
    assert faults < 3 * PAGES


def test_the_users_own_settings_are_left_alone() -> None:
    kept, _ = answer(MALLOC_TRIM_THRESHOLD_="131072")
    assert kept == "False"
