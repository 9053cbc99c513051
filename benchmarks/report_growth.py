"""Views of the stored measurements of growth: slopes with their intervals, figures, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter
from report import File, each, machine, protocol, stored, table
from scipy import stats

from fedrepro.base.errors import FedReproError
from fedrepro.report.picture import (
    COLOURS,
    GRID,
    LINES,
    MARKERS,
    PAPER,
    SMALL,
    Picture,
    label_axes,
    logarithmic_x,
    picture,
)
from fedrepro.report.tables import Html

AXES = {"clients": "clients", "parameters": "trainable parameters", "pixels": "pixels of an image"}
MEASURES = {"seconds": "seconds per round", "mib": "memory (MiB)"}
PHASES = {"train": "training", "messages": "messages", "server": "server", "evaluate": "tests"}


class Slope(NamedTuple):
    """Exponent of a power law with its 95 % interval, and the least and greatest x it is of."""

    value: float
    low: float
    high: float
    start: float
    end: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def slope(x: Sequence[float], y: Sequence[float]) -> Slope | None:
    """Slope of log y over log x on the larger half of the places x, by least squares; None where
    some y there is not positive. FedReproError: fewer than two places."""
    places = sorted(set(x))
    if len(places) < 2:
        raise FedReproError("no slope of a single place: measure two or more")
    start = places[min(len(places) // 2, len(places) - 2)]
    pairs = np.array([(a, b) for a, b in zip(x, y, strict=True) if a >= start], dtype=float)
    if not (pairs > 0).all():
        return None
    line = stats.linregress(*np.log(pairs).T)
    freedom = len(pairs) - 2
    half = stats.t.ppf(0.975, freedom) * line.stderr if freedom else float("nan")
    return Slope(line.slope, line.slope - half, line.slope + half, start, places[-1])


def growth_frame(file: File) -> pd.DataFrame:
    """method, x, process, seconds of a round, whole and by phase; mib, the memory of the process
    beyond what every training takes; operations, where they were counted. A row a timed round."""
    warm, rows = file["settings"]["warm_up"], []
    for method, points in file["results"].items():
        for point in points:
            for process, one in enumerate(point["processes"]):
                fixed = {"method": method, "x": point["x"], "process": process}
                fixed["mib"] = one["peak"] - one["before"]
                for number in range(warm, len(one["seconds"])):
                    phases = {name: values[number] for name, values in one["phases"].items()}
                    facts = {"seconds": one["seconds"][number], "operations": one["operations"]}
                    rows.append({**fixed, **facts, **phases})
    return pd.DataFrame(rows)


def observed(part: pd.DataFrame, measure: str) -> pd.DataFrame:
    """x and the independent values of a measure: memory once a process, time every round."""
    once = part.drop_duplicates(["x", "process"]) if measure == "mib" else part
    return once[["x", measure]].rename(columns={measure: "y"})


def slopes(files: Iterable[File]) -> pd.DataFrame:
    """Slope of time and memory of each method on each axis, with a verdict, as texts."""
    rows = []
    for file in files:
        for method, part in growth_frame(file).groupby("method", sort=False):
            counted = part.dropna(subset="operations")
            work = slope(counted.x, counted.operations) if len(counted) else None
            for measure, name in MEASURES.items():
                values = observed(part, measure)
                fitted = slope(values.x, values.y)
                if fitted is None:
                    continue
                rows.append(
                    {
                        "against": AXES[file["axis"]],
                        "method": str(method),
                        "of": name,
                        "slope [95 % interval]": str(fitted),
                        "fitted over": f"{fitted.start:,.0f} to {fitted.end:,.0f}",
                        "slope of operations": f"{work.value:.2f}" if work else "not counted",
                        "growth": _verdict(fitted, work if measure == "seconds" else None),
                        "engine": file["settings"]["engine"],
                        "machine": machine(file),
                    }
                )
    return pd.DataFrame(rows)


def _verdict(fitted: Slope, work: Slope | None) -> str:
    if fitted.low <= 1:
        return "linear or better"
    if work is not None and fitted.low <= work.value:
        return "more than linear, as the method's operations"
    return "more than linear"


def slope_table() -> Html:
    """`slopes` of every stored measurement of growth."""
    return table(slopes(stored("growth-*.json").values()).to_dict("records"))


def phase_slopes(axis: str) -> Html:
    """How each phase of a round grows, and its share of the largest round."""
    rows = []
    for file in stored(f"growth-{axis}-*.json").values():
        for method, part in growth_frame(file).groupby("method", sort=False):
            last = part[part.x == part.x.max()].median(numeric_only=True)
            for phase in (name for name in PHASES if name in part):
                rows.append(
                    {
                        "phase": f"{method}: {PHASES[phase]}",
                        "seconds at the largest": f"{last[phase]:.2f}",
                        "share": f"{100 * last[phase] / last.seconds:.0f} %",
                        "slope [95 % interval]": str(slope(part.x, part[phase]) or "none"),
                    }
                )
    return table(rows)


def growth(axis: str) -> Picture | Html:
    """Seconds per round and memory on one axis, a picture a stored measurement."""
    files = stored(f"growth-{axis}-*.json").values()
    return each((growth_picture(file), _growth_protocol(file)) for file in files)


def _growth_protocol(file: File) -> Html:
    asked = file["settings"]
    points = [point["point"] for found in file["results"].values() for point in found]
    varied = {
        name: ", ".join(dict.fromkeys(str(point[name]) for point in points))
        for name in ("model", "clients", "size")
    }
    return protocol(
        f"{varied['model']}; clients: {varied['clients']}, of {asked['images']} images each; sides "
        f"of the images: {varied['size']} pixels; batches of {asked['batch']}, one local epoch; "
        f"engine {asked['engine']}; {machine(file)}. A point: median over {asked['repeat']} "
        f"processes with {asked['rounds']} timed rounds each, bars from the least to the greatest "
        "value; dashed: the fitted slope; grey: growth by as much as the axis. "
        f"`{file['command']}`"
    )


def growth_picture(file: File) -> Picture:
    """Two panels over one axis: seconds per round, and memory beyond what every training takes."""
    frame = growth_frame(file)
    figure, axes = picture(6.4, 2, sharex=True)
    for ax, (measure, name) in zip(axes[:, 0], MEASURES.items(), strict=True):
        for index, (method, part) in enumerate(frame.groupby("method", sort=False)):
            _growth_line(ax, part, measure, str(method), index)
        ax.set_yscale("log")
        ax.set_ylim(top=4 * ax.get_ylim()[1])  # room for the legend
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.grid(color=GRID)
        ax.legend(fontsize=SMALL, loc="upper left", frameon=False, handlelength=2.6)
        label_axes(ax, "", name)
    logarithmic_x(axes[-1, 0])
    if frame.x.max() >= 10_000:
        axes[-1, 0].xaxis.set_major_formatter(EngFormatter(sep=""))
    label_axes(axes[-1, 0], AXES[file["axis"]], MEASURES["mib"])
    figure.caption = (
        "Points: medians, with bars from smallest to largest. Dashed: the fitted slope, with "
        "its 95 % interval in brackets. Grey: growth in proportion to the axis"
    )
    return figure


def _growth_line(ax: Axes, part: pd.DataFrame, measure: str, method: str, index: int) -> None:
    """Medians with bars, the fitted line over them, and what linear growth to the end would be."""
    pairs = observed(part, measure)
    values = pairs.groupby("x").y
    middle = values.median()
    fitted = slope(pairs.x, pairs.y)
    ax.errorbar(
        *(middle.index, middle),
        yerr=(middle - values.min(), values.max() - middle),
        color=COLOURS[index],
        marker=MARKERS[index],
        linestyle="none",
        capsize=2.5,
        markersize=5.5,
        label=f"{method}, slope {fitted or 'none'}",
    )
    if fitted is None:
        return
    half = middle[middle.index >= fitted.start]
    level = np.exp(np.log(half).mean() - fitted.value * np.log(half.index).to_numpy().mean())
    ends = np.array([fitted.start, fitted.end])
    ax.plot(ends, level * ends**fitted.value, color=COLOURS[index], linestyle=LINES[1])
    last = float(middle.iloc[-1])
    places = np.array([middle.index[0], middle.index[-1]], dtype=float)
    ax.plot(places, last * places / places[-1], color=PAPER, linewidth=0.6, alpha=0.6, zorder=1)
