"""The exception that users see: a single line that says what is wrong and what to do."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

from pydantic import ValidationError

FEW, MOST = 5, 24  # names in an error's line: so few are all shown, more never


class FedReproError(Exception):
    """A mistake the user can correct, in one line: what is wrong, then what to do."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows in place of a traceback. The cell still fails."""
        return [f"{type(self).__name__}: {self}"]


class Missing(FedReproError):
    """Files of data or of weights are not here."""


class Stopped(KeyboardInterrupt):
    """A training was interrupted; its finished rounds are kept."""

    def _render_traceback_(self) -> list[str]:
        return ["interrupted: finished rounds are kept; run the cell again to continue"]


class Diverged(FedReproError):
    """The loss of a run is not finite in a round, counted from 1. Earlier rounds are kept.
    run: its id, if it is in a folder of runs."""

    def __init__(self, message: str, seed: int = -1, round: int = -1, run: str = "") -> None:
        super().__init__(message)  # alone when unpickled: the others are set afterwards
        self.seed, self.round, self.run = seed, round, run


def need(condition: object, otherwise: str) -> None:
    """FedReproError with this message unless the condition holds."""
    if not condition:
        raise FedReproError(otherwise)


@contextmanager
def explained(problem: str, mend: str, *errors: type[Exception]) -> Iterator[None]:
    """FedReproError in place of such an error inside: a problem, the error's own line, a remedy."""
    try:
        yield
    except errors as error:
        raise FedReproError(f"{problem} ({one_line(error)}); {mend}") from None


def choices(name: str, known: Iterable[str]) -> str:
    """The known names nearest to a mistyped one; if none is near, or there are few names, all of
    them or the first ones."""
    names = {one.lower(): one for one in known}
    every, alike = list(names.values()), get_close_matches(str(name).lower(), names, n=3)
    near = [names[key] for key in alike] if len(every) > FEW else []
    rest = [f"{len(every) - MOST} more"] if len(every) > MOST else []
    shown = (repr(name) if "," in name else name for name in near or every[:MOST])
    return ", ".join([*shown, *([] if near else rest)])


OWN_METHOD = "; your own needs --load FILE, or fedrepro.register"  # after the known methods


def one_of(name: str, known: Iterable[str], what: str, other: str = "") -> str:
    """The name, if it is known. FedReproError, with the nearest names, if it is not. other: what
    else a user may have wanted."""
    if name not in (names := list(known)):
        raise FedReproError(f"no {what} {name!r}; choose from {choices(name, names)}{other}")
    return name


def first_mistake(error: ValidationError) -> str:
    """The first complaint of a pydantic validation: where, what was given, what is wrong."""
    first = max(error.errors(), key=lambda one: len(one["loc"]))  # of several kinds, the nearest
    kind = re.compile(r"(constrained-)?(int|float|str)$|.*\[")  # no part of a name
    where = ".".join(part for part in map(str, first["loc"]) if not kind.match(part)) or "value"
    if first["type"] == "extra_forbidden":
        return f"{where}: there is no such name; correct it"
    if first["type"] == "missing":
        return f"{where} is missing; add it"
    if first["type"] == "value_error":  # of several settings: they need not be shown
        return f"{where}: {first['ctx']['error']}"
    said = first["msg"].replace("a valid tuple", "a list, such as [a, b]")
    return f"{where} = {first.get('input')!r}: {said}; correct that value"


def one_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
