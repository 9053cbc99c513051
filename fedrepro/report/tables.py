"""The tables a notebook, the book and the command line show: HTML and aligned text.

Nothing is computed here: numbers, verdicts and ranks come from `verdicts`, settings from the
paper's file. All text is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

from fedrepro import methods as registry
from fedrepro.base.errors import FedReproError
from fedrepro.report.sections import (
    APART,
    UNIT_SIGNS,
    Section,
    authors,
    difference,
    number,
    ours,
    published,
    sections,
)
from fedrepro.report.text import aligned

GROUPS = ("data", "training", "reporting")
FILED = "authors’ file"
LEFT = "text-align: left"
# Stays in sight, and wraps, while the wide table under it is scrolled.
CAPTION = "display: inline-block; position: sticky; left: 0; max-width: min(40rem, 82vw)"


def _framed(label: str, kind: str, caption: str, rows: str) -> str:
    """A table in a box of its own that scrolls, by keyboard too. caption, rows: HTML."""
    return (
        f'<div class="table-scroll" style="overflow-x: auto" tabindex="0" role="region" '
        f'aria-label="{escape(label)}">\n<table class="{kind}">\n'
        f'<caption style="{LEFT}; white-space: normal">'
        f'<span style="{CAPTION}">{caption}</span></caption>\n{rows}</table>\n</div>\n'
    )


@dataclass(frozen=True, repr=False)
class Html:
    """HTML that a notebook shows as such; its plain form is one line without any number, so that it
    is the same on every machine."""

    html: str
    summary: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"<{self.summary}>"


# Printed numbers beside ours.


def beside_table(table: pd.DataFrame, caption: str = "") -> Html:
    """A frame of `verdicts.build_table` as one table a data set and scale: methods downwards, per
    column the paper's number, ours, their difference with its interval, and the verdict.

    At scale reduced ranks take the place of differences and verdicts, at smoke nothing does.
    Deviations are letters, explained under the table. FedReproError: an empty frame.
    """
    found = sections(table)
    parts = [_section_html(section, caption or section.table) for section in found]
    where = ", ".join(f"{s.dataset} {s.scale}".strip() for s in found)
    return Html("\n".join(parts), f"{found[0].table} beside the paper's: {where}")


def _section_html(section: Section, caption: str) -> str:
    marks = section.marks()
    parts = _parts(section)
    head = "".join(
        f'<th scope="colgroup" colspan="{len(parts)}">{escape(_heading(section, column))}</th>'
        for column in section.columns
    )
    names = "".join(f'<th scope="col">{name}</th>' for name in parts) * len(section.columns)
    ranks = section.ranks() if "rank, ours" in parts else None
    body = "\n".join(
        f'<tr><th scope="row">{escape(method)}</th>'
        + "".join(_cell_html(section, method, column, marks, ranks) for column in section.columns)
        + "</tr>"
        for method in section.methods
    )
    rows = (
        f'<thead>\n<tr><th scope="col" rowspan="2">method</th>{head}</tr>\n'
        f"<tr>{names}</tr>\n</thead>\n<tbody>\n{body}\n</tbody>\n"
        f"{_tau_html(section, ranks, len(parts))}"
    )
    label = f"{caption}, {section.dataset}"
    kind = f"dataframe beside beside-{section.scale or 'none'}"
    title = f"{escape(label)}. {_statement_html(section)}"
    return _framed(label, kind, title, rows) + _notes_html(section, marks)


def _parts(section: Section) -> tuple[str, ...]:
    """What a column shows, by scale."""
    if section.bare:
        return ("ours",)
    by_scale = {
        "paper": ("paper", "ours", "difference", "verdict"),
        "reduced": ("paper", "ours", "rank, paper", "rank, ours"),
    }
    shown = by_scale.get(section.scale, ("paper", "ours"))
    return (shown[0], FILED, *shown[1:]) if section.filed else shown


def _heading(section: Section, column: str) -> str:
    unit = section.unit(column)
    return f"{section.heading(column)} ({UNIT_SIGNS.get(unit, unit)})"


def _statement_html(section: Section) -> str:
    """What the scale lets the numbers say; the one word for all cells where they have none."""
    words = {"reduced": "not comparable", "smoke": "no verdict"}
    if section.scale not in words:
        return f"{escape(section.statement)}."
    return (
        f"<strong>{escape(section.statement)}</strong>. Every cell: {_badge(words[section.scale])}."
    )


def _badge(word: str, why: str = "") -> str:
    title = f' title="{escape(why)}"' if why else ""
    return f'<span class="verdict verdict-{word.replace(" ", "-")}"{title}>{escape(word)}</span>'


def _cell_html(
    section: Section,
    method: str,
    column: str,
    marks: Mapping[str, str],
    ranks: pd.DataFrame | None,
) -> str:
    """The parts of one cell of the printed table."""
    cell = section.cells.get((method, column))
    if cell is None:
        return "<td>–</td>" + "<td></td>" * (len(_parts(section)) - 1)
    letters = ", ".join(sorted(marks[clause] for clause in cell["marks"]))
    note = f'<sup class="mark">{letters}</sup>' if letters else ""
    texts = [published(cell), ours(cell) + note][section.bare :]
    texts[1:1] = [authors(cell)] * section.filed
    if section.scale == "paper" and not section.bare:
        text, bounds = difference(cell)
        texts.append(f"{text}<br><small>{bounds}</small>" if bounds else text)
        texts.append(_badge(cell["verdict"], cell["why"]))
    elif ranks is not None:
        texts += _ranks(ranks, method, column)
    return "".join(f"<td>{text}</td>" for text in texts)


def _ranks(ranks: pd.DataFrame, method: str, column: str) -> list[str]:
    """The paper's rank and ours among the methods both have; an en dash where there is none."""
    if (method, column) not in ranks.index:
        return ["–", "–"]
    return [f"{float(ranks[key][(method, column)]):g}" for key in ("rank_published", "rank_ours")]


def _taus(section: Section, ranks: pd.DataFrame | None) -> dict[str, str]:
    """Kendall's tau by column, where there are ranks."""
    if ranks is None or ranks.empty:
        return {}
    found = ranks.reset_index().drop_duplicates("column").set_index("column").tau
    return {c: number(found[c], "ratio") for c in section.columns if c in found.index}


def _tau_html(section: Section, ranks: pd.DataFrame | None, width: int) -> str:
    taus = _taus(section, ranks)
    if not taus:
        return ""
    cells = "".join(
        f'<td colspan="{width}">{taus.get(column, "–")}</td>' for column in section.columns
    )
    return f'<tfoot><tr><th scope="row">Kendall’s tau</th>{cells}</tr></tfoot>\n'


def _notes(section: Section) -> list[str]:
    """Lines under a table besides the marks."""
    notes = []
    if section.left_out:
        names = ", ".join(section.left_out)
        notes.append(f"Other domains than the paper's, whose columns are left out: {names}.")
    if section.scale == "reduced" and not section.bare:
        notes.append("Ranks (1 is best) count the methods that have both numbers.")
    if section.filed:
        notes.append(
            f"{FILED}: what the authors keep in their public repository; {APART} where it is no "
            "rounding of the printed number."
        )
    return notes


def _notes_html(section: Section, marks: Mapping[str, str]) -> str:
    lines = [f"<li><sup>{letter}</sup> {escape(clause)}</li>" for clause, letter in marks.items()]
    listed = f'<ul class="table-marks" style="list-style: none">{"".join(lines)}</ul>\n'
    notes = "".join(f'<p class="table-note">{escape(note)}</p>\n' for note in _notes(section))
    return (listed if lines else "") + notes


def plain(table: pd.DataFrame, caption: str = "") -> str:
    """The same as `beside_table` in aligned text: a block a column, a line a method; one block
    where there is nothing to set beside our numbers."""
    return "\n".join(_section_plain(section, caption) for section in sections(table))


def _section_plain(section: Section, caption: str) -> str:
    marks, parts = section.marks(), _parts(section)
    ranks = section.ranks() if "rank, ours" in parts else None
    taus = _taus(section, ranks)
    cells = {key: _cell_plain(section, cell, marks, ranks) for key, cell in section.cells.items()}
    blocks = [f"{caption or section.table}, {section.dataset}. {section.statement}."]
    if section.bare:
        lines = [["method", *(_heading(section, column) for column in section.columns)]]
        for method in section.methods:
            found = [cells.get((method, column), ["–"]) for column in section.columns]
            lines.append([method, *(texts[0] for texts in found)])
        blocks.append(aligned(lines[0], lines[1:]))
    for column in () if section.bare else section.columns:
        lines = [["method", *parts]]
        lines += [[m, *cells[m, column]] for m in section.methods if (m, column) in cells]
        tau = f"; Kendall's tau {taus[column]}" if column in taus else ""
        blocks.append(f"{_heading(section, column)}{tau}\n{aligned(lines[0], lines[1:])}")
    notes = [f"  {letter}  {clause}" for clause, letter in marks.items()] + _notes(section)
    return "\n\n".join([*blocks, *(["\n".join(notes)] if notes else [])]) + "\n"


def _cell_plain(
    section: Section, cell: Mapping[str, Any], marks: Mapping[str, str], ranks: pd.DataFrame | None
) -> list[str]:
    letters = ",".join(sorted(marks[clause] for clause in cell["marks"]))
    texts = [published(cell), f"{ours(cell)} {letters}".rstrip()][section.bare :]
    texts[1:1] = [authors(cell)] * section.filed
    if section.bare:
        return texts
    if section.scale == "paper":
        texts += [" ".join(difference(cell)).rstrip(), str(cell["verdict"])]
    elif ranks is not None:
        texts += _ranks(ranks, cell["method"], cell["column"])
    return texts


# Settings and their sources.


def protocol_table(sources: pd.DataFrame, methods: Iterable[str] = ()) -> Html:
    """Every setting with its value, what settles it, its source and what else it could have been;
    then the fields of each method, where the paper's own setting goes before the field's default.

    sources: a frame of `Paper.sources`. FedReproError: an empty frame, an unknown method.
    """
    wanted = ("setting", "value", "status", "source", "alternatives")
    if sources.empty or any(name not in sources for name in wanted):
        raise FedReproError("no settings in this frame; give one of Paper.sources")
    names = list(dict.fromkeys(methods))
    rows = [tuple(str(row[key]) for key in wanted) for row in sources.to_dict("records")]
    given = {row[0]: row for row in rows}
    known = tuple(f"{name}." for name in registry.names())
    groups: dict[str, list[tuple[str, ...]]] = {group: [] for group in GROUPS}
    for setting, *rest in rows:
        if not setting.startswith(known):
            head, _, tail = setting.partition(".")
            group = {"data": "data", "report": "reporting"}.get(head, "training")
            groups[group].append((tail if group != "training" else setting, *rest))
    for name in names:
        groups[name] = [_field(name, field, given) for field in registry.get(name).describe()]
    body = "\n".join(_group_html(group, rows) for group, rows in groups.items() if rows)
    head = "".join(f'<th scope="col" style="{LEFT}">{name}</th>' for name in wanted)
    title = (
        "Every setting, where its value comes from (stated: in the paper; code: in public code; "
        "inferred: from other facts; decided: by us), and what else it could have been."
    )
    html = _framed("Protocol", "protocol", title, f"<thead><tr>{head}</tr></thead>\n{body}\n")
    return Html(html, f"protocol: {', '.join(groups)}")


def _field(
    method: str, field: Mapping[str, Any], given: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """One field of a method as setting, value, status, source, alternatives."""
    own = given.get(f"{method}.{field['name']}")
    if own is not None:
        return (field["name"], *own[1:])
    others = ", ".join(_text(other) for other in field["alternatives"])
    return (field["name"], _text(field["default"]), field["status"], field["source"], others)


def _text(value: Any) -> str:
    """A field's value as `Paper.sources` writes settings."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(_text(item) for item in value) + ")" if value else "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _group_html(group: str, rows: Sequence[Sequence[str]]) -> str:
    lines = [f'<tr><th scope="rowgroup" colspan="5" style="{LEFT}">{escape(group)}</th></tr>']
    for setting, value, status, source, others in rows:
        cells = "".join(
            f'<td style="{LEFT}; {style}">{escape(text)}</td>'
            for text, style in (
                (value, "min-width: 6rem"),
                (status, ""),
                (source, "min-width: 14rem"),
                (others, "min-width: 6rem"),
            )
        )
        name = f'<th scope="row" style="{LEFT}"><code>{escape(setting)}</code></th>'
        lines.append(f"<tr>{name}{cells}</tr>")
    return "<tbody>" + "\n".join(lines) + "</tbody>"
