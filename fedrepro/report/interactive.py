"""Interactive figures for pointer and keyboard, as Vega-Lite with their data inside.

A `Picture` has them in its file; a page of the book draws them instead of the picture and sets
width, columns and theme (`book/_static/interactive.js`). They are written in Vega-Lite directly:
Altair's import takes a second in every kernel, plotly's script is five times as large as Vega's.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedrepro.report.picture import COLOURS, looks

Spec = dict[str, Any]
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
DASHES = {"-": [1, 0], "--": [6, 3], "-.": [6, 3, 1, 3], ":": [1, 3]}


def _spec(rows: pd.DataFrame, said: str, **what: Any) -> Spec:
    """A Vega-Lite figure. said: a sentence with a number, also in the picture's description."""
    numeric = pd.api.types.is_numeric_dtype
    parse = {str(c): "number" if numeric(rows[c]) else "string" for c in rows}
    csv = rows.to_csv(index=False, float_format="%.6g")
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",  # a name; nothing loads it
        "description": said,
        "data": {"values": csv, "format": {"type": "csv", "parse": parse}},
        **what,
    }


def _at(field: str, kind: str = "nominal", title: str | None = "", **more: Any) -> Spec:
    """A channel; its title is the field's name by default."""
    return {"field": field, "type": kind, "title": field if title == "" else title, **more}


def _number(field: str, title: str | None = "", **more: Any) -> Spec:
    return _at(field, "quantitative", title, **more)


def _told(*fields: str, **titled: str) -> list[Spec]:
    """The tooltip of a mark."""
    return [_at(field) for field in fields] + [_at(field, title=t) for field, t in titled.items()]


def _pick(what: str, names: Sequence[str], every: bool = True) -> list[Spec]:
    options = ["all", *names] if every else list(names)
    bind = {"input": "select", "options": options, "name": f"{what} "}
    return [{"name": "chosen", "value": options[0], "bind": bind}]


def _click(field: str) -> list[Spec]:
    return [{"name": "clicked", "select": {"type": "point", "fields": [field]}, "bind": "legend"}]


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


def curves(rows: pd.DataFrame, ylabel: str, printed: Mapping[str, float] | None = None) -> Spec:
    """As `figures.curves` draws them. rows: from `means`."""
    if printed:
        rows["printed"] = rows.label.map(printed)
    labels = [str(label) for label in rows.label.unique()]
    said = _extremes(rows.groupby("label", sort=False)["mean"].last(), "at the end")
    told = _told(*rows.columns.drop(["low", "high"]), low="lowest seed", high="highest seed")
    up, (line, fill) = _number("mean", ylabel, scale={"zero": False}), _styled(labels)
    line |= {"y": up, "opacity": _lit("label")}
    band = {"y": up | {"field": "low"}, "y2": {"field": "high"}, "opacity": _lit("label", 0.16)}
    near = {"name": "near", "select": {"type": "point", "on": "pointerover", "nearest": True}}
    seen = {"or": [{"param": "near", "empty": False}, "datum.points == 1"]}
    dot = {"condition": {"test": seen, "value": 1}, "value": 0}
    counted = {"joinaggregate": [{"op": "count", "as": "points"}], "groupby": ["label"]}
    layers: list[Spec] = [
        {"mark": "area", "encoding": band | fill},
        {"mark": "line", "encoding": line, "params": _click("label")},
        {
            "params": [near],
            "transform": [counted],
            "mark": {"type": "point", "filled": True, "size": 60},
            "encoding": {"y": up, "opacity": dot, "tooltip": told} | fill,
        },
    ]
    along = _number("round", "communication round")
    if "MB" in rows:
        scale = {"type": "log", "nice": False}
        along = _number("MB", "one client's traffic so far (MB)", scale=scale)
        level = {
            "transform": [{"filter": "datum.MB == 0"}],
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": line | {"x": {"value": 0}, "x2": {"value": "width"}, "tooltip": told},
        }
        layers = [{"transform": [{"filter": "datum.MB > 0"}], "layer": layers}, level]
    if printed:
        layers.append(_printed(ylabel, line["stroke"]))
    pick = _pick("Highlight", labels)
    return _spec(rows, said, height=340, params=pick, layer=layers, encoding={"x": along})


def _printed(ylabel: str, stroke: Spec) -> Spec:
    level = {"y": _number("printed", ylabel), "x": {"value": 0}, "x2": {"value": "width"}}
    final = {"op": "min", "field": "printed", "as": "printed"}
    return {
        "transform": [{"aggregate": [final], "groupby": ["label"]}],
        "mark": {"type": "rule", "strokeWidth": 1, "strokeDash": [1, 3]},
        "encoding": level | {"stroke": stroke, "tooltip": _told("label", "printed")},
    }


def means(frame: pd.DataFrame, x: str) -> pd.DataFrame:
    """Columns label, round, MB if x is bytes, mean, low, high, seeds, to each label's first end."""
    sent = {"MB": ("bytes", lambda values: values.mean() / 1e6)} if x == "bytes" else {}
    how = {"mean": "mean", "low": "min", "high": "max", "seeds": "size"}
    seeds = {name: ("avg", of) for name, of in how.items()}
    rows = frame.groupby(["label", "round"], sort=False).agg(**sent, **seeds).reset_index()
    rows = rows[rows.seeds == rows.groupby("label").seeds.transform("max")]
    if x == "bytes":
        most = rows.groupby("label")[["MB", "round"]].transform("max")
        ends = (most.MB == 0) & (rows["round"] == most["round"])
        rows = rows[(rows.MB > 0) | ends]  # round 0 has sent nothing
    return rows


def embedding(points: pd.DataFrame, by: str) -> Spec:
    """One panel per label; colour and shape show domains or classes."""
    key = "domain" if by == "domain" else "cls"
    rows = points[["label", "domain", "cls", "x", "y"]].round(2)
    groups = sorted(rows[key].unique()) if by == "class" else list(rows[key].unique())
    sizes = rows.value_counts(key)
    counted = ", ".join(f"{sizes[group]} of {group}" for group in groups)
    scale = {"domain": groups, "range": [COLOURS[i % 10] for i in range(len(groups))]}
    shapes = {"domain": groups, "range": [SHAPES[i % 6] for i in range(len(groups))]}
    encoding = {
        **{axis: _number(axis, None, axis=None) for axis in ("x", "y")},
        "color": _at(key, title=by, scale=scale),
        "shape": _at(key, title=by, scale=shapes),
        "opacity": _lit(key, 0.85),
        "tooltip": _told("label", "domain", cls="class"),
    }
    mark = {"type": "point", "filled": True, "size": 28}
    panel = {"params": _click(key), "mark": mark, "encoding": encoding}
    said = f"{len(rows)} points in {rows.label.nunique()} panels: {counted}"
    facet = _at("label", title=None, sort=list(rows.label.unique()))
    return _spec(rows, said, params=_pick("Highlight", groups), facet=facet, spec=panel)


def confusion(frame: pd.DataFrame) -> Spec:
    """One panel per domain for the chosen method. frame: as in `images.confusion`."""
    classes = sorted(frame.cls.unique())
    first = frame[frame.method == frame.method.iloc[0]]
    wrong = first.percent.where(first.cls != first.predicted, 0)
    most = first.loc[wrong.idxmax()]
    said = f"{most.method} most often takes {most.cls} for {most.predicted} on {most.domain}: "
    said += f"{wrong.max():.1f} % of its images"
    panel = {
        "mark": "rect",
        "encoding": {
            "x": _at("predicted", sort=classes, scale={"domain": classes}),
            "y": _at("cls", title="class", sort=classes, scale={"domain": classes}),
            "opacity": _number("percent", scale={"domain": [0, 100], "range": [0.04, 1]}),
            "tooltip": _told("method", "domain", "predicted", "percent", "images", cls="class"),
        },
    }
    pick = _pick("Method", list(frame.method.unique()), every=False)
    facet = _at("domain", title=None, sort=list(frame.domain.unique()))
    chosen = [{"filter": "datum.method == chosen"}]
    return _spec(frame, said, params=pick, transform=chosen, facet=facet, spec=panel)


def radar(wide: pd.DataFrame, low: float) -> Spec:
    """A closed line per method around a centre of `low` percent, one spoke per domain. wide:
    percent, methods downwards and domains across."""
    spokes, labels = list(wide.columns), list(wide.index)
    rows = wide.rename_axis("label").reset_index().melt("label", spokes, "domain", "value")
    rows["spoke"] = rows.domain.map(spokes.index)
    said = _extremes(rows.set_index(rows.label + " on " + rows.domain).value, "by domain")
    top = 1.4 * (100 - low)
    scale = {"domain": [-top, top]}
    plane = {axis: _number(axis, None, axis=None, scale=scale) for axis in ("x", "y")}
    turn = f"2 * PI * datum.spoke / {len(spokes)}"
    turned: list[Spec] = [
        {"calculate": f"(datum.value - {low}) * {turns}({turn})", "as": axis}
        for axis, turns in (("x", "cos"), ("y", "sin"))
    ]
    closed = {"type": "line", "interpolate": "linear-closed"}
    dot = {"type": "point", "filled": True, "size": 45}
    (line, fill), lit = _styled(labels), {"opacity": _lit("label")}
    line = {**plane, **line, **lit, "order": _number("spoke")}
    fill = plane | fill | lit | {"tooltip": _told("label", "domain", value="test accuracy (%)")}
    layers = [
        *_web(spokes, low, turned, plane),
        {"params": _click("label"), "transform": turned, "mark": closed, "encoding": line},
        {"transform": turned, "mark": dot, "encoding": fill},
    ]
    pick = _pick("Highlight", labels)
    return _spec(rows, said, params=pick, layer=layers, view={"stroke": None})


def _web(spokes: Sequence[str], low: float, turned: list[Spec], plane: Spec) -> list[Spec]:
    """The rings of a radar, and the names of rings and spokes."""
    rings = range(round(low), 101, 10 if low >= 50 else 20)
    corners = [{"value": ring, "spoke": i} for ring in rings for i in range(len(spokes))]
    beyond = 100 + 0.18 * (100 - low)
    texts = [{"value": beyond, "spoke": i, "text": name} for i, name in enumerate(spokes)]
    flat = math.cos(math.pi / len(spokes))  # radius of the middle of a side
    for ring in rings:
        texts.append({"value": low + (ring - low) * flat, "spoke": 0.5, "text": f"{ring} %"})
    line = {"type": "line", "interpolate": "linear-closed", "color": "#999", "strokeWidth": 0.6}
    drawn = {**plane, "detail": _at("value"), "order": _number("spoke")}
    named = {**plane, "text": _at("text")}
    return [
        {"data": {"values": corners}, "transform": turned, "mark": line, "encoding": drawn},
        {"data": {"values": texts}, "transform": turned, "mark": "text", "encoding": named},
    ]
