"""The page *Parity*: how far each method is from its official code, computed as it is built."""

import sys
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from fedrepro.report.tables import Html, folded, styled

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.parity import Case, cases
from tests.parity.checks import difference


@cache
def measured() -> list[tuple[Case, float]]:
    """Every case with its largest difference, relative where the expected value is above 1."""
    return [(case, difference(case)) for case in cases()]


def by_method() -> Html:
    """One row per method: how many cases agree, the largest difference, against what, as read."""
    agree = [(case, gap) for case, gap in measured() if not case.differs]
    rows = []
    for name in sorted({case.trained for case, _ in agree}, key=str.lower):
        own = [case for case, _ in agree if case.trained == name]
        worst = max(gap for case, gap in agree if case.trained == name)
        rows.append((name, str(len(own)), f"{worst:.1e}", _sources(own), _reading(own)))
    head = ("method", "cases", "largest difference", "against", "as read")
    return _table("Cases that agree", head, rows)


def differing() -> Html:
    """One row per case that does not agree: by how much, with which code, and why."""
    rows = [
        (case.trained, escape(case.name), f"{gap:.1e}", _sources([case]), reason(case))
        for case, gap in measured()
        if case.differs
    ]
    return _table("Cases that differ", ("method", "case", "difference", "against", "why"), rows)


def every_case() -> Html:
    """One row per case: the largest difference, what it may be, and as read."""
    rows = []
    for case, gap in measured():
        allowed = "differs" if case.differs else f"{case.tolerance:.0e}"
        rows.append((case.trained, escape(case.name), f"{gap:.1e}", allowed, _reading([case])))
    heads = "method", "case", "difference", "allowed", "as read"
    return Html(folded(f"{len(rows)} cases", _table("Every case", heads, rows).html), "every case")


def reason(case: Any) -> str:
    return escape(case.differs[0].upper() + case.differs[1:]) + "."


def total() -> Html:
    """How many cases agree and how far the farthest of them is; how many differ."""
    agree = [gap for case, gap in measured() if not case.differs]
    text = (
        f"{len(agree)} cases agree, to {max(agree):.1e} at worst; "
        f"{len(measured()) - len(agree)} differ, each for a reason that is known."
    )
    return Html(f"<p>{text}</p>", "how many cases agree")


def _sources(cases: Sequence[Any]) -> str:
    """What the cases come from, each once, a line each: kind, repository, commit and file."""
    return "<br>".join(dict.fromkeys(_source(case.source) for case in cases))


def _source(source: dict[str, Any]) -> str:
    if source["repository"] is None:
        return escape(f"{source['kind']}: {source['lines']}")
    repository, commit = source["repository"], source["commit"]
    address = f"https://github.com/{repository}/tree/{commit}"
    link = f'<a href="{escape(address)}">{escape(repository)}@{escape(commit[:7])}</a>'
    kind = "" if source["kind"] == "official code" else source["kind"]
    more = [part for part in (source["file"], kind, source.get("note")) if part]
    return f"{link} {escape('; '.join(more))}"


def _reading(cases: Sequence[Any]) -> str:
    """Fields and protocol settings with all values they take, and the notes."""
    values: dict[str, dict[str, None]] = {}
    for case in cases:
        settings = case.reading["fields"] | case.reading.get("protocol", {})
        for name, value in settings.items():
            shown = tuple(value) if isinstance(value, list) else value
            values.setdefault(name, {})[str(shown)] = None
    fields = [f"<code>{escape(n)}</code> {escape(', '.join(v))}" for n, v in values.items()]
    notes = dict.fromkeys(case.reading.get("note", "") for case in cases)
    lines = ["; ".join(fields) or "defaults", *(escape(note) for note in notes if note)]
    return "<br>".join(lines)


def _table(label: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    frame = pd.DataFrame([row[1:] for row in rows], columns=list(head[1:]))
    frame.index = pd.Index([row[0] for row in rows])
    html = styled(frame.rename_axis(columns=head[0]), "parity", label, f"{label}.")
    return Html(html, label.lower())
