"""How a script reads counts, names its call and ends: bad input is one line on standard error and
status 2, as on the command line. It has no command; the others ask.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from fedrepro.base.errors import FedReproError


def count(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


PLACES = ("--json", "--results", "--folder", "--runs", "--data-root")


def command(script: str, words: Sequence[str]) -> str:
    """A call as it is stored: without the places of its files, which are no part of what is
    measured."""
    places = [i for i, word in enumerate(words) if word in PLACES]
    kept = [
        word
        for i, word in enumerate(words)
        if word.partition("=")[0] not in PLACES and i - 1 not in places
    ]
    return " ".join([f"python benchmarks/{script}.py", *kept])


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
