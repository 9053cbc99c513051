"""The claims' answers as pages and the README show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from html import escape

import pandas as pd

from fedrepro import papers
from fedrepro.papers import Paper
from fedrepro.quantities.base import get
from fedrepro.report.claims import LEVEL, Answer, Difference, Part, answered, of_recorded
from fedrepro.report.results import FLAT, Results
from fedrepro.report.sections import number
from fedrepro.report.tables import Html, badge, prose, styled
from fedrepro.report.text import dataset_name, markdown

CLAIMS = "claims.html"  # the page of all claims, for the other pages of results
RULES = (
    ("holds", f"every difference is above the margin, one-sided p < {LEVEL:g} each"),
    (
        "contradicted",
        f"a difference is below it, p < {LEVEL:g} after Holm's correction over the claim",
    ),
    ("open", "neither, or no run, one seed, or curves at scale reduced that are not flat yet"),
)


NOTES = (
    "A difference has two errors, added in variance. The first is the spread of the paired "
    "differences over seeds, pooled over the comparisons of one table on one data set.",
    "The second is that of the test images, which all seeds share: from the recorded predictions, "
    "image by image, where both rows kept them; else p(1-p)/N of each row, as if each had its own "
    "images.",
    "The answer stands with its scale. At scale reduced it is about a small network, fewer rounds "
    "and the weights of the protocol page, not about the paper's own run.",
    "A table at scale reduced answers only where its curves are flat: the last quarter of the "
    f"rounds adds less than {FLAT:g} point of mean accuracy to every row compared. What it adds is "
    "read off a straight line through the last half, as the mean over seeds (since 2026-11-24; "
    "before, off the last five rounds alone, which chance moves by a point or more).",
    "An open claim whose curves are flat says which lead such runs would show four times of five, "
    "and how many seeds a lead of the printed size takes, in hours of the core that trained them.",
    "A claim about traffic is answered at scale paper alone: a small network has other bytes. What "
    "is counted from the paper's own networks and rounds, not trained, has no error.",
)


def rules() -> Html:
    """When a claim holds, is contradicted or stays open."""
    return prose(("answer", "when"), RULES, "the answers a claim can have")


def notes() -> Html:
    """What the tests are made of."""
    lines = "".join(f"<li>{escape(note)}</li>" for note in NOTES)
    return Html(f"<ul>{lines}</ul>", "how claims are tested")


def overview() -> pd.DataFrame:
    """How many claims of each paper have which answer: one row per paper."""
    counts = {
        papers.load(name).short: Counter(answer.verdict for answer in of_recorded(name))
        for name in papers.list()
    }
    words = [word for word, _ in RULES]
    return (
        pd.DataFrame.from_dict(counts, orient="index")
        .reindex(columns=words, fill_value=0)
        .fillna(0)
        .astype(int)
    )


def answers(found: Results) -> Html:
    """Every claim of a page's paper with its answer, which leads to what decided it."""
    return _table(
        found.paper,
        {
            escape(one.claim.claim): {
                "where": escape(one.claim.where),
                "answer": f'<a href="{CLAIMS}#{one.paper}-{one.claim.id}">{_badge(one)}</a>',
            }
            for one in answered(found)
        },
    )


def shown(name: str) -> Html:
    """Every claim of one paper with its answer, what decides it, and the commands that repeat the
    runs. Each has an anchor: paper and claim id."""
    rows = {}
    for one in of_recorded(name):
        lines = "".join(f"<p>{line}</p>" for line in map(escape, one.row()["evidence"]))
        rows[f'<span id="{name}-{one.claim.id}">{escape(one.claim.claim)}</span>'] = {
            "where": escape(one.claim.where),
            "answer": _badge(one),
            "what was compared": lines + _commands(one),
        }
    return _table(papers.load(name), rows)


def _table(paper: Paper, rows: Mapping[str, Mapping[str, str]]) -> Html:
    """Of HTML texts, one row per claim."""
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis(columns="claim")
    label = f"claims of {paper.short} and answers"
    return Html(styled(frame, "protocol prose claims", label), label)


def _badge(one: Answer) -> str:
    return badge(one.verdict, shown=one.answer)


def _commands(one: Answer) -> str:
    """What trains the runs of a claim again."""
    lines = [
        f"fedrepro sweep {one.paper} --experiment {part.test.experiment} --dataset {part.dataset} "
        f"--scale {part.scale} --seeds 0-{part.seeds - 1}"
        for part in one.parts
        if part.seeds
    ]
    if not lines:
        return ""
    again = "<br>".join(f"<code>{escape(line)}</code>" for line in dict.fromkeys(lines))
    return f"<details><summary>Run it again</summary>{again}</details>"


def main_claims(page: str) -> str:
    """The papers' main claims as a Markdown table, one row per claim and data set. page: that of
    all claims."""
    rows = []
    for name in papers.list():
        paper = papers.load(name)
        for one in (one for one in of_recorded(name) if one.claim.main):
            answer = f'<a href="{page}#{name}-{one.claim.id}">{one.answer}</a>'
            said = paper.short, one.claim.main, answer
            for lead in _leads(paper, one.parts):
                rows.append((*said, *lead))
                said = "", "", ""
    return markdown(("paper", "claim", "answer", "on", "printed", "ours"), rows)


def glue_main() -> None:
    """Hand the first page of the book its table, so that claims are answered once a build."""
    import scrapbook

    scrapbook.glue("main", main_claims(f"results/{CLAIMS}"))


def _leads(paper: Paper, parts: Sequence[Part]) -> Iterator[tuple[str, str, str]]:
    """Where, the printed lead, and ours: ``Digits, reduced``, ``+1.6``, ``+0.5 [-1.1, +2.1] over
    FedBN; still rising``; on each data set of the difference that supports the claim least."""
    weakest: dict[str, tuple[Part, Difference]] = {}
    for part in parts:
        least, known = part.weakest, weakest.get(part.dataset)
        if least is not None and (known is None or least.p > known[1].p):
            weakest[part.dataset] = part, least
    for dataset, (part, least) in weakest.items():
        yield f"{dataset_name(dataset)}, {part.scale}", *_lead(paper, part, least)
    specs = [paper.experiment(part.test.experiment) for part in parts if not part.differences]
    if missing := dict.fromkeys(dataset_name(spec.datasets[0]) for spec in specs):
        yield ", ".join(missing), "", "not run"


def _lead(paper: Paper, part: Part, least: Difference) -> tuple[str, str]:
    whole = get(paper.experiment(part.test.experiment).kind).whole
    unit = "fraction" if whole == 1 else "percent"
    signed = partial(number, unit=unit, signed=not part.test.lower)
    ours = signed(least.mean)
    if least.interval is not None:
        ours += " [{}, {}]".format(*map(signed, least.interval))
    ours += f" {'less than' if part.test.lower else 'over'} {least.other}"
    ours += "; counted" * least.exact + "; still rising" * bool(part.rising)
    return "" if least.printed is None else signed(least.printed), ours
