"""Tables for notebooks, the book and the command line: HTML by pandas' Styler, and aligned text.
Numbers, verdicts and ranks come from `verdicts`. All text is escaped."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from html import escape, unescape
from itertools import product
from string import ascii_lowercase
from typing import Any

import pandas as pd
from pandas.io.formats.style import Styler

from fedrepro import papers
from fedrepro.papers import Paper
from fedrepro.quantities.base import get
from fedrepro.report.text import aligned
from fedrepro.report.verdicts import build_table, order

Links = Mapping[tuple[str, str, str, str], str]
Marks = Mapping[str, str]  # letters of caveats
NOTHING = "No run is recorded yet for this."
FILED, APART = "authors’ file", "\u2260"
FILED_NOTE = (
    f"{FILED}: numbers from the public repository of the authors; {APART} if the printed number is "
    "not their rounding."
)
PARTS = {  # what a column shows, by scale
    "paper": ["paper", "ours", "difference", "verdict"],
    "reduced": ["paper", "ours", "rank, paper", "rank, ours"],
}
# Stays in sight, and wraps, while the wide table under it is scrolled.
CAPTION = "display: inline-block; position: sticky; left: 0; max-width: min(40rem, 82vw)"
MINUS = "\u2212"
UNIT_SIGNS = {"percent": "%", "fraction": "0 to 1", "ratio": "ratio", "factor": "times"}
AXES = {
    "percent": "accuracy (%)",
    "fraction": "accuracy (fraction)",
    "rounds": "communication rounds",
    "GB": "traffic of one client (GB)",
    "hours": "time (hours)",
    "ratio": "time, as a ratio",
    "factor": "factor (times)",
}
_DECIMALS = {"percent": 1, "fraction": 3, "ratio": 2}
STATEMENTS = {
    "smoke": "smoke: tests the code, not a result",
    "reduced": "reduced: order of methods only, no verdict on numbers",
    "paper": "paper: the paper's protocol",
}


@dataclass(frozen=True, repr=False)
class Html:
    """HTML for a notebook; its plain form has no number, so that it is equal on every machine."""

    html: str
    summary: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"<{self.summary}>"


def nothing(said: str = NOTHING) -> Html:
    """The line for missing records."""
    return Html(f"<p><em>{said}</em></p>", said)


def styled(frame: pd.DataFrame, kind: str, label: str, caption: str = "") -> str:
    """A frame of HTML texts as a table in its own box that scrolls, also by keyboard."""
    said = f'<span style="{CAPTION}">{caption}</span>' if caption else ""
    html = Styler(frame).set_caption(said).to_html(exclude_styles=True)
    head, body = html.split("<tbody>")
    head = head.replace("<table>", f'<table class="{kind}">').replace("<th ", '<th scope="col" ')
    head = head.replace(" colspan=", ' style="text-align: left" colspan=')
    head = head.replace("<caption>", '<caption style="text-align: left; white-space: normal">')
    body = body.replace("<th ", '<th scope="row" ').replace("<td >", "<td>")
    if "protocol" in kind:  # sentences, which JupyterLab aligns right
        body = re.sub("<(th|td)(?=[ >])", r'<\1 style="text-align: left"', body)
    whole = (
        f'<div class="table-scroll" style="overflow-x: auto" tabindex="0" role="region" '
        f'aria-label="{escape(label)}">\n{head}<tbody>{body}</div>\n'
    )
    return re.sub(r"\n +", "\n", whole)  # its indents are a seventh of it


def link(text: str, page: str | None) -> str:
    """HTML that leads to a page, if there is one."""
    return f'<a href="{page}">{text}</a>' if page else text


def linked_table(
    frame: pd.DataFrame, pages: Mapping[tuple[str, str], str], label: str, caption: str = ""
) -> Html:
    """A frame of plain values. pages: what a value leads to, a number then with one decimal; the
    other numbers of a column have equally many."""

    def decimals(values: Iterable[Any]) -> int:
        numbers = (v for v in values if not isinstance(v, str | Html) and not pd.isna(v))
        texts = (f"{Decimal(f'{v:g}'):f}" for v in numbers)  # small ones without an exponent, too
        return max((len(text.partition(".")[2]) for text in texts), default=0)

    def text(row: Any, column: Any, value: Any) -> str:
        if isinstance(value, Html):
            return value.html
        if pd.isna(value):
            return ""
        page = pages.get((row, column))
        if isinstance(value, str):
            return link(escape(value), page)
        return link(f"{value:.{1 if page else places[column]}f}".replace("-", MINUS), page)

    places = {c: decimals(frame[c]) for c in frame}
    cells = {c: [text(row, c, value) for row, value in frame[c].items()] for c in frame}
    shown = pd.DataFrame(cells, frame.index.map(escape))  # below one row of heads, to sort by
    head = escape(str(frame.columns.name or "")) or None
    shown = shown.rename(columns=escape).rename_axis(index=None, columns=head)
    return Html(styled(shown, "dataframe linked", label, escape(caption)), label)


def sentence(text: str) -> str:
    """HTML of a text: what is in backticks is code, and a long name may break after a mark."""
    html = re.sub("`(.+?)`", r"<code>\1</code>", escape(text))
    return re.sub(r"(?<=[a-z])[._/](?=\w)", r"\g<0><wbr>", html)


def prose(head: Sequence[str], rows: Iterable[Sequence[str]], summary: str, kind: str = "") -> Html:
    """A table of sentences; the first column names a row."""
    frame = pd.DataFrame(rows, columns=list(head)).map(sentence).set_index(head[0])
    frame = frame.rename_axis(index=None, columns=head[0])
    return Html(styled(frame, f"protocol prose {kind}".strip(), summary), summary)


def whole(frame: pd.DataFrame, label: str, names: int) -> Html:
    """All rows of a frame of plain values; the first so many columns name a row."""
    texts = frame.map(lambda value: escape(str(value))).set_index(list(frame)[:names])
    return Html(styled(texts, "dataframe", label), label)


def number(value: Any, unit: str, signed: bool = False) -> str:
    """A value as text: decimals by unit, a true minus sign, an en dash if there is none. In units
    without fixed decimals small values keep two significant digits."""
    if value is None or pd.isna(value):
        return "–"
    value = float(value)
    if unit in _DECIMALS:
        decimals = _DECIMALS[unit]
    elif value == round(value) or abs(value) >= 100:
        decimals = 0
    elif abs(value) < 0.1:
        decimals = 1 - math.floor(math.log10(abs(value)))
    else:
        decimals = 1 if abs(value) >= 10 else 2
    rounded = round(value, decimals) + 0.0  # no minus sign before a zero
    sign = "+" if signed and rounded else ""
    return f"{rounded:{sign}.{decimals}f}".replace("-", MINUS)


def spread(mean: Any, std: Any, unit: str) -> str:
    """``87.9 ± 0.4``, without the second part if there is no deviation."""
    text = number(mean, unit)
    return text if std is None or pd.isna(std) else f"{text} ± {number(std, unit)}"


def folded(title: str, html: str) -> str:
    """HTML that is shown when its title is clicked."""
    return f"<details><summary>{escape(title)}</summary>\n{html}</details>\n"


def badge(word: str, why: str = "", shown: str = "") -> str:
    """A verdict in its colour. why: said under the pointer. shown: a text in the word's place."""
    title = f' title="{escape(why)}"' if why else ""
    kind = word.replace(" ", "-")
    return f'<span class="verdict verdict-{kind}"{title}>{escape(shown or word)}</span>'


# Printed numbers beside ours: one section per data set and scale.


class Section:
    """Printed cells and our runs on one data set at one scale, which is empty if nothing was run.

    cells: lines of `verdicts.build_table` by (method, column); absent if neither side has a number.
    Methods and columns are in the paper's order, then what it does not print; an average last, but
    columns without runs after those with.
    standins: columns that are a stand-in, or an average that contains one. bare: no printed number
    belongs to these data. filed: the authors' files have some. ranked: its rows have an order.
    """

    def __init__(self, rows: pd.DataFrame, scale: str) -> None:
        first = rows.iloc[0]
        self.table, self.dataset, self.scale = first.table, first.dataset, scale
        paper = papers.load(first.paper)
        table = paper.table(self.table)
        ran, printed = (set(rows.column[has]) for has in (rows.seeds > 0, rows.published.notna()))
        columns = sorted({*rows.column}, key=[*table.columns, *rows.column].index)
        columns.sort(key=lambda c: (bool(ran) and c not in ran, c == "avg"))
        if "avg" in ran - printed and len(ran) == 2:  # of one column
            columns.remove("avg")
        # Other images, domains or measures than the paper's: its own columns would be empty.
        foreign = bool(ran - printed - {"avg"}) or self.dataset.startswith("folder")
        self.columns = [c for c in columns if c in ran or not foreign]
        if foreign:  # an average over other domains is another number
            rows = rows.assign(published=None, published_std=None)
        rows = rows[rows.column.isin(self.columns)]
        self.methods = sorted({*rows.method}, key=[*table.rows, *rows.method].index)
        self.head = head_of(self.methods)
        self.standins = set(rows.column[rows.standin])
        self.bare = bool(rows.published.isna().all())
        self.filed = not self.bare and bool(rows.authors.notna().any())
        self.statement = STATEMENTS.get(scale, "printed numbers only")
        self.notes = []
        if left_out := ", ".join(c for c in columns if c not in self.columns):
            self.notes.append(f"The paper prints other columns, left out: {left_out}.")
        self.ranked = scale == "reduced" and not self.bare and not _of_one_set(paper, self.table)
        lines = rows.to_dict("records")
        if self.ranked:
            self.notes.append("Ranks (1 is best) count the methods with both numbers.")
            lines += order(rows).to_dict("records")  # those that have ranks, in place of the first
        self.cells = {(line["method"], line["column"]): line for line in lines}
        if self.filed:
            self.notes.append(FILED_NOTE)

    def unit(self, column: str) -> str:
        return next(str(cell["unit"]) for (_, c), cell in self.cells.items() if c == column)

    def heading(self, column: str) -> str:
        """A column's name, marked if it is a stand-in."""
        mark = " (with stand-in)" if column == "avg" else " (stand-in)"
        return column + mark * (column in self.standins)

    def caveats(self, *parts: Sequence[str]) -> tuple[str, dict[str, str]]:
        """A line on the deviations that every number of ours in some columns has; the others, with
        their footnote letters: a, b, ..., z, aa, ab, ..."""
        clauses: dict[str, None] = {}
        for columns in parts:
            places = product(self.methods, columns)
            cells = [self.cells[place] for place in places if place in self.cells]
            ours = [dict.fromkeys(cell["caveats"]) for cell in cells if cell["seeds"]]
            every = [c for c in (ours or [{}])[0] if all(c in one for one in ours)]
            clauses |= {c: None for one in ours for c in one if c not in every}
        letters = (*ascii_lowercase, *map("".join, product(ascii_lowercase, repeat=2)))
        said = f"Every number of ours here: {'; '.join(every)}." if every else ""
        return said, dict(zip(clauses, letters, strict=False))

    def html(self, caption: str, links: Links) -> str:
        """The table; the averaged columns are folded under one of their average."""
        others = [column for column in self.columns if column != "avg"]
        parts = [self.columns] if len(others) in (0, len(self.columns)) else [["avg"], others]
        _, letters = self.caveats(*parts)  # in the order of sight

        def part(columns: Sequence[str], label: str) -> str:
            """Some columns, and under them those caveats that they have."""
            said = f"{escape(self.statement)}."
            if self.scale in ("reduced", "smoke"):
                said = f"<strong>{said[:-1]}</strong>. Every cell: {badge('no verdict')}."
            kind = f"dataframe beside beside-{self.scale or 'none'}"
            every, own = self.caveats(columns)
            caveats = {c: letter for c, letter in letters.items() if c in own}
            texts = self._texts(columns, caveats, links)
            html = styled(texts, kind, label, f"{escape(label)}. {said}")
            lines = [f"<li>{escape(every)}</li>"] * bool(every)
            lines += [f"<li><sup>{mark}</sup> {escape(c)}</li>" for c, mark in caveats.items()]
            marks = f'<ul class="table-marks" style="list-style: none">{"".join(lines)}</ul>\n'
            return html + marks * bool(lines)

        label = f"{caption or self.table}, {self.dataset}"
        html = part(parts[0], label)
        if parts[1:]:
            html += folded("Per domain", part(others, f"{label}, per domain"))
        return html + "".join(f'<p class="table-note">{escape(n)}</p>\n' for n in self.notes)

    def text(self, caption: str) -> str:
        """The same, aligned: a block per column; one if nothing is compared with ours."""
        every, caveats = self.caveats(self.columns)
        texts = self._texts(self.columns, caveats, {})
        texts = texts.map(_bare).rename(index=_bare, columns=_bare)
        blocks = [f"{caption or self.table}, {self.dataset}. {self.statement}."]
        if self.bare:
            rows = texts.droplevel(1, axis=1)
            blocks.append(aligned((self.head, *rows), rows.itertuples(name=None)))
        for heading in texts.columns.unique(0) if not self.bare else ():
            rows = texts[heading]
            lines = rows[rows.ne("").any(axis=1) & (rows["ours"] != "–")].itertuples(name=None)
            blocks.append(f"{heading}\n{aligned((self.head, *rows), lines)}")
        notes = [f"  {letter}  {clause}" for clause, letter in caveats.items()]
        notes += [every] * bool(every) + self.notes
        return "\n\n".join([*blocks, "\n".join(notes)]).rstrip("\n") + "\n"

    def _texts(self, shown: Sequence[str], caveats: Marks, links: Links) -> pd.DataFrame:
        """HTML of columns: a row per method and last Kendall's tau; columns (column, part)."""
        parts = ["ours"] if self.bare else PARTS.get(self.scale, ["paper", "ours"])
        parts = [p for p in parts if self.ranked or not p.startswith("rank")]
        parts = parts + [FILED] * self.filed  # last: on a phone the others come first
        columns: dict[tuple[str, str], list[str]] = {}
        taus = {}
        for column in shown:
            unit = self.unit(column)
            heading = escape(f"{self.heading(column)} ({UNIT_SIGNS.get(unit, unit)})")
            rows = [self.cells.get((method, column)) for method in self.methods]
            cells = [_cell(row, caveats, links) for row in rows]
            columns |= {(heading, part): [cell.get(part, "") for cell in cells] for part in parts}
            if agreed := [row["tau"] for row in rows if row and "tau" in row]:
                taus[heading, "rank, ours"] = number(agreed[0], "ratio")
        frame = pd.DataFrame(columns, index=list(map(escape, self.methods)))
        frame.columns = pd.MultiIndex.from_tuples(columns, names=[None, self.head])
        if taus:  # in a browser the row in italics stays last when others are sorted
            frame.loc["<em>Kendall’s tau</em>"] = [taus.get(key, "") for key in columns]
        return frame


def _bare(html: str) -> str:
    return unescape(re.sub("<[^>]*>", "", re.sub("<(br|sup)", r" <\1", html)))


def head_of(rows: Sequence[str]) -> str:
    """What a row is: a method, if one of them has the name of a method."""
    return "method" if papers.known_methods(rows).intersection(rows) else "row"


def _cell(cell: Mapping[str, Any] | None, caveats: Marks, links: Links) -> dict[str, str]:
    """The parts of a printed cell beside ours, as HTML."""
    if cell is None:
        return {"paper": "–", "ours": "–"}
    letters = ", ".join(caveats[c] for c in caveats if c in cell["caveats"])
    unit = str(cell["unit"])
    valid, seeds = int(cell["valid"]), int(cell["seeds"])
    of = f"n={seeds}" if valid in (0, seeds) else f"n={valid} of {seeds}"
    of = f"({('counted' if cell['counted'] else 'one run') if seeds == 1 else of})"
    ours = "none" if pd.isna(cell["ours"]) else spread(cell["ours"], cell["ours_std"], unit)
    ours = f"{ours} {of}" if seeds else "not run"
    ours += f'<sup class="mark">{letters}</sup>' * bool(letters)
    to = links.get((cell["dataset"], cell["scale"], cell["method"], cell["column"]))
    ours = link(ours, to if seeds else None)
    gap = number(cell["difference"], unit, signed=True)
    if pd.notna(cell["low"]):
        gap += f"<br><small>[{number(cell['low'], unit)}, {number(cell['high'], unit)}]</small>"
    return {
        "paper": spread(cell["published"], cell["published_std"], unit),
        FILED: f"{APART} " * bool(cell["contradicted"]) + number(cell["authors"], unit),
        "ours": ours,
        "difference": gap,
        "verdict": badge(cell["verdict"], cell["why"]),
        "rank, paper": f"{cell['rank_published']:g}" if "tau" in cell else "–",
        "rank, ours": f"{cell['rank_ours']:g}" if "tau" in cell else "–",
    }


def sections(frame: pd.DataFrame) -> list[Section]:
    """One section per (data set, scale) with runs, each with the printed cells it did not run; one
    with only printed cells if there is none."""
    paper, table = papers.load(frame.paper.iloc[0]), frame.table.iloc[0]
    printed = build_table(paper, table, [])
    printed = printed[printed.published.notna() & printed.column.isin(frame.column)]
    ran, found, cell = frame[frame.seeds > 0], [], ["method", "column"]
    for (_, scale), own in ran.groupby(["dataset", "scale"], sort=False):
        had = (ran if _of_one_set(paper, table) else own).set_index(cell).index
        mine, every = {*own.column}, {*ran.column}
        others = every - mine if mine & {*printed.column} else set()  # of other data sets
        left = ~printed.column.isin(others) & ~printed.set_index(cell).index.isin(had)
        found.append(Section(pd.concat([own, printed[left]]), scale))
    return found or [Section(frame, "")]


def _of_one_set(paper: Paper, table: str) -> bool:
    """Whether each row of a table is of one data set."""
    return any(get(e.kind).of_one_set for e in paper.experiments if e.table == table)


def beside_table(table: pd.DataFrame, caption: str = "", links: Links | None = None) -> Html:
    """A frame of `verdicts.build_table` as one table per data set and scale: methods downwards, per
    column the paper's number, ours, their difference with its interval, and the verdict; at scale
    reduced ranks. links: the target of our number of a (data set, scale, method, column)."""
    found = sections(table)
    where = ", ".join(f"{s.dataset} {s.scale}".strip() for s in found)
    html = "\n".join(one.html(caption, links or {}) for one in found)
    return Html(html, f"{found[0].table} beside the paper's: {where}")


def plain(table: pd.DataFrame, caption: str = "") -> str:
    """The same in aligned text."""
    return "\n".join(one.text(caption) for one in sections(table))
