"""Tables and figures of the stored measurements, for the book's page *Performance*.

Every number is computed from the files in results/; nothing is measured here. Growth is in
report_growth.py.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

import entry
import numpy as np
import pandas as pd
from scipy.stats import t

from fedrepro.base.errors import FedReproError
from fedrepro.report.picture import COLOURS, GRID, Picture, label_axes, legend_above, picture
from fedrepro.report.tables import Html, nothing, styled
from fedrepro.report.views import show

NOTHING = "No measurement of this is stored yet."
File = Mapping[str, Any]
PARTS = {  # of a round, in order; the first five are its training
    "reading": "read, augment",
    "forward": "forward, loss",
    "backward": "backward",
    "step": "optimiser",
    "rest": "rest of training",
    "messages": "messages",
    "server": "server",
    "evaluate": "tests",
}
HATCHES = ("", "", "", "////", "....", "", "xxxx", "\\\\\\\\")


def stored(pattern: str) -> dict[str, dict[str, Any]]:
    """Stored measurements by file name. FedReproError: a file that is no JSON object."""
    found = {}
    for path in sorted(entry.RESULTS.glob(pattern)):
        try:
            found[path.name] = dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, TypeError, ValueError) as error:
            raise FedReproError(f"{path} cannot be read ({error}); measure it again") from None
    return found


# Words and tables.


def table(rows: Iterable[Mapping[str, str]], caption: str = "") -> Html:
    """Rows of texts as an HTML table; the first column names a row. A line where there is none."""
    texts = pd.DataFrame(rows).map(escape)
    if texts.empty:
        return nothing(NOTHING)
    first, label = texts.columns[0], "a table of measurements"
    shown = texts.set_index(first).rename_axis(index=None, columns=first)
    note = f"<p>{escape(caption)}</p>\n" if caption else ""
    return Html(note + styled(shown, "dataframe", caption or label), label)


def table_of(pattern: str, rows: Callable[[File], list[dict[str, str]]], caption: str) -> Html:
    """The rows of all stored measurements of a kind as a table."""
    return table([row for file in stored(pattern).values() for row in rows(file)], caption)


def protocol(text: str) -> Html:
    """How a figure above was measured."""
    return Html(f"<p>{escape(text)}</p>", "how it was measured")


def each(pairs: Iterable[tuple[Picture, Html]]) -> Picture | Html:
    """Show pictures with their protocols: the last thing is returned, the others are displayed."""
    things = [thing for pair in pairs for thing in pair]
    show(things[:-1])
    return things[-1] if things else table(())


def spread(values: Sequence[float], decimals: int = 2) -> str:
    """Median (least to greatest)."""
    parts = (statistics.median(values), min(values), max(values))
    middle, low, high = (f"{value:,.{decimals}f}" for value in parts)
    return f"{middle} ({low} to {high})"


def machine(file: File) -> str:
    """Device and number of threads."""
    facts = file["environment"]
    return f"{facts['device']}, threads: {facts['threads']}"


def call(file: File) -> File:
    """What holds a file's command and environment: the last call, where it was filled by many."""
    last: File = file["calls"][-1] if "calls" in file else file
    return last


def measurements() -> Html:
    """Command, date, machine, versions and commit of every stored measurement."""
    rows = []
    for name, file in stored("*.json").items():
        facts = call(file).get("environment")
        if facts is None:  # not one of the scripts' files
            continue
        rows.append(
            {
                "file": name,
                "command": call(file).get("command", "not kept"),
                "date": facts["date"][:10],
                "machine": machine(call(file)),
                "Python": facts["python"],
                "torch": facts["packages"]["torch"],
                "commit": (facts["commit"] or "unknown")[:10]
                + " (changed files)" * bool(facts["dirty"]),
            }
        )
    return table(rows)


# Beside the field's loop.


def round_rows(file: File) -> list[dict[str, str]]:
    """The library's rounds beside the field's loop, one row per method."""
    rows = []
    asked = file["settings"]
    key = "device_peak" if asked["device"] == "cuda" else "peak"
    for method, found in file["results"].items():
        ratio, memory = found["seconds_ratio"], found["memory_mib"]
        rows.append(
            {
                "network": f"{asked['model']}, {asked.get('precision', 'float32')}",
                "method": method,
                "library (s)": spread(found["seconds"]["library"]),
                "field (s)": spread(found["seconds"]["field"]),
                "time, ratio": f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})",
                "library (MiB)": f"{memory['library'][key]:,.0f}",
                "field (MiB)": f"{memory['field'][key]:,.0f}",
                "memory, ratio": f"{found['memory_ratio']:.2f}",
                "protocol": f"{asked['clients']} clients of {asked['images']} images, "
                f"{asked['size']} px, batches of {asked['batch']}, local epochs: "
                f"{asked['epochs']}, repeats: {asked['repeat']}",
                "machine": machine(file),
            }
        )
    return rows


def rounds() -> Html:
    """`round_rows` of every stored measurement."""
    caption = "Median (least to greatest); ratios are library / field."
    return table_of("rounds-*.json", round_rows, caption)


def precision() -> Html:
    """Test accuracy in a narrow precision beside float32, over the same seeds.

    The difference is of runs of one seed, its interval by Student's t. *Seed noise* is the standard
    deviation of the float32 runs.
    """
    rows = []
    for file in stored("precision-*.json").values():
        asked = file["settings"]
        for label, found in file["results"].items():
            wide, narrow = (np.array(found[name]) for name in ("float32", asked["precision"]))
            gap = narrow - wide
            reach = float(t.ppf(0.975, len(gap) - 1)) * gap.std(ddof=1) / len(gap) ** 0.5
            noise = wide.std(ddof=1)
            rows.append(
                {
                    "precision": asked["precision"],
                    "method": label,
                    "float32 (%)": f"{wide.mean():.2f}",
                    "narrow (%)": f"{narrow.mean():.2f}",
                    "difference (95 %)": f"{gap.mean():+.2f} ({gap.mean() - reach:+.2f} to "
                    f"{gap.mean() + reach:+.2f})",
                    "seed noise": f"{noise:.2f}",
                    "within it": "yes" if abs(gap.mean()) <= noise else "no",
                    "protocol": f"{asked['paper']}, {asked['experiment']}, {asked['dataset']}, "
                    f"{asked['scale']}, score {asked['rule']}, seeds: "
                    + ", ".join(map(str, asked["seeds"])),
                    "machine": machine(file),
                }
            )
    return table(rows, "Mean test accuracy over domains and seeds; differences in points.")


# Where the time of a round goes.


def _parts(found: Mapping[str, Any]) -> pd.DataFrame:
    """Seconds of each part, one row per watched round."""
    return pd.DataFrame(found["watched"])[list(PARTS)]


def phases() -> Picture | Html:
    """Shares of a round's parts, a bar a network and method; a picture a stored measurement."""
    files = stored("phases-*.json").values()
    return each((phases_picture(file), _phases_protocol(file)) for file in files)


def _phases_protocol(file: File) -> Html:
    asked = file["settings"]
    return protocol(
        f"{asked['clients']} clients of {asked['images']} images, {asked['size']} pixels a side, "
        f"batches of {asked['batch']}, local epochs: {asked['epochs']}; {machine(file)}; "
        f"{asked['repeat']} rounds together. `{file['command']}`"
    )


def phases_picture(file: File) -> Picture:
    """Stacked shares of the parts of a round (%)."""
    bars = {
        f"{model}\n{method}": _parts(found).sum()
        for model, by_method in file["results"].items()
        for method, found in by_method.items()
    }
    frame = pd.DataFrame(bars).T
    shares = 100 * frame.div(frame.sum(axis=1), axis=0)
    figure, axes = picture(2.1 + 0.5 * len(shares))
    ax, start = axes[0, 0], np.zeros(len(shares))
    for index, (part, name) in enumerate(PARTS.items()):
        widths = shares[part].to_numpy()
        style: dict[str, Any] = {"color": COLOURS[index], "hatch": HATCHES[index]}
        ax.barh(
            range(len(shares)), widths, 0.7, left=start, label=name, ec="white", lw=0.5, **style
        )
        start = start + widths
    ax.set_yticks(range(len(shares)), list(shares.index))
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    ax.grid(axis="x", color=GRID)
    label_axes(ax, "share of a round's time (%)")
    legend_above(figure, ax, 3)
    figure.caption = "One bar per network and method"
    return figure


def phase_rows(file: File) -> list[dict[str, str]]:
    """Seconds and share of every part of a round; what watching costs."""
    rows = []
    for model, by_method in file["results"].items():
        for method, found in by_method.items():
            parts = _parts(found)
            whole = parts.sum(axis=1)
            row = {"network, method": f"{model}, {method}", "device": file["settings"]["device"]}
            for part, name in PARTS.items():
                share = 100 * parts[part].sum() / whole.sum()
                row[name] = f"{statistics.median(parts[part]):.3f} s, {share:.1f} %"
            row["whole round (s)"] = spread(list(whole), 3)
            row["unwatched (s)"] = spread(found["plain"], 3)
            rows.append(row)
    return rows


def phase_table() -> Html:
    """`phase_rows` of every stored measurement."""
    caption = "Median seconds and share of each part; whole rounds with their range."
    return table_of("phases-*.json", phase_rows, caption)


# What other scripts stored.


def cross_device_rows(file: File) -> list[dict[str, str]]:
    """Rounds with many small users: the library and each peer."""
    rows = []
    asked = file["settings"]
    for side, found in file["sides"].items():
        each = [sum(one["seconds"]) / asked["rounds"] for one in found["repeats"]]
        ratio = file["ratios"].get(side)
        rows.append(
            {
                "side": _side(side, file),
                "seconds per round": spread(each, 3) if "error" not in found else found["error"],
                "time, peer / library": "{median:.2f} ({min:.2f} to {max:.2f})".format(**ratio)
                if ratio
                else "–",
                "protocol": f"{asked['users']} users of {asked['images']} images, "
                f"{asked['size']} px, {asked['cohort']} per round, batches of {asked['batch']}, "
                f"rounds: {asked['rounds']}, repeats: {len(each)}",
                "machine": machine(call(file)),
            }
        )
    return rows


def cross_device() -> Html:
    """`cross_device_rows` of every stored measurement."""
    caption = "Median (least to greatest) of a repeat's mean."
    return table_of("cross-device-*.json", cross_device_rows, caption)


def _side(name: str, file: File) -> str:
    """A side with what it computes in."""
    if name == "library":
        return f"library ({file['engine']}, {file['settings']['precision']})"
    peer = name.removesuffix("-bf16")
    return f"{peer} ({'float32' if peer == name else 'bf16'})"


def gpu_rows(file: File) -> list[dict[str, str]]:
    """Rounds of each shape, method and engine on a GPU; none of a dry run."""
    timed = {} if file["tiny"] else file["timing"]
    return [
        {
            "shape / method / engine": name,
            "seconds per round": "{median:.3f} ({min:.3f} to {max:.3f})".format(**seconds),
            "rounds": str(len(seconds["all"])),
            "machine": machine(call(file)),
        }
        for name, found in timed.items()
        if isinstance(seconds := found.get("seconds"), dict)
    ]


def gpu() -> Html:
    """Rounds on GPUs: the engines and the field's loop."""
    return table_of("gpu-*.json", gpu_rows, "Median (least to greatest).")


def proof_rows(file: File) -> list[dict[str, str]]:
    """The stacked engine against the plain loop, by method and network; none of a dry run."""
    return [
        {
            "method or network": name,
            "largest difference": f"{found['gap']:.1e}",
            "limit": f"{found['limit']:.0e}",
            "within": "yes" if found["ok"] else "no",
            "machine": machine(call(file)),
        }
        for name, found in ({} if file["tiny"] else file["checks"]).items()
        if "gap" in found
    ]


def proof() -> Html:
    """`proof_rows` of every GPU."""
    caption = "|a - b| / (1 + |a|) of all messages, networks and curves, in float64."
    return table_of("gpu-*.json", proof_rows, caption)


def at_once_rows(file: File) -> list[dict[str, str]]:
    """Local training of clients at once beside one after another: one row per network."""
    rows = []
    for found in file["results"]:
        asked, turn, once = found["settings"], found["in turn"], found["at once"]
        ratios = [a / b for a, b in zip(turn, once, strict=True)]
        rows.append(
            {
                "network": f"{asked['model']} ({asked['precision']})",
                "parameters": f"{found['parameters']:,}",
                "in turn (s)": spread(turn, 3),
                "at once (s)": spread(once, 3),
                "in turn / at once": spread(ratios, 2),
                "protocol": f"{asked['clients']} clients of {asked['images']} images, "
                f"{asked['size']} px, batches of {asked['batch']}, repeats: {len(turn)}",
                "machine": machine(file),
            }
        )
    return rows


def at_once() -> Html:
    """`at_once_rows` of every stored measurement."""
    caption = "Median (least to greatest) of a round; ratios round by round."
    return table_of("at-once-*.json", at_once_rows, caption)
