"""Shared by all figures: size, style, the look of series, and display. Series differ in line or
marker as well as in colour; text can be read on a narrow phone."""

import io
import json
import math
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context, ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

COLOURS = (  # seaborn's palette `colorblind`; seaborn itself takes two seconds to import
    *("#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc"),
    *("#ca9161", "#fbafe4", "#949494", "#ece133", "#56b4e9"),
)
LINES: tuple[Any, ...] = (
    *("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2))),
    *((0, (3, 1, 1, 1)), (0, (1, 1))),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")
PAPER, OURS, GRID = "#4D4D4D", COLOURS[0], "#DDDDDD"
WIDTH, DPI = 5.0, 120  # inches: at 350 pixels a point of text is about a pixel
TEXT, SMALL = 11, 9.5
LIVE = "Vega-Lite"  # the name of the interactive form in a picture's file
MOST = 120_000  # bytes of a picture: a page with all its own has at most 3 MB
STYLE = {  # over seaborn's style `ticks`
    "axes.axisbelow": True,
    "axes.grid": False,
    "axes.labelsize": TEXT,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": TEXT,
    "grid.color": GRID,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
}
# Methods in many figures have the same look in all of them. There are more methods than colours:
# two of one colour differ in line or marker.
KNOWN = (
    *("SOLO", "FedAvg", "FedBN", "ADCOL", "FedProx", "FedRep", "Per-FedAvg", "MOON"),
    *("FedProto", "FedPall", "RUCR", "PartialFed", "Ditto", "DBE", "FedAPC", "I2PFL"),
    *("MPFT (Average)", "MPFT (Cluster, rate=0.1)", "MPFT (Cluster, rate=0.3)"),
    *("MPFT (Random, rate=0.1)", "MPFT (Random, rate=0.3)"),
)
ALIASES = {"SingleSet": "SOLO", "local": "SOLO", "Local": "SOLO", "PerfedAvg": "Per-FedAvg"}


class Picture(Figure):
    """A figure that needs no plotting backend. caption: its content, for readers who cannot see it.
    drawn_live: its interactive form, which the book reads from the file."""

    caption = ""
    drawn_live: dict[str, Any] | None = None

    def words(self) -> str:
        """The file's description: caption, axes, and the names of panels, rows and series."""
        axes = [ax for ax in self.axes if ax.axison and ax.get_label() != "<colorbar>"]
        x = self.get_supxlabel() or next((ax.get_xlabel() for ax in axes if ax.get_xlabel()), "")
        y = next((ax.get_ylabel() for ax in axes if ax.get_ylabel()), "")
        named = [
            label.get_text()
            for axis in (axes[0].yaxis, axes[0].xaxis)
            if isinstance(axis.get_major_locator(), ticker.FixedLocator)
            and not isinstance(axis.get_major_formatter(), ticker.ScalarFormatter)
            for label in axis.get_ticklabels()
        ]
        series = [label for ax in axes for label in ax.get_legend_handles_labels()[1]]
        lists = {"panels": [ax.get_title() for ax in axes], "ticks": named, "series": series}
        parts = [self.caption, *(legend.get_title().get_text() for legend in self.legends)]
        parts.append(" over ".join(filter(None, (y, x))))
        parts.append(self.drawn_live["description"] if self.drawn_live else "")
        for what, found in lists.items():
            names = [name for name in dict.fromkeys(found) if name.strip()]
            parts.append(f"{what}: {', '.join(names)}" if names else "")
        return " ".join("; ".join(filter(None, parts)).split())

    def png(self) -> bytes:
        """With a palette of 64 colours, a quarter of the size; of 256 if it shows images, or of
        fewer, if it is above `MOST`."""
        full = io.BytesIO()
        self.savefig(full, format="png", dpi=self.dpi)
        image, info = Image.open(full).convert("RGB"), PngInfo()
        info.add_itxt("Description", words := self.words())
        if self.drawn_live:
            live = json.dumps(self.drawn_live | {"description": words}, separators=(",", ":"))
            info.add_itxt(LIVE, live, zip=True)
        most = (256,) if any(ax.images for ax in self.axes) else ()
        for colours in (*most, 64, 32, 16):
            small = io.BytesIO()
            image.quantize(colours).save(small, format="png", optimize=True, pnginfo=info)
            if small.tell() <= MOST:
                break
        return small.getvalue()

    _repr_png_ = png


def picture(
    height: float, rows: int = 1, cols: int = 1, **shared: Any
) -> tuple[Picture, npt.NDArray[Any]]:
    """A picture of the standard width, and its axes (rows, cols)."""
    from seaborn import axes_style

    figure = Picture(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    with rc_context(axes_style("ticks") | STYLE):
        return figure, figure.subplots(rows, cols, squeeze=False, **shared)


def single(height: float, **shared: Any) -> tuple[Picture, Any]:
    """A picture of one panel, and its axes."""
    figure, axes = picture(height, **shared)
    return figure, axes[0, 0]


def panels(
    count: int, height: float, more: float, **shared: Any
) -> tuple[Picture, npt.NDArray[Any]]:
    """A picture of so many panels, two beside each other if there are several. Places without a
    panel are empty. height: of a row; more: of the whole."""
    rows = math.ceil(count / 2)
    figure, axes = picture(height * rows + more, rows, min(count, 2), **shared)
    for ax in axes.flat[count:]:
        ax.set_axis_off()
    return figure, axes


def looks(labels: Iterable[object]) -> dict[str, dict[str, Any]]:
    """Colour, line and marker of each label: a known method's own, free ones for the others."""
    names = list(dict.fromkeys(map(str, labels)))
    places = {n: KNOWN.index(ALIASES.get(n, n)) for n in names if ALIASES.get(n, n) in KNOWN}
    free = (place for place in count() if place not in places.values())
    places |= {name: next(free) for name in names if name not in places}
    parts = {"color": COLOURS, "linestyle": LINES, "marker": MARKERS}
    return {n: {what: of[places[n] % len(of)] for what, of in parts.items()} for n in names}


def label_axes(ax: Axes, x: str = "", y: str = "", title: str = "", grid: Any = None) -> None:
    """Texts of the standard size. grid: the axes with lines of a grid: x, y or both."""
    if grid:
        ax.grid(axis=grid, color=GRID)
    ax.set_xlabel(x, fontsize=TEXT)
    ax.set_ylabel(y, fontsize=TEXT)
    ax.set_title(title, fontsize=TEXT)


def legend_above(figure: Picture, ax: Axes, ncols: int = 3, title: str | None = None) -> None:
    """Put the legend above the axes, in as many columns as fit; title: a line above it."""
    handles, labels = ax.get_legend_handles_labels()
    while ncols > 1 and _inches(labels, ncols) > WIDTH:
        ncols -= 1
    figure.legend(
        *(handles, labels),
        loc="outside upper center",
        ncols=min(ncols, len(labels)),
        fontsize=SMALL,
        title=title,
        title_fontsize=SMALL,
        frameon=False,
        handlelength=2.6,
        columnspacing=1.2,
    )


def _inches(labels: Sequence[str], ncols: int) -> float:
    """The approximate width of a legend, filled column by column: letters and one handle each."""
    columns = [part for part in np.array_split(list(map(len, labels)), ncols) if len(part)]
    return sum(0.066 * float(part.max()) + 0.6 for part in columns)


def logarithmic_x(ax: Axes) -> None:
    """Set a logarithmic x axis with plain numbers at its ticks."""
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    few = math.log10(high / low) < 2.5
    ax.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(ticker.NullFormatter())
