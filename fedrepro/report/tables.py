"""Tables for notebooks, the book and the command line: HTML by pandas' Styler, and aligned
text.

Nothing is computed here: numbers, verdicts and ranks come from `verdicts`, settings from the
paper's file. All text is escaped.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import pandas as pd
from pandas.io.formats.style import Styler

from fedrepro import methods as registry
from fedrepro.base.errors import FedReproError
from fedrepro.papers.paper import as_text
from fedrepro.report.sections import APART, UNIT_SIGNS, Section, number, sections, spread
from fedrepro.report.text import aligned

Links = Mapping[tuple[str, str, str, str], str]
FILED = "authors’ file"
PARTS = {  # what a column shows, by scale
    "paper": ("paper", "ours", "difference", "verdict"),
    "reduced": ("paper", "ours", "rank, paper", "rank, ours"),
}
# Stays in sight, and wraps, while the wide table under it is scrolled.
CAPTION = "display: inline-block; position: sticky; left: 0; max-width: min(40rem, 82vw)"


@dataclass(frozen=True, repr=False)
class Html:
    """HTML for a notebook; its plain form is one line without any number, so that it is the same on
    every machine."""

    html: str
    summary: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"<{self.summary}>"


def styled(frame: pd.DataFrame, kind: str, label: str, caption: str = "") -> str:
    """A frame of HTML texts as a table in its own box that scrolls, also by keyboard. caption:
    HTML."""
    style = Styler(frame)
    if caption:
        style = style.set_caption(f'<span style="{CAPTION}">{caption}</span>')
    head, body = style.to_html(exclude_styles=True).split("<tbody>")
    head = head.replace("<table>", f'<table class="{kind}">').replace("<th ", '<th scope="col" ')
    head = head.replace("<caption>", '<caption style="text-align: left; white-space: normal">')
    body = body.replace("<th ", '<th scope="row" ')
    return (
        f'<div class="table-scroll" style="overflow-x: auto" tabindex="0" role="region" '
        f'aria-label="{escape(label)}">\n{head}<tbody>{body}</div>\n'
    )


def prose(head: Sequence[str], rows: Iterable[Sequence[str]], summary: str, kind: str = "") -> Html:
    """A table of sentences; the first column names a row."""
    frame = pd.DataFrame(rows, columns=list(head)).map(escape).set_index(head[0])
    frame = frame.rename_axis(index=None, columns=head[0])
    return Html(styled(frame, f"protocol prose {kind}".strip(), summary), summary)


# Printed numbers beside ours.


def beside_table(table: pd.DataFrame, caption: str = "", links: Links | None = None) -> Html:
    """A frame of `verdicts.build_table` as one table per data set and scale: methods downwards, per
    column the paper's number, ours, their difference with its interval, and the verdict. An average
    has its own table; the averaged columns are folded under it.

    At scale reduced ranks replace differences and verdicts, at smoke nothing does.
    Deviations are letters, explained under the table. links: the target of our number of a (data
    set, scale, method, column). FedReproError: an empty frame.
    """
    found = sections(table)
    where = ", ".join(f"{s.dataset} {s.scale}".strip() for s in found)
    html = "\n".join(_section_html(one, caption or one.table, links or {}) for one in found)
    return Html(html, f"{found[0].table} beside the paper's: {where}")


def _section_html(section: Section, caption: str, links: Links) -> str:
    label = f"{caption}, {section.dataset}"
    others = tuple(column for column in section.columns if column != "avg")
    caveats = replace(section, columns=("avg", *others)).caveats()  # letters in the order of sight
    if len(others) in (0, len(section.columns)):
        html = _part_html(section, caveats, label, links)
    else:
        mean, rest = (replace(section, columns=columns) for columns in (("avg",), others))
        html = _part_html(mean, caveats, label, links)
        html += folded("Per domain", _part_html(rest, caveats, f"{label}, per domain", links))
    return html + "".join(f'<p class="table-note">{escape(n)}</p>\n' for n in _notes(section))


def _part_html(section: Section, caveats: Mapping[str, str], label: str, links: Links) -> str:
    """Some columns of a section, and under them those caveats that they have."""
    said = f"{escape(section.statement)}."
    if section.scale in ("reduced", "smoke"):
        said = f"<strong>{said[:-1]}</strong>. Every cell: {badge('no verdict')}."
    kind = f"dataframe beside beside-{section.scale or 'none'}"
    html = styled(_texts(section, caveats, True, links), kind, label, f"{escape(label)}. {said}")
    own = section.caveats()
    lines = [f"<li><sup>{caveats[c]}</sup> {escape(c)}</li>" for c in caveats if c in own]
    if lines:
        html += f'<ul class="table-marks" style="list-style: none">{"".join(lines)}</ul>\n'
    return html


def folded(title: str, html: str) -> str:
    """HTML that is shown when its title is clicked."""
    return f"<details><summary>{escape(title)}</summary>\n{html}</details>\n"


def plain(table: pd.DataFrame, caption: str = "") -> str:
    """The same in aligned text: one block per column, one line per method; one block if there is
    nothing to compare with our numbers."""
    return "\n".join(_section_plain(section, caption) for section in sections(table))


def _section_plain(section: Section, caption: str) -> str:
    caveats = section.caveats()
    texts = _texts(section, caveats, False, {})
    blocks = [f"{caption or section.table}, {section.dataset}. {section.statement}."]
    if section.bare:
        rows = texts.droplevel(1, axis=1)
        blocks.append(aligned(("method", *rows), rows.itertuples(name=None)))
    else:
        for heading in texts.columns.unique(0):
            rows = texts[heading]
            lines = rows[rows.ne("").any(axis=1)].itertuples(name=None)
            blocks.append(f"{heading}\n{aligned(('method', *rows), lines)}")
    notes = [f"  {letter}  {clause}" for clause, letter in caveats.items()] + _notes(section)
    return "\n\n".join([*blocks, "\n".join(notes)]).rstrip("\n") + "\n"


def _texts(section: Section, caveats: Mapping[str, str], html: bool, links: Links) -> pd.DataFrame:
    """What a section shows: a row per method and last Kendall's tau, columns (column, part)."""
    parts = ("ours",) if section.bare else PARTS.get(section.scale, ("paper", "ours"))
    if section.filed:
        parts = (parts[0], FILED, *parts[1:])
    ranks = section.ranks() if "rank, ours" in parts else pd.DataFrame()
    ranked = ranks.tau.groupby(level="column").first() if len(ranks) else pd.Series()
    columns, taus = {}, {}
    for column in section.columns:
        unit = section.unit(column)
        heading = f"{section.heading(column)} ({UNIT_SIGNS.get(unit, unit)})"
        cells = {m: section.cells.get((m, column)) for m in section.methods}
        texts = {m: _cell(cell, caveats, ranks, html) for m, cell in cells.items()}
        for method, text in texts.items():
            if to := links.get((section.dataset, section.scale, method, column)):
                text["ours"] = f'<a href="{to}">{text["ours"]}</a>'
        for part in parts:
            key = (escape(heading) if html else heading, part)
            columns[key] = [texts[m].get(part, "") for m in section.methods]
        if column in ranked:
            taus[key[0], parts[-1]] = number(ranked[column], "ratio")
    frame = pd.DataFrame(columns, index=[escape(m) if html else m for m in section.methods])
    frame.columns = pd.MultiIndex.from_tuples(columns, names=[None, "method"])
    if taus:  # in a browser the row in italics stays last when others are sorted
        name = "<em>Kendall’s tau</em>" if html else "Kendall’s tau"
        frame.loc[name] = [taus.get(key, "") for key in columns]
    return frame


def _cell(
    cell: Mapping[str, Any] | None, caveats: Mapping[str, str], ranks: pd.DataFrame, html: bool
) -> dict[str, str]:
    if cell is None:
        return {"paper": "–", "ours": "–"} if html else {}
    unit, letters = str(cell["unit"]), ", ".join(sorted(caveats[c] for c in cell["caveats"]))
    seeds = f"(n={int(cell['seeds'])})"
    ours = "none" if pd.isna(cell["ours"]) else spread(cell["ours"], cell["ours_std"], unit)
    ours = f"{ours} {seeds}" if cell["seeds"] else "not run"
    note = f'<sup class="mark">{letters}</sup>' if html else f" {letters}"
    gap = number(cell["difference"], unit, signed=True)
    if pd.notna(cell["low"]):
        bounds = f"[{number(cell['low'], unit)}, {number(cell['high'], unit)}]"
        gap += f"<br><small>{bounds}</small>" if html else f" {bounds}"
    key = (cell["method"], cell["column"])
    placed = ranks.loc[key] if key in ranks.index else {}
    return {
        "paper": spread(cell["published"], cell["published_std"], unit),
        FILED: f"{APART} " * bool(cell["contradicted"]) + number(cell["authors"], unit),
        "ours": ours + note * bool(letters),
        "difference": gap,
        "verdict": badge(cell["verdict"], cell["why"]) if html else str(cell["verdict"]),
        "rank, paper": f"{placed['rank_published']:g}" if len(placed) else "–",
        "rank, ours": f"{placed['rank_ours']:g}" if len(placed) else "–",
    }


def badge(word: str, why: str = "", shown: str = "") -> str:
    """A verdict in its colour. why: said under the pointer. shown: a text in the word's place."""
    title = f' title="{escape(why)}"' if why else ""
    kind = word.replace(" ", "-")
    return f'<span class="verdict verdict-{kind}"{title}>{escape(shown or word)}</span>'


def _notes(section: Section) -> list[str]:
    notes = []
    if section.left_out:
        names = ", ".join(section.left_out)
        notes.append(f"Other domains than the paper's, whose columns are left out: {names}.")
    if section.scale == "reduced" and not section.bare:
        notes.append("Ranks (1 is best) count the methods with both numbers.")
    if section.filed:
        notes.append(
            f"{FILED}: numbers from the public repository of the authors; {APART} if the "
            "printed number is not their rounding."
        )
    return notes


# Settings and their sources.


def protocol_table(sources: pd.DataFrame, methods: Iterable[str] = ()) -> Html:
    """Every setting with its value, status, source and alternatives; then the fields of each
    method, where the paper's own setting has priority over the field's default.

    sources: a frame of `Paper.sources`. FedReproError: an empty frame, an unknown method.
    """
    wanted = ["setting", "value", "status", "source", "alternatives"]
    if sources.empty or any(name not in sources for name in wanted):
        raise FedReproError("no settings in this frame; give one of Paper.sources")
    given = {row[0]: row[1:] for row in sources[wanted].astype(str).itertuples(index=False)}
    known = tuple(f"{name}." for name in registry.names())
    names = {"data": "data", "report": "reporting"}
    rows: dict[tuple[str, str], tuple[str, ...]] = {}
    for setting, rest in given.items():
        head, _, tail = setting.partition(".")
        if not setting.startswith(known):
            rows[names.get(head, "training"), tail if head in names else setting] = rest
    groups = ("data", "training", "reporting")
    rows = dict(sorted(rows.items(), key=lambda row: groups.index(row[0][0])))
    for key, own in fields(methods).items():
        name, _, field = key.rpartition(".")
        rows[name, field] = given.get(key, own)
    frame = pd.DataFrame([[escape(text) for text in row] for row in rows.values()])
    frame.index = pd.MultiIndex.from_tuples([(g, f"<code>{escape(s)}</code>") for g, s in rows])
    frame.columns = pd.Index(wanted[1:], name="setting")
    title = (
        "Every setting, where its value comes from (stated: in the paper; code: in public code; "
        "inferred: from other facts; decided: by us), and what else it could have been."
    )
    html = styled(frame, "protocol", "Protocol", title)
    return Html(html, f"protocol: {', '.join(dict.fromkeys(group for group, _ in rows))}")


def fields(methods: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """By ``method.field``: default, status, source and alternatives as text."""
    return {
        f"{name}.{field['name']}": (
            as_text(field["default"]),
            field["status"],
            field["source"],
            ", ".join(as_text(other) for other in field["alternatives"]),
        )
        for name in dict.fromkeys(methods)
        for field in registry.get(name).describe()
    }
