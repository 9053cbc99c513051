"""Shared by all figures: size, style, the look of series, display, and the interactive forms.
Series differ in line or marker as well as in colour; text can be read on a narrow phone."""

import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import rc_context, ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath
from PIL import Image
from PIL.PngImagePlugin import PngInfo

Spec = dict[str, Any]
Panels = npt.NDArray[Any]
Printed = Mapping[str, float] | None  # the paper's numbers by label
COLOURS = (  # seaborn's palette `colorblind`; its two palest replaced, and one more
    *("#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#ca9161"),
    *("#903018", "#949494", "#5a3df5", "#56b4e9", "#186060"),
)
LINES: tuple[Any, ...] = (
    *("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2))),
    *((0, (3, 1, 1, 1)), (0, (1, 1))),
)
DASHES = {"-": [1, 0], "--": [6, 3], "-.": [6, 3, 1, 3], ":": [1, 3]}  # these are Vega-Lite's
MEASURED = ("mean", "low", "high", "printed", "value", "percent", "MB")
DOT: Spec = {"type": "point", "filled": True}
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")
PAPER, OURS, GRID = "#4D4D4D", COLOURS[0], "#DDDDDD"
ALONG = {"round": "communication round", "bytes": "one client's traffic so far (MB)"}
WIDTH, DPI = 5.0, 120  # inches: at 350 pixels a point of text is about a pixel
TEXT, SMALL = 11, 9.5
LIVE = "Vega-Lite"  # the name of the interactive form in a picture's file
MOST = 120_000  # bytes of a picture: a page with all its own has at most 3 MB
STYLE = {  # over seaborn's style `ticks`
    **dict.fromkeys(("axes.spines.right", "axes.spines.top"), False),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), SMALL),
    **{"axes.labelsize": TEXT, "grid.color": GRID},
}
# A method has the same look in all figures. One text per colour: methods that a paper compares
# have different ones where eleven are enough; two of one colour differ in line and marker.
KNOWN = (
    *("SOLO; FedDyn; MPFT (Random, rate=0.3)", "FedAvg", "FedBN; MPFT (Average); FedProc"),
    *("ADCOL; DBE", "FedProx", "FedRep; FPL; Ditto"),
    *("Per-FedAvg; FedAPC; MPFT (Cluster, rate=0.1)", "MOON; PartialFed", "FedProto"),
    *("FedPall; MPFT (Cluster, rate=0.3)", "RUCR; I2PFL; MPFT (Random, rate=0.1)"),
)
PLACES = {n: i + k * 11 for i, names in enumerate(KNOWN) for k, n in enumerate(names.split("; "))}
ALIASES = {"SingleSet": "SOLO", "local": "SOLO", "Local": "SOLO", "PerfedAvg": "Per-FedAvg"}
ALIASES["MPFT"] = "MPFT (Average)"


class Picture(Figure):
    """A figure that needs no plotting backend. caption: what it shows and how to read it, below it.
    drawn_live: its interactive form, which the book reads from the file."""

    caption = ""
    drawn_live: Spec | None = None

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
        titles = (legend.get_title().get_text() for legend in self.legends)
        live = (self.drawn_live or {}).get("description", "")
        parts = [self.caption, *titles, " over ".join(filter(None, (y, x))), live]
        for what, found in lists.items():
            names = [name for name in dict.fromkeys(found) if name.strip()]
            parts.append(f"{what}: {', '.join(names)}" if names else "")
        return " ".join("; ".join(filter(None, parts)).split())

    def png(self) -> bytes:
        """With 128 colours, a third of the size; 256 if it shows images; fewer above `MOST`."""
        full = io.BytesIO()
        self.savefig(full, format="png", dpi=self.dpi, pil_kwargs={"compress_level": 0})
        image, info = Image.open(full).convert("RGB"), PngInfo()
        info.add_itxt("Description", words := self.words())
        info.add_itxt("Caption", self.caption)
        if self.drawn_live:
            live = json.dumps(self.drawn_live | {"description": words}, separators=(",", ":"))
            info.add_itxt(LIVE, live, zip=True)
        most = (256,) if any(ax.images for ax in self.axes) else ()
        for colours in (*most, 128, 64, 32, 16):
            small, fewer = io.BytesIO(), image.quantize(colours)
            fewer.save(small, format="png", optimize=True, pnginfo=info)
            if small.tell() <= MOST:
                break
        return small.getvalue()

    _repr_png_ = png


def seaborn() -> Any:
    """The package, which takes two seconds to import."""
    import seaborn

    return seaborn


def picture(height: float, rows: int = 1, cols: int = 1, **shared: Any) -> tuple[Picture, Panels]:
    """A picture of the standard width, and its axes (rows, cols)."""
    figure = Picture(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    with rc_context(seaborn().axes_style("ticks") | STYLE):
        return figure, figure.subplots(rows, cols, squeeze=False, **shared)


def single(height: float, **shared: Any) -> tuple[Picture, Any]:
    """A picture of one panel, and its axes."""
    figure, axes = picture(height, **shared)
    return figure, axes[0, 0]


def panels(count: int, height: float, more: float, **shared: Any) -> tuple[Picture, Panels]:
    """A picture of panels, two beside each other. height: of a row; more: of the whole."""
    rows = math.ceil(count / 2)
    figure, axes = picture(height * rows + more, rows, min(count, 2), **shared)
    for ax in axes.flat[count:]:
        ax.set_axis_off()
    return figure, axes


def looks(labels: Iterable[object]) -> dict[str, dict[str, Any]]:
    """Colour, line and marker of each label: a known method's own, free ones for the others,
    first of colours that no known one has."""
    names, many = list(dict.fromkeys(map(str, labels))), len(COLOURS)
    known = {n: PLACES[ALIASES.get(n, n)] for n in names if ALIASES.get(n, n) in PLACES}
    taken = {place % many for place in known.values()}
    every = range(many * (len(names) + 2))  # more than enough
    order = sorted(every, key=lambda place: place // many + (place % many in taken))
    free = (place for place in order if place not in known.values())
    places = known | {name: next(free) for name in names if name not in known}
    parts = {"color": COLOURS, "linestyle": LINES, "marker": MARKERS}
    return {n: {what: of[places[n] % len(of)] for what, of in parts.items()} for n in names}


def label_axes(ax: Axes, x: str = "", y: str = "", title: str = "", grid: Any = None) -> None:
    """Texts of an axes. grid: the axes with lines of a grid: x, y or both."""
    if grid:
        ax.grid(axis=grid, color=GRID)
    ax.set(xlabel=x, ylabel=y)
    ax.set_title(title, fontsize=TEXT)  # takes no size from the style


def long(label: str) -> float:
    """Width of a small text in inches."""
    return float(TextPath((0, 0), label, SMALL).get_extents().width / 72)


def legend_above(figure: Any, ax: Axes, ncols: int = 3, title: Any = None, keys: Any = ()) -> None:
    """Put the legend above the axes, in as many columns as fit; title: a line above it; keys: what
    it explains instead of the axes' own series."""
    handles = keys or ax.get_legend_handles_labels()[0]
    labels = [str(one.get_label()) for one in handles]
    widths = [long(label) for label in labels]
    splits = (np.array_split(widths, n) for n in range(min(ncols, len(labels)), 1, -1))
    # Columns are filled one by one; beside its longest text each has a handle and two gaps.
    fit = (one for one in splits if sum(part.max() + 0.62 for part in one) <= WIDTH)
    ncols = len(next(fit, [widths]))
    text = {"title": title, "fontsize": SMALL, "title_fontsize": SMALL}
    look = {"frameon": False, "handlelength": 2.6, "columnspacing": 1.2, **text}
    figure.legend(handles, labels, loc="outside upper center", ncols=ncols, **look)


def logarithmic_x(ax: Axes) -> None:
    """Set a logarithmic x axis with plain numbers at its ticks."""
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    few = math.log10(high / low) < 2.5
    ax.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(ticker.NullFormatter())


# Interactive forms, as Vega-Lite with their data inside: a page of the book draws them in place of
# the picture and sets width, columns and theme (`book/_static/interactive.js`). Written directly:
# Altair's import takes a second in every kernel, plotly's script is five times as large as Vega's.


def _spec(
    rows: pd.DataFrame, said: str, names: Sequence[str], list_of: str = "Highlight", **what: Any
) -> Spec:
    """A Vega-Lite figure. said: a sentence with a number, also in the picture's description.
    names: what can be `chosen` in a list beside the figure."""
    numeric = pd.api.types.is_numeric_dtype
    parse = {str(c): "number" if numeric(rows[c]) else "string" for c in rows}
    csv = rows.to_csv(index=False, float_format="%.6g")
    bind = {"input": "select", "options": names, "name": f"{list_of} "}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",  # a name; nothing loads it
        "description": said,
        "data": {"values": csv, "format": {"type": "csv", "parse": parse}},
        "params": [{"name": "chosen", "value": names[0], "bind": bind}],
        **what,
    }


def _layer(mark: Any, encoding: Spec, *transform: Spec, clicked: str = "", **more: Any) -> Spec:
    """clicked: the field of which a value can be clicked in the legend."""
    select = {"type": "point", "fields": [clicked]}
    params = [{"name": "clicked", "select": select, "bind": "legend"}] if clicked else []
    return {"mark": mark, "encoding": encoding, "transform": transform, "params": params, **more}


def _at(field: str, kind: str = "nominal", **more: Any) -> Spec:
    return {"field": field, "type": kind, **more}


def _number(field: str, **more: Any) -> Spec:
    return _at(field, "quantitative", **more)


def _told(*fields: str, **titled: str) -> list[Spec]:
    """The tooltip of a mark; measured numbers have four digits."""
    titles = dict(zip(fields, fields, strict=True)) | titled
    return [
        _number(f, title=t, format=",.4~r") if f in MEASURED else _at(f, title=t)
        for f, t in titles.items()
    ]


def _lit(field: str, value: float = 1) -> Spec:
    """Full opacity for names chosen in the list and in the legend."""
    chosen = f"chosen == 'all' || datum.{field} == chosen"
    test = {"and": [{"param": "clicked"}, chosen]}
    return {"condition": {"test": test, "value": value}, "value": value / 8}


def _styled(labels: Sequence[str]) -> tuple[Spec, Spec]:
    """Colour and dashes of methods' lines, as in the static figures; and the same as a fill."""
    styles = list(looks(labels).values())
    dashes = [DASHES[s] if isinstance(s := one["linestyle"], str) else list(s[1]) for one in styles]
    colours = {"domain": labels, "range": [one["color"] for one in styles]}
    legend = {"symbolType": "stroke", "symbolOpacity": 1, "symbolStrokeWidth": 2}
    colour = _at("label", title=None, scale=colours, legend=legend)
    dashed = colour | {"scale": {"domain": labels, "range": dashes}}
    return {"stroke": colour, "strokeDash": dashed}, {"fill": colour}


def _extremes(values: pd.Series, what: str) -> str:
    highest = f"highest {values.idxmax()} with {values.max():.2f}"
    return f"{what}, {highest}, lowest {values.idxmin()} with {values.min():.2f}"


def live_curves(rows: pd.DataFrame, ylabel: str, printed: Printed) -> Spec:
    """As `figures.curves` draws them, from the same rows."""
    if printed:
        rows = rows.assign(printed=rows.label.map(printed))
    labels = [str(label) for label in rows.label.unique()]
    told = _told(*rows.columns.drop(["low", "high"]), low="lowest seed", high="highest seed")
    up, (line, fill) = _number("mean", title=ylabel, scale={"zero": False}), _styled(labels)
    line |= {"y": up, "opacity": _lit("label")}
    band = {"y": up | {"field": "low"}, "y2": {"field": "high"}, "opacity": _lit("label", 0.16)}
    near = {"name": "near", "select": {"type": "point", "on": "pointerover", "nearest": True}}
    seen = {"or": [{"param": "near", "empty": False}, "datum.points == 1"]}
    shown = {"condition": {"test": seen, "value": 1}, "value": 0}
    dot = {"y": up, "opacity": shown, "tooltip": told}
    counted = {"joinaggregate": [{"op": "count", "as": "points"}], "groupby": ["label"]}
    layers = [
        _layer("area", band | fill),
        _layer("line", line, clicked="label"),
        _layer(DOT | {"size": 60}, dot | fill, counted, params=[near]),
    ]
    across: Spec = {"x": {"value": 0}, "x2": {"value": "width"}}
    x = _number("round", title=ALONG["round"])
    if "MB" in rows:
        x = _number("MB", title=ALONG["bytes"], scale={"type": "log", "nice": False})
        rule = {"type": "rule", "strokeWidth": 2}
        level = line | across | {"tooltip": told}
        silent = _layer(rule, level, {"filter": "datum.MB == 0"})
        layers = [{"transform": [{"filter": "datum.MB > 0"}], "layer": layers}, silent]
    if printed:
        final = [{"op": "min", "field": "printed", "as": "printed"}]
        level = across | {"y": _number("printed", title=ylabel), "stroke": line["stroke"]}
        level |= {"tooltip": _told("label", "printed"), "opacity": _lit("label")}
        rule = {"type": "rule", "strokeWidth": 1, "strokeDash": [1, 3]}
        layers.append(_layer(rule, level, {"aggregate": final, "groupby": ["label"]}))
    said = _extremes(rows.groupby("label", sort=False)["mean"].last(), "at the end")
    return _spec(rows, said, ["all", *labels], height=340, layer=layers, encoding={"x": x})


def live_embedding(points: pd.DataFrame, by: str, groups: Sequence[str]) -> Spec:
    """One panel per label; colour and shape show domains or classes."""
    key = "domain" if by == "domain" else "cls"
    rows = points[["label", "domain", "cls", "x", "y"]].round(2)
    encoding = {
        **{axis: _number(axis, axis=None) for axis in ("x", "y")},
        "color": _at(key, title=by, scale={"domain": groups, "range": COLOURS}),
        "shape": _at(key, title=by, scale={"domain": groups, "range": SHAPES}),
        "opacity": _lit(key, 0.85),
        "tooltip": _told("label", "domain", cls="class"),
    }
    sizes, labels = rows.value_counts(key), list(rows.label.unique())
    counted = ", ".join(f"{sizes[group]} of {group}" for group in groups)
    said = f"{len(rows)} points in {len(labels)} panels: {counted}"
    panel = _layer(DOT | {"size": 28}, encoding, clicked=key)
    facet = _at("label", title=None, sort=labels)
    return _spec(rows, said, ["all", *groups], facet=facet, spec=panel)


def live_confusion(frame: pd.DataFrame) -> Spec:
    """One panel per domain for the chosen method. frame: as in `images.confusion`."""
    classes, methods = sorted(frame.cls.unique()), list(frame.method.unique())
    first = frame[frame.method == methods[0]]
    wrong = first.percent.where(first.cls != first.predicted, 0)
    most = first.loc[wrong.idxmax()]
    said = f"{most.method} most often takes {most.cls} for {most.predicted} on {most.domain}: "
    said += f"{wrong.max():.1f} % of its images"
    order: Spec = {"sort": classes, "scale": {"domain": classes}}
    shade = {"domain": [0, 100], "range": [0.04, 1]}
    encoding = {
        "x": _at("predicted", title="predicted class", **order),
        "y": _at("cls", title="true class", **order),
        "opacity": _number("percent", title="% of the true class", scale=shade),
        "tooltip": _told("method", "domain", "predicted", "percent", "images", cls="true class"),
    }
    chosen = [{"filter": "datum.method == chosen"}]
    facet = _at("domain", title=None, sort=list(frame.domain.unique()))
    how = {"transform": chosen, "facet": facet, "spec": _layer("rect", encoding)}
    how["resolve"] = {"axis": {"x": "independent"}}  # else a place without a panel has one, too
    return _spec(frame, said, methods, "Method", **how)


def live_radar(wide: pd.DataFrame, low: float) -> Spec:
    """As `figures.radar` draws it, around a centre of `low` percent."""
    spokes, labels = list(wide.columns), list(wide.index)
    rows = wide.rename_axis("label").reset_index().melt("label", spokes, "domain", "value")
    rows["spoke"] = rows.domain.map(spokes.index)
    turned = [
        {"calculate": f"(datum.value - {low}) * {turn}(2 * PI * datum.spoke / {len(spokes)})"}
        | {"as": axis}
        for axis, turn in (("x", "cos"), ("y", "sin"))
    ]
    scale = {"domain": [-1.4 * (100 - low), 1.4 * (100 - low)]}
    plane = {axis: _number(axis, axis=None, scale=scale) for axis in ("x", "y")}
    rings = range(round(low), 101, 10 if low >= 50 else 20)
    corners = [{"value": ring, "spoke": i} for ring in rings for i in range(len(spokes))]
    beyond, flat = 100 + 0.18 * (100 - low), math.cos(math.pi / len(spokes))
    named: list[Any] = [name.replace("-", "_").split("_") for name in spokes]  # a word per line
    texts = [{"value": beyond, "spoke": i, "text": words} for i, words in enumerate(named)]
    for ring in rings:  # in the middle of a side
        texts.append({"value": low + (ring - low) * flat, "spoke": 0.5, "text": f"{ring} %"})
    web = {"detail": _at("value"), "order": _number("spoke"), **plane}
    (line, fill), lit = _styled(labels), {"opacity": _lit("label"), **plane}
    line |= lit | {"order": _number("spoke")}
    fill |= lit | {"tooltip": _told("label", "domain", value="test accuracy (%)")}
    closed = {"type": "line", "interpolate": "linear-closed"}
    thin = closed | {"color": "#999", "strokeWidth": 0.6}
    layers = [
        _layer(thin, web, *turned, data={"values": corners}),
        _layer(closed, line, *turned, clicked="label"),
        _layer(DOT | {"size": 45}, fill, *turned),
        _layer("text", plane | {"text": _at("text")}, *turned, data={"values": texts}),
    ]
    said = _extremes(rows.set_index(rows.label + " on " + rows.domain).value, "by domain")
    more: Spec = {"title": "test accuracy (%)", "view": {"stroke": None}}
    return _spec(rows, said, ["all", *labels], layer=layers, **more)
