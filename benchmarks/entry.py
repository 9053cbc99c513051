"""How a script reads counts, stores a call and ends: bad input is one line on standard error and
status 2, as on the command line. It has no command; the others ask.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedrepro.base.errors import FedReproError
from fedrepro.records.record import environment

RESULTS = Path(__file__).resolve().parent / "results"


def count(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


PLACES = ("--json", "--results", "--folder", "--runs", "--data-root")


def command(script: str, words: Sequence[str] | None) -> str:
    """A call as it is stored: without the places of its files, which are no part of what is
    measured. words: None for those of this process."""
    words = sys.argv[1:] if words is None else words
    places = [i for i, word in enumerate(words) if word in PLACES]
    kept = [
        word
        for i, word in enumerate(words)
        if word.partition("=")[0] not in PLACES and i - 1 not in places
    ]
    return " ".join([f"python benchmarks/{script}.py", *kept])


def stored(call: str, device: str, measure: Callable[[], Any], **facts: Any) -> dict[str, Any]:
    """What a file keeps of a call: its command, facts such as the settings, the machine and its
    load before and after, and what was measured."""
    before, results = os.getloadavg()[0], measure()
    return {
        "command": call,
        **facts,
        "environment": environment(torch.device(device)),
        "load_average": {"before": before, "after": os.getloadavg()[0]},
        "results": results,
    }


def show(rows: Iterable[Mapping[str, str]]) -> None:
    """Print one line per row of a table of report.py."""
    for row in rows:
        print(", ".join(f"{name}: {value}" for name, value in row.items()))


def run(main: Callable[[], None]) -> None:
    """Call a script's main function; what it refuses ends the process."""
    try:
        main()
    except FedReproError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
