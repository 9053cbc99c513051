"""Progress without printing: one bar in a terminal, one changing line in a notebook, else one line
a round on standard error."""

from __future__ import annotations

import sys
from typing import Protocol as Interface

from tqdm import tqdm


class Progress(Interface):
    """Told of a run's rounds as they end."""

    def start(self, label: str, total: int, done: int) -> None: ...

    def round(self, number: int, text: str) -> None: ...

    def finish(self, text: str) -> None: ...


class Silent:
    """Says nothing."""

    def start(self, label: str, total: int, done: int) -> None: ...

    def round(self, number: int, text: str) -> None: ...

    def finish(self, text: str) -> None: ...


class TerminalBar:
    """A tqdm bar with the current mean accuracy behind it."""

    def start(self, label: str, total: int, done: int) -> None:
        self._bar = tqdm(total=total, initial=done, desc=label, unit="round", leave=True)

    def round(self, number: int, text: str) -> None:
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(1)

    def finish(self, text: str) -> None:
        self._bar.close()


class Lines:
    """One line a round on standard error."""

    def start(self, label: str, total: int, done: int) -> None:
        self._label, self._total = label, total

    def round(self, number: int, text: str) -> None:
        print(f"{self._label}  round {number}/{self._total}  {text}", file=sys.stderr, flush=True)

    def finish(self, text: str) -> None: ...


class NotebookLine:
    """One output that is rewritten: a bar while the run trains, its result after."""

    def start(self, label: str, total: int, done: int) -> None:
        from IPython.display import display

        self._label, self._total = label, total
        self._handle = display(self._text(done, ""), raw=True, display_id=True)

    def _text(self, number: int, text: str) -> dict[str, str]:
        filled = round(20 * number / self._total)
        bar = "#" * filled + "." * (20 - filled)
        return {"text/plain": f"{self._label}  [{bar}] round {number}/{self._total}  {text}"}

    def round(self, number: int, text: str) -> None:
        self._handle.update(self._text(number, text), raw=True)

    def finish(self, text: str) -> None:
        self._handle.update({"text/plain": f"{self._label}  {text}"}, raw=True)


def progress() -> Progress:
    """The form that fits where the code runs."""
    shell = sys.modules.get("IPython")
    if shell is not None and getattr(shell.get_ipython(), "kernel", None) is not None:
        return NotebookLine()
    return TerminalBar() if sys.stderr.isatty() else Lines()
