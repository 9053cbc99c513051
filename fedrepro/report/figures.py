"""The figures of runs, drawn from saved arrays and frames."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator
from matplotlib.transforms import blended_transform_factory

from fedrepro import papers
from fedrepro.base.errors import FedReproError
from fedrepro.quantities.base import wide
from fedrepro.report import picture as shared
from fedrepro.report.claims import Part
from fedrepro.report.picture import Picture, Printed
from fedrepro.report.tables import AXES, Section, number

Along = Literal["round", "bytes"]
ACCURACY = "mean test accuracy (%)"
OVER = "Mean over seeds, with a {} from the lowest to the highest seed"
MOVES: dict[int, dict[str, Any]] = {  # of a rank in our order
    -1: {"ls": "-", "color": shared.COLOURS[0], "label": "higher with us"},
    1: {"ls": "--", "color": shared.COLOURS[1], "label": "lower with us"},
    0: {"ls": ":", "color": shared.PAPER, "label": "the same"},
}
BARS: dict[str, Any] = {"linestyle": "none", "markersize": 5.5, "capsize": 2.5}
THEIRS = {"color": shared.PAPER, "marker": "s", "mfc": "white", "label": "paper, mean ± std"}
MINE = {"color": shared.OURS, "marker": "o", "label": "ours, mean ± std"}
SIDES = (("published", -0.17, THEIRS), ("ours", 0.17, MINE))  # with their shift downwards
DIAMOND: dict[str, Any] = {"marker": "D", "color": shared.PAPER, "ls": "none", "markersize": 8}


def curves(
    frame: pd.DataFrame, x: Along = "round", ylabel: str = ACCURACY, printed: Printed = None
) -> Picture:
    """Test accuracy during training: one line per label, the mean over seeds until the first ends,
    in a band from the lowest to the highest seed. frame: from `Study.curves_of`. x="bytes": one
    client's traffic so far in MB (10^6 bytes), on a logarithmic axis; a label that sends nothing is
    level at its last accuracy. printed: the paper's final accuracies, as thin dotted lines."""
    figure, ax = shared.single(3.9 + 0.2 * math.ceil(frame.label.nunique() / 3))
    styles = shared.looks(frame.label)
    means = _means(frame, x)
    for index, (label, rows) in enumerate(means.groupby("label", sort=False)):
        _curve(ax, rows, styles[str(label)], index % 3)
        if (final := (printed or {}).get(str(label))) is not None:
            ax.axhline(final, color=styles[str(label)]["color"], linestyle=":", linewidth=1)
    if x == "bytes":
        shared.logarithmic_x(ax)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    shared.label_axes(ax, shared.ALONG[x], ylabel, grid="both")
    shared.legend_above(figure, ax)
    figure.drawn_live = shared.live_curves(means, ylabel, printed)
    figure.caption = "One seed" if means.seeds.max() == 1 else OVER.format("band")
    figure.caption += ". Thin dotted lines: the paper's final accuracies" * bool(printed)
    return figure


def _means(frame: pd.DataFrame, x: Along) -> pd.DataFrame:
    """Columns label, round, MB if x is bytes, mean, low, high, seeds, to each label's first end."""
    grouped = frame.groupby(["label", "round"], sort=False)
    rows = grouped.avg.agg(mean="mean", low="min", high="max", seeds="size")
    if x == "bytes":
        rows.insert(0, "MB", grouped.bytes.mean() / 1e6)
    rows = rows[rows.seeds == rows.groupby("label").seeds.transform("max")].reset_index()
    if x == "bytes":
        most = rows.groupby("label")[["MB", "round"]].transform("max")
        ends = (most.MB == 0) & (rows["round"] == most["round"])
        rows = rows[(rows.MB > 0) | ends]  # round 0 has sent nothing
    return rows


def _curve(ax: Axes, rows: pd.DataFrame, style: dict[str, Any], shift: int) -> None:
    """One label's mean and band. shift: the first marker, so that equal lines show all theirs."""
    along, label = rows.get("MB", rows["round"]), str(rows.label.iloc[0])
    if "MB" in rows and not rows.MB.any():
        del style["marker"]
        name = f"{label} (sends nothing)"
        ax.axhline(rows["mean"].iloc[-1], **style, linewidth=1.6, label=name)
        return
    every = (shift, max(1, len(rows) // 6)) if len(rows) > 8 else 1
    marks: dict[str, Any] = {"markevery": every, "markersize": 5.5, "markeredgewidth": 0}
    ax.plot(along, rows["mean"], **style, **marks, linewidth=1.8, label=label)
    if rows.seeds.max() > 1:
        ax.fill_between(along, rows.low, rows.high, color=style["color"], alpha=0.15, linewidth=0)


def sweep(frame: pd.DataFrame, xlabel: str, ylabel: str = ACCURACY) -> Picture:
    """One varied setting: one point per label in the order given, mean and standard deviation over
    seeds, each seed a thin dot. Labels ``mu=0.1`` and ``4 images`` are shortened to their values;
    ``FedAvg, N=10`` is on a line for the name before the comma. frame: label, seed, value."""
    figure, ax = shared.single(3.6)
    cut = frame.label.astype(str).str.removesuffix(" images").str.rpartition(", ")
    frame = frame.assign(line=cut[0], place=cut[2]).astype({"value": float})
    names, lines = list(dict.fromkeys(frame.place)), list(dict.fromkeys(frame.line))
    styles = list(shared.looks(lines).values())
    many = frame.label.duplicated().any()
    said = "Mean over seeds; bar: ± one standard deviation; grey: single seeds"
    figure.caption = said if many else "One seed"
    if len(lines) == 1:
        frame["line"] = "mean ± std over seeds" if many else "one seed"
        styles = [{"color": shared.OURS, "marker": "o", "linestyle": "-"}]
    how = {"linestyles": [one["linestyle"] for one in styles], "linewidth": 1.4, "capsize": 0.05}
    _points(ax, frame, "place", "line", styles, **how, errorbar="sd", markersize=7)
    frame["x"] = frame.place.map(names.index) + 0.12
    dots = {"color": shared.PAPER, "alpha": 0.7, "s": 16, "legend": False}
    shared.seaborn().scatterplot(frame, x="x", y="value", **dots, ax=ax)
    parts = [name.partition("=") for name in names]
    same = len({part[0] for part in parts}) == 1 and all(part[2] for part in parts)
    ax.set_xticks(range(len(names)), [part[2] for part in parts] if same else names)
    ax.set_xlim(-0.4, len(names) - 0.6)
    shared.label_axes(ax, xlabel, ylabel, grid="y")
    shared.legend_above(figure, ax, 2 if len(lines) < 3 else 4)
    return figure


def _points(
    ax: Any, frame: pd.DataFrame, x: str, hue: str, styles: Sequence[Mapping[str, Any]], **how: Any
) -> None:
    """Means of the column value with their bars, a series for each of `hue`."""
    colours, markers = ([one[key] for one in styles] for key in ("color", "marker"))
    how |= {"palette": colours, "markers": markers, "err_kws": {"linewidth": 1.4}}
    shared.seaborn().pointplot(frame, x=x, y="value", hue=hue, **how, ax=ax)
    ax.get_legend().remove()


def heat_map(frame: pd.DataFrame, printed: Printed = None) -> Picture:
    """Mean accuracy over a grid of two settings. frame: label (``mu=0.1, delta=0.2``, the first
    goes upwards), seed, value. printed: the paper's numbers by label, in a second line."""
    means = frame.groupby("label").value.mean()
    theirs = {k: f"\n(paper {number(v, 'percent')})" for k, v in (printed or {}).items()}
    texts = [number(mean, "percent") + theirs.get(k, "") for k, mean in means.items()]
    settings = [dict(part.split("=") for part in label.split(", ")) for label in means.index]
    places = pd.DataFrame(settings).astype(float).assign(value=means.to_numpy(), text=texts)
    down, across, *_ = places
    whole = places.pivot(index=down, columns=across).iloc[::-1]
    table = whole["value"].rename(index="{:g}".format, columns="{:g}".format)
    figure, ax = shared.single(1.2 + 0.75 * len(table))
    how = {"fmt": "", "annot_kws": {"size": shared.SMALL}, "cbar_kws": {"label": ACCURACY}}
    how |= {"annot": whole["text"].fillna(""), "cmap": "cividis"}
    shared.seaborn().heatmap(table, **how, ax=ax)
    ax.tick_params(axis="y", labelrotation=0)
    shared.label_axes(ax, across, down)
    figure.caption = "Mean over domains and seeds"
    return figure


def by_domain(cells: Sequence[Mapping[str, Any]]) -> Picture:
    """Variants side by side: one column per domain and their mean, one mark per label, the mean
    over seeds with the lowest and highest seed as a line. cells: from `Study.cells`."""
    frame = pd.DataFrame(cells)
    columns, labels = list(dict.fromkeys(frame.column)), list(dict.fromkeys(frame.method))
    figure, ax = shared.single(3.4 + 0.2 * len(labels) / 2)
    styles = shared.looks(labels)
    apart = {"dodge": 0.6 * (1 - 1 / len(labels)) or False, "linestyle": "none", "markersize": 6}
    _points(ax, frame, "column", "method", [*styles.values()], **apart, errorbar=("pi", 100))
    ax.set_xticks(range(len(columns)), [name.replace("-", "-\n", 1) for name in columns])
    for place in np.arange(len(columns) - 1) + 0.5:
        ax.axvline(place, color=shared.GRID, linewidth=0.8)
    shared.label_axes(ax, "", "test accuracy (%)", grid="y")
    shared.legend_above(figure, ax, 2)
    figure.caption = OVER.format("line") if frame.seed.nunique() > 1 else "One seed"
    return figure


def radar(cells: Sequence[dict[str, Any]] | pd.DataFrame) -> Picture:
    """Variants as closed lines around a centre: one spoke per domain, the mean over seeds. The
    spokes begin at the whole ten below the lowest value, so that lengths are no proportions. cells:
    from `Study.cells` or `wide`, in percent. `by_domain` draws the cells of two domains."""
    table = cells if isinstance(cells, pd.DataFrame) else wide(cells)
    table = table.drop(columns="avg", errors="ignore")
    if table.shape[1] < 3 and not isinstance(cells, pd.DataFrame):
        return by_domain(cells)
    angles = np.linspace(0, 2 * np.pi, table.shape[1], endpoint=False)
    figure, ax = shared.single(4.4 + 0.2 * len(table) / 2, subplot_kw={"projection": "polar"})
    styles = shared.looks(table.index).values()
    for (label, row), style in zip(table.iterrows(), styles, strict=True):
        ax.plot([*angles, angles[0]], [*row, row.iloc[0]], label=str(label), **style)
    ax.set_xticks(angles, table.columns)
    for text, angle in zip(ax.get_xticklabels(), angles, strict=True):  # beside the circle
        text.set_ha(("center", "left", "right")[int(np.sign(np.cos(angle).round(2)))])
    ax.set_ylim(low := np.floor(table.min().min() / 10) * 10, 100)
    ax.set_rlabel_position(180 / table.shape[1])
    ax.grid(color=shared.GRID)
    shared.legend_above(figure, ax, 2, title="test accuracy (%)")
    figure.drawn_live = shared.live_radar(table, low)
    figure.caption = f"One spoke per domain, from {low:g} % at the centre to 100 % at the rim"
    return figure


def filed(paper: str, table: str, rows: Sequence[str] = (), without: Sequence[str] = ()) -> Picture:
    """The same chart from the authors' own files, of all rows, some, or all except some.
    FedReproError: there is no such file."""
    found = papers.load(paper).filed
    if found is None or table not in found.domains:
        raise FedReproError(f"no file of {paper}'s authors holds {table} domain by domain")
    kept = found.domains[table]
    chosen = {r: v for r, v in kept.rows.items() if r not in without and (not rows or r in rows)}
    drawn = radar(pd.DataFrame.from_dict(chosen, orient="index", columns=list(kept.columns)))
    title = f"{papers.load(paper).short}, {table}: from the authors' own files"
    drawn.caption = f"{title}. {drawn.caption}"
    return drawn


def traffic(frame: pd.DataFrame) -> Picture:
    """Traffic: one row per label, one marker per kind of payload on a logarithmic axis. Downloads
    are filled and above, uploads are hollow. frame: label, kind (``down/model``,
    ``up/representations``, ...), bytes, and seed if there are several (their mean is drawn)."""
    table = frame.pivot_table(index="label", columns="kind", values="bytes", sort=False)
    table = table[sorted(table.columns)].fillna(0.0)
    kinds = [str(kind).split("/", 1) for kind in table]
    payloads = list(dict.fromkeys(payload for _, payload in kinds))
    figure, ax = shared.single(1.3 + 0.42 * len(table) + 0.22 * math.ceil(len(kinds) / 2))
    rows = np.arange(len(table))
    for (way, payload), column in zip(kinds, table, strict=True):
        place, up = payloads.index(payload), way == "up"
        colour, marker = shared.COLOURS[place % 8], shared.MARKERS[place % 12]
        look = {"color": colour, "mfc": "white" if up else colour, "label": f"{payload} {way}"}
        height = rows + (0.14 if up else -0.14)
        ax.plot(table[column].where(table[column] > 0), height, marker, **look)
    shared.logarithmic_x(ax)
    ax.xaxis.set_major_formatter(EngFormatter("B"))
    ax.set_yticks(rows, map(str, table.index))
    ax.invert_yaxis()
    shared.label_axes(ax, "traffic of the run, all clients (bytes)", grid="x")
    shared.legend_above(figure, ax, 2)
    figure.caption = "Filled: sent down to the clients. Hollow: sent up to the server"
    return figure


# The paper's numbers beside ours, from the frames of `verdicts`.


def beside(table: pd.DataFrame) -> Picture:
    """A figure of a frame of `verdicts.build_table`, of one data set and scale: one panel per
    column, methods downwards, the printed mean and deviation above ours."""
    section = Section(table, table.scale.iloc[0])
    methods, units = section.methods, {section.unit(column) for column in section.columns}
    figure, axes = shared.panels(len(section.columns), 0.85 + 0.27 * len(methods), 0.9, sharey=True)
    for ax, column in zip(axes.flat, section.columns, strict=False):
        cells = pd.DataFrame([section.cells.get((method, column), {}) for method in methods])
        for key, shift, look in SIDES:
            values, stds = cells[key].astype(float), cells[f"{key}_std"].astype(float).fillna(0)
            if not any(pd.notna(cell[f"{key}_std"]) for cell in section.cells.values()):
                look = look | {"label": look["label"].removesuffix(" ± std")}
            if values.notna().any():
                ax.errorbar(values, np.arange(len(methods)) + shift, xerr=stds, **look, **BARS)
        unit = section.unit(column)
        xlabel = "" if len(units) == 1 else AXES.get(unit, unit)
        shared.label_axes(ax, xlabel, "", section.heading(column), grid="both")
        ax.set_yticks(range(len(methods)), methods)
        ax.set_ylim(len(methods) - 0.5, -0.5)
        ax.locator_params(axis="x", nbins=4)
    if len(units) == 1:
        figure.supxlabel(AXES.get(*units, *units), fontsize=shared.TEXT)
    fullest = max(axes.flat, key=lambda ax: len(ax.get_legend_handles_labels()[1]))
    shared.legend_above(figure, fullest, 2, title=section.statement)
    spread = any("std" in label for label in fullest.get_legend_handles_labels()[1])
    figure.caption = "std: standard deviation over seeds" if spread else "Means over seeds"
    return figure


def order(rows: pd.DataFrame) -> Picture:
    """The order of the methods in one column: the paper's ranks left, ours right. Their line is
    solid where a method ranks higher with us, dashed where lower, dotted where equal. rows: from
    `verdicts.order`, of one table, data set, scale and column."""
    figure, ax = shared.single(1.3 + 0.36 * len(rows))
    for row in rows.itertuples():
        pair = [row.rank_published, row.rank_ours]
        look = MOVES[(pair[1] > pair[0]) - (pair[1] < pair[0])]
        ax.plot([0, 1], pair, marker="o", **look | {"label": row.method})
    ax.set_xticks([0, 1], ["paper", f"ours ({rows.scale.iloc[0]})"])
    for side, key, align in ((0, "rank_published", "right"), (1, "rank_ours", "left")):
        ax.get_xticklabels()[side].set_ha(align)
        how = {"textcoords": "offset points", "ha": align, "va": "center", "size": shared.SMALL}
        for rank, names in rows.groupby(key).method:  # one line per method that shares it
            ax.annotate("\n".join(names), (side, rank), (16 * side - 8, 0), **how)
    tau = float(rows.tau.iloc[0])
    ax.set_yticks(range(1, len(rows) + 1))
    inches = rows.method.map(shared.long).max() + 0.2  # of a name, beside a line of 4.2
    room = min(max(0.75, inches / max(4.2 - 2 * inches, 0.1)), 3.2)
    ax.set_xlim(-room, 1 + room)
    ax.set_ylim(len(rows) + 0.5, 0.5)
    ax.spines["bottom"].set_visible(False)
    ax.tick_params(axis="x", length=0)
    agreement = "" if math.isnan(tau) else f", Kendall's tau = {number(tau, 'ratio')}"
    shared.label_axes(ax, "", "rank (1 is best)", f"{rows.column.iloc[0]}{agreement}")
    keys = [Line2D([], [], marker="o", **look) for look in MOVES.values()]
    shared.legend_above(figure, ax, keys=keys)
    figure.caption = "Kendall's tau is 1 for the paper's own order and −1 for the reverse"
    return figure


def leads(rows: Sequence[tuple[str, Part | None]]) -> Picture:
    """Leads over a rival, ours with the interval beside the printed one: one row per data set of a
    claim, under the claim's own row, which has no part. Hollow: it cannot answer yet."""
    figure, ax = shared.single(1.1 + 0.23 * len(rows))
    for place, (name, part) in enumerate(rows):
        if part is None:
            at = blended_transform_factory(figure.transFigure, ax.transData)
            text = ax.text(
                0.015, place, name, transform=at, va="center", size=shared.SMALL, zorder=3
            )
            text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})
            text.set_in_layout(False)
            continue
        least, face = part.weakest, shared.OURS if part.decides(part.weakest) else "white"
        if least.printed is not None:
            ax.plot(least.printed, place, **DIAMOND)
        ax.hlines(place, *least.between(), color=shared.OURS, linewidth=2)
        ax.plot(least.mean, place, "o", color=shared.OURS, mfc=face)
    ax.plot([], [], "o-", color=shared.OURS, label="ours, 95 % interval")
    said = "still rising, earlier settings or one seed"
    ax.plot([], [], "o", color=shared.OURS, mfc="white", label=said)
    ax.plot([], [], **DIAMOND, label="printed")
    ax.axvline(0, color=shared.PAPER, linewidth=1)
    parts = {place: part for place, (_, part) in enumerate(rows) if part}
    ax.set_yticks(list(parts), [rows[place][0] for place in parts])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(rows) - 0.5, -0.7)
    shared.label_axes(ax, "lead over the rival, in points", grid="x")
    shared.legend_above(figure, ax)
    hollow = sum(not part.decides(part.weakest) for part in parts.values())
    intervals = [part.weakest.between() for part in parts.values()]
    above, below = sum(low > 0 for low, _ in intervals), sum(high < 0 for _, high in intervals)
    figure.caption = (
        f"Main claims on their data sets, {len(parts)} rows: our lead over the rival that supports "
        "the claim least, with its 95 % interval, beside the printed lead, in points. Our interval "
        f"is above 0 in {above} rows, below 0 in {below}, and contains 0 in "
        f"{len(parts) - above - below}; the {hollow} rows with hollow markers cannot answer yet"
    )
    return figure
