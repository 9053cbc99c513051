"""Progress displays: one bar in a terminal, one figure in a notebook, else one line per round on
standard error. And trackers, which receive every round of a run and write into its record."""

import os
import sys
import time
from collections.abc import Hashable, Iterator, Mapping
from functools import cache
from html import escape
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tqdm import tqdm

from fedrepro.base.errors import need, one_of
from fedrepro.base.files import TRACK


class Tracker:
    """Base class for trackers. A subclass with its own `name` may be passed as `track`.
    folder: its own, empty. A resumed run sends its earlier rounds again."""

    name = ""

    def __init__(self, folder: Path) -> None: ...

    def round(self, number: int, values: Mapping[str, float]) -> None:
        """Receive a finished round: accuracy in percent by domain and their mean, loss terms as
        means over clients, bytes by kind and their total."""

    def close(self) -> None: ...


class TensorBoard(Tracker):
    """Event files: `tensorboard --logdir runs`."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def round(self, number: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, number)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


TRACKERS = {tracker.name: tracker for tracker in (TensorBoard,)}


def resolve(track: str | type[Tracker]) -> type[Tracker] | None:
    """The tracker with a name, by default the environment's; None if neither is given.
    FedReproError: it is not known, or not installed."""
    track = track or os.environ.get(TRACK, "")
    if isinstance(track, type):
        # its folder in a run's
        need(track.name, f"{track.__name__} has no name; add `name = ...` to the class")
        return track
    if not track:
        return None
    installed = find_spec(one_of(track, TRACKERS, "tracker"))
    need(installed, f"{track} is not installed; `pip install 'fedrepro[{track}]'`")
    return TRACKERS[track]


class Progress:
    """Base class for progress displays, which counts what is left and shows nothing. name: the row
    that a study trains, if it is a study."""

    name = ""
    todo: Mapping[Any, int] = MappingProxyType({})  # the rows that are left, with their rounds
    rows = trained = _of_row = _of_run = 0
    _seconds = 0.0

    def plan(self, rows: Mapping[Any, int]) -> None:
        """Announce the rows to train: key -> rounds."""
        self.rows += len(rows.keys() - self.todo.keys())
        self.todo = {**self.todo, **rows}

    def row(self, key: Hashable) -> None:
        """A row is done: trained, read from the store, or diverged."""
        self.todo = {other: rounds for other, rounds in self.todo.items() if other != key}
        self._of_row = 0

    def start(self, label: str, total: int, done: int) -> None:
        place = f"row {self.rows - len(self.todo) + 1} of {self.rows}, " if self.todo else ""
        self.label, self.total = f"{place}{label}", total
        self._of_run, self._since = total - done, time.monotonic()
        self._of_row += done

    def round(self, number: int, accuracy: float) -> None:
        """Receive a finished round and its mean test accuracy in percent."""
        self.trained += 1
        self._of_row += 1
        self._of_run -= 1
        now = time.monotonic()
        self._seconds, self._since = self._seconds + now - self._since, now

    def finish(self, text: str) -> None:
        self._of_run = 0  # it may have stopped early

    @property
    def rounds(self) -> int:
        """The number of rounds left; rows that are recorded already need none."""
        return max(self._of_run, sum(self.todo.values()) - self._of_row)

    @property
    def left(self) -> str:
        """The estimated time for them, from the mean time per round so far."""
        seconds = self.rounds * self._seconds / max(1, self.trained)
        return f"about {tqdm.format_interval(seconds)} left" if self.trained else ""


Silent = Progress


class TerminalBar(Progress):
    """One tqdm bar for all planned rows, followed by the current mean accuracy."""

    _bar: Any = None

    def start(self, label: str, total: int, done: int) -> None:
        super().start(label, total, done)
        if self._bar is None:
            total, done = (self.rounds, 0) if self.todo else (total, done)
            self._bar = tqdm(total=total, initial=done, unit="round")
        self._bar.set_description_str(self.label)

    def round(self, number: int, accuracy: float) -> None:
        super().round(number, accuracy)
        self._bar.set_postfix_str(f"avg {accuracy:.2f} %", refresh=False)
        self._bar.update()

    def row(self, key: Hashable) -> None:
        super().row(key)
        if self._bar is not None:
            self._bar.total = self._bar.n + self.rounds
            self.finish("")

    def finish(self, text: str) -> None:
        super().finish(text)
        if not self.todo:
            self._bar.close()
            self._bar = None


class Lines(Progress):
    """One line per round on standard error."""

    def round(self, number: int, accuracy: float) -> None:
        super().round(number, accuracy)
        line = f"{self.label}  round {number}/{self.total}  avg {accuracy:.2f} %"
        print(line + f"  {self.left}" * bool(self.rounds), file=sys.stderr, flush=True)


class _Output:
    """One output of a notebook's cell, which is updated in place."""

    _handle: Any = None

    def __call__(self, content: dict[str, str]) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
WIDTH, HEIGHT = 420, 140


class NotebookFigure(Progress):
    """One figure for all runs: mean accuracy over the domains by round, one line per run, and the
    remaining work. It is in the last cell that trained, and stays there."""

    def __init__(self) -> None:
        # for each line, shares of the rounds and accuracies in percent
        self._lines: dict[str, list[tuple[float, float]]] = {}
        self._cell: int | None = None
        self._show = _Output()
        self._ended = ""

    def start(self, label: str, total: int, done: int) -> None:
        super().start(label, total, done)
        if (cell := _execution()) != self._cell:
            if self._cell is not None:
                self._show({"text/plain": "The figure continues in the next cell that trains."})
            self._show, self._cell = _Output(), cell
        names = (f"{label} ({n})" if n > 1 else label for n in count(1))  # of other settings, too
        self._points = self._lines[next(name for name in names if name not in self._lines)] = []
        self._draw(_bar(self.label, "round", done, total))

    def round(self, number: int, accuracy: float) -> None:
        super().round(number, accuracy)
        self._points.append((number / self.total, accuracy))
        line = _bar(self.label, "round", number, self.total)
        self._draw(f"{line}  avg {accuracy:.2f} %  {self.left}")

    def finish(self, text: str) -> None:
        super().finish(text)
        self._ended = f"{self.label}  {text}"
        self._draw(f"{self._ended}  {self.left if self.rounds else 'all trained'}")

    def row(self, key: Hashable) -> None:
        super().row(key)
        if not self.todo and self._ended:  # it may have had fewer rounds than planned
            self._draw(f"{self._ended}  all trained")
            self._ended = ""

    def _draw(self, line: str) -> None:
        lines, names = "", ""
        for i, (name, points) in enumerate(reversed(self._lines.items())):  # the latest first
            look = COLOURS[i] if i < len(COLOURS) else "#bbb"
            at = " ".join(f"{WIDTH * x:.1f},{HEIGHT * (1 - y / 100):.1f}" for x, y in points)
            lines = f"<polyline points='{at}' stroke='{look}' stroke-width='2'/>{lines}"
            if i < len(COLOURS):
                last = f"{name} {points[-1][1]:.2f} %" if points else name
                names += f"<div style='color:{look}'>{escape(last)}</div>"
        html = (  # the names go below where the window is narrow
            f"<pre style='margin:0'>{escape(line)}</pre>"
            "<div style='display:flex; flex-wrap:wrap; gap:0 8px'>"
            f"<svg width='{WIDTH}' viewBox='0 0 {WIDTH} {HEIGHT}' fill='none' role='img' "
            "style='max-width:100%; height:auto' aria-label='accuracy by round'>"
            f"<rect width='{WIDTH}' height='{HEIGHT}' stroke='#999'/>{lines}</svg>"
            f"<div style='font-size:13px; line-height:20px'>{names}</div></div>"
        )
        self._show({"text/plain": line, "text/html": html})


def _bar(label: str, unit: str, number: int, total: int) -> str:
    filled = round(20 * number / total)
    return f"{label}  [{'#' * filled}{'.' * (20 - filled)}] {unit} {number}/{total}"


def _execution() -> int | None:
    """The number of the running notebook cell, None outside a notebook."""
    module = sys.modules.get("IPython")
    shell: Any = module.get_ipython() if module is not None else None
    return shell.execution_count if getattr(shell, "kernel", None) is not None else None


def progress(own: bool = False) -> Progress:
    """The display for a terminal, a notebook, or neither. own: a new figure for these runs."""
    if _execution() is not None:
        return NotebookFigure() if own else _figure()
    return TerminalBar() if sys.stderr.isatty() else Lines()


# The figure for all runs of this process that have no figure of a study.
_figure = cache(NotebookFigure)


def counted(label: str, total: int, done: int = 0) -> Iterator[int]:
    """Yields `done` to total - 1, shown as steps of work: a bar in a terminal, a changing line in a
    notebook, ten lines on standard error elsewhere."""
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
