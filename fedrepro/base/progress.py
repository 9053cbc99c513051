"""Progress without printing: one bar in a terminal, one figure in a notebook, else one line a round
on standard error."""

import sys
import time
from collections.abc import Iterator, Mapping
from functools import cache
from html import escape
from typing import Any

from tqdm import tqdm


class Progress:
    """Told of a run's rounds as they end, with the mean test accuracy in percent. Says nothing.
    name: of the row that is trained, where a study does it; a run by itself has its method's."""

    name = ""

    def plan(self, rows: Mapping[str, int]) -> None:
        """Rows of tables to come by a key of each, with their rounds."""

    def row(self, key: str) -> None:
        """A row is done: trained, found or diverged."""

    def start(self, label: str, total: int, done: int) -> None: ...

    def round(self, number: int, accuracy: float) -> None: ...

    def finish(self, text: str) -> None: ...


Silent = Progress


class Rows(Progress):
    """Counts the rows, rounds and seconds that are left."""

    def __init__(self) -> None:
        self.todo: dict[str, int] = {}
        self.rows = self.trained = self._of_row = self._of_run = 0
        self._seconds = 0.0

    def plan(self, rows: Mapping[str, int]) -> None:
        self.rows += len(rows.keys() - self.todo.keys())
        self.todo |= rows

    def row(self, key: str) -> None:
        self.todo.pop(key, None)
        self._of_row = 0

    def start(self, label: str, total: int, done: int) -> None:
        place = f"row {self.rows - len(self.todo) + 1} of {self.rows}, " if self.todo else ""
        self.label, self.place, self.total = label, place, total
        self._of_run, self._since = total - done, time.monotonic()
        self._of_row += done

    def round(self, number: int, accuracy: float) -> None:
        self.trained += 1
        self._of_row += 1
        self._of_run -= 1
        now = time.monotonic()
        self._seconds, self._since = self._seconds + now - self._since, now

    @property
    def rounds(self) -> int:
        """Rounds to come; rows that turn out to be there already take none."""
        return max(self._of_run, sum(self.todo.values()) - self._of_row)

    @property
    def left(self) -> str:
        """About how long they take, by the mean of those so far."""
        seconds = self.rounds * self._seconds / max(1, self.trained)
        return f"about {tqdm.format_interval(seconds)} left" if self.trained else ""


class TerminalBar(Rows):
    """A tqdm bar with the current mean accuracy behind it: one for all rows that were planned."""

    _bar: Any = None

    def start(self, label: str, total: int, done: int) -> None:
        super().start(label, total, done)
        if self._bar is None:
            total, done = (self.rounds, 0) if self.todo else (total, done)
            self._bar = tqdm(total=total, initial=done, desc=label, unit="round", leave=True)
        self._bar.set_description_str(f"{self.place}{label}")

    def round(self, number: int, accuracy: float) -> None:
        super().round(number, accuracy)
        self._bar.set_postfix_str(_average(accuracy), refresh=False)
        self._bar.update(1)

    def row(self, key: str) -> None:
        super().row(key)
        if self._bar is not None:
            self._bar.total = self._bar.n + self.rounds
            self._close()

    def finish(self, text: str) -> None:
        self._of_run = 0  # it may have stopped early
        self._close()

    def _close(self) -> None:
        if not self.todo:
            self._bar.close()
            self._bar = None


class Lines(Rows):
    """One line a round on standard error."""

    def round(self, number: int, accuracy: float) -> None:
        super().round(number, accuracy)
        line = f"{self.place}{self.label}  round {number}/{self.total}  {_average(accuracy)}"
        print(line + f"  {self.left}" * bool(self.rounds), file=sys.stderr, flush=True)


class _Output:
    """One output of a notebook's cell, written again and again."""

    _handle: Any = None

    def __call__(self, content: dict[str, str]) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
WIDTH, HEIGHT = 420, 140


class NotebookFigure(Rows):
    """One figure for all runs: mean accuracy over the domains by round, a line per run, and what
    is left. It stands in the last cell that trained, and stays there."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[str, list[tuple[float, float]]] = {}
        self._cell: int | None = None
        self._show = _Output()

    def start(self, label: str, total: int, done: int) -> None:
        super().start(label, total, done)
        if (cell := _execution()) != self._cell:
            if self._cell is not None:
                self._show({"text/plain": "The figure goes on with the next cell that trains."})
            self._show, self._cell = _Output(), cell
        name = label
        while name in self._lines:  # the same method with another setting
            name += "'"
        self._name, self._lines[name] = name, []
        self._draw(_bar(self.place + label, "round", done, total))

    def round(self, number: int, accuracy: float) -> None:
        super().round(number, accuracy)
        self._lines[self._name].append((number / self.total, accuracy))
        line = _bar(self.place + self.label, "round", number, self.total)
        self._draw(f"{line}  {_average(accuracy)}  {self.left}")

    def finish(self, text: str) -> None:
        self._of_run = 0  # it may have stopped early
        after = self.left if self.rounds else "all trained"
        self._draw(f"{self.place}{self.label}  {text}  {after}")

    def _draw(self, line: str) -> None:
        lines, names = "", ""
        for i, (name, points) in enumerate(reversed(self._lines.items())):  # the latest first
            look = COLOURS[i] if i < len(COLOURS) else "#bbb"
            at = " ".join(map(_point, points))
            lines = f"<polyline points='{at}' stroke='{look}' stroke-width='2'/>{lines}"
            if i < len(COLOURS):
                last = f"{name} {points[-1][1]:.2f} %" if points else name
                place = f"x='{WIDTH + 8}' y='{16 + 20 * i}' font-size='13'"
                names += f"<text {place} fill='{look}'>{escape(last)}</text>"
        html = (
            f"<pre style='margin:0'>{escape(line)}</pre><svg width='{WIDTH + 260}' "
            f"height='{HEIGHT}' fill='none' role='img' aria-label='accuracy by round'>"
            f"<rect width='{WIDTH}' height='{HEIGHT}' stroke='#999'/>{lines}{names}</svg>"
        )
        self._show({"text/plain": line, "text/html": html})


def _point(place: tuple[float, float]) -> str:
    """Of a share of the rounds and an accuracy, 0 to 100 %, the place in the drawing."""
    return f"{WIDTH * place[0]:.1f},{HEIGHT * (1 - place[1] / 100):.1f}"


def _average(accuracy: float) -> str:
    return f"avg {accuracy:.2f} %"


def _bar(label: str, unit: str, number: int, total: int) -> str:
    filled = round(20 * number / total)
    return f"{label}  [{'#' * filled}{'.' * (20 - filled)}] {unit} {number}/{total}"


def _execution() -> int | None:
    """The number of the notebook's cell that runs, None outside of a notebook."""
    module = sys.modules.get("IPython")
    shell: Any = module.get_ipython() if module is not None else None
    return shell.execution_count if getattr(shell, "kernel", None) is not None else None


def progress(own: bool = False) -> Progress:
    """The form that fits where the code runs. own: a notebook's figure apart from others' runs."""
    if _execution() is not None:
        return NotebookFigure() if own else _figure()
    return TerminalBar() if sys.stderr.isatty() else Lines()


@cache
def _figure() -> NotebookFigure:
    """Of all runs of this process that no study has a figure for."""
    return NotebookFigure()


def counted(label: str, total: int, done: int = 0) -> Iterator[int]:
    """Numbers from `done` to total - 1: steps of work that has no accuracy, shown as they pass.

    A bar in a terminal, a changing line in a notebook, ten lines on standard error elsewhere.
    """
    steps, output = range(done, total), _Output() if _execution() is not None else None
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
