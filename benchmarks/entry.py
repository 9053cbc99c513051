"""How a script reads counts and how it ends: bad input is one line on standard error and status 2,
as on the command line. It has no command; the others ask.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from fedrepro.errors import FedReproError


def count(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def run(main: Callable[[], None]) -> None:
    """Call a script's main function; what it refuses ends the process."""
    try:
        main()
    except FedReproError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
