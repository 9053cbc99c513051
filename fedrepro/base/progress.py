"""Progress without printing: one bar in a terminal, one changing line in a notebook, else one line
a round on standard error."""

import sys
from collections.abc import Iterator
from html import escape
from typing import Any

from tqdm import tqdm


class Progress:
    """Told of a run's rounds as they end, with the mean test accuracy in percent. Says nothing."""

    def start(self, label: str, total: int, done: int) -> None: ...

    def round(self, number: int, accuracy: float) -> None: ...

    def finish(self, text: str) -> None: ...


Silent = Progress


class TerminalBar(Progress):
    """A tqdm bar with the current mean accuracy behind it."""

    def start(self, label: str, total: int, done: int) -> None:
        self._bar = tqdm(total=total, initial=done, desc=label, unit="round", leave=True)

    def round(self, number: int, accuracy: float) -> None:
        self._bar.set_postfix_str(_average(accuracy), refresh=False)
        self._bar.update(1)

    def finish(self, text: str) -> None:
        self._bar.close()


class Lines(Progress):
    """One line a round on standard error."""

    def start(self, label: str, total: int, done: int) -> None:
        self._label, self._total = label, total

    def round(self, number: int, accuracy: float) -> None:
        line = f"{self._label}  round {number}/{self._total}  {_average(accuracy)}"
        print(line, file=sys.stderr, flush=True)


class _Output:
    """One output of a notebook's cell, written again and again."""

    _handle: Any = None

    def __call__(self, content: dict[str, str]) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


class NotebookLine(Progress):
    """One output that is rewritten: a bar and the accuracy's curve while the run trains, its
    result after."""

    def start(self, label: str, total: int, done: int) -> None:
        self._label, self._total, self._show = label, total, _Output()
        self._points: list[tuple[int, float]] = []
        self._show(self._shown(done, ""))

    def _shown(self, number: int, text: str) -> dict[str, str]:
        line = f"{_bar(self._label, 'round', number, self._total)}  {text}"
        html = f"<pre style='margin:0'>{escape(line)}</pre>{self._curve()}"
        return {"text/plain": line, "text/html": html}

    def _curve(self) -> str:
        """Mean accuracy over rounds, 0 to 100 %, as a small drawing."""
        if len(self._points) < 2:
            return ""
        width, height = 320, 80
        line = " ".join(
            f"{width * n / self._total:.1f},{height * (1 - a / 100):.1f}" for n, a in self._points
        )
        return (
            f"<svg width='{width}' height='{height}' role='img' aria-label='accuracy by round'>"
            f"<rect width='{width}' height='{height}' fill='none' stroke='#999'/>"
            f"<polyline points='{line}' fill='none' stroke='#0072b2' stroke-width='2'/></svg>"
        )

    def round(self, number: int, accuracy: float) -> None:
        self._points.append((number, accuracy))
        self._show(self._shown(number, _average(accuracy)))

    def finish(self, text: str) -> None:
        self._show({"text/plain": f"{self._label}  {text}"})


def _average(accuracy: float) -> str:
    return f"avg {accuracy:.2f} %"


def _bar(label: str, unit: str, number: int, total: int) -> str:
    filled = round(20 * number / total)
    return f"{label}  [{'#' * filled}{'.' * (20 - filled)}] {unit} {number}/{total}"


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    return shell is not None and getattr(shell.get_ipython(), "kernel", None) is not None


def progress() -> Progress:
    """The form that fits where the code runs."""
    if _in_notebook():
        return NotebookLine()
    return TerminalBar() if sys.stderr.isatty() else Lines()


def counted(label: str, total: int, done: int = 0) -> Iterator[int]:
    """Numbers from `done` to total - 1: steps of work that has no accuracy, shown as they pass.

    A bar in a terminal, a changing line in a notebook, ten lines on standard error elsewhere.
    """
    steps, output = range(done, total), _Output() if _in_notebook() else None
    if output is None and sys.stderr.isatty():
        yield from tqdm(steps, desc=label, initial=done, total=total, unit="step")
        return
    for step in steps:
        yield step
        if (step + 1) * 10 // total == step * 10 // total:
            continue
        line = _bar(label, "step", step + 1, total)
        if output is not None:
            output({"text/plain": line})
        else:
            print(line, file=sys.stderr, flush=True)
