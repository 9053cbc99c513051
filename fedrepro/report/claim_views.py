"""The claims' answers for pages and the README."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Mapping
from html import escape

import pandas as pd

from fedrepro import papers
from fedrepro.papers import Paper
from fedrepro.report import claim_links, leads
from fedrepro.report.claims import LEVEL, Answer, Part, answered, of_recorded
from fedrepro.report.results import FLAT, Results
from fedrepro.report.tables import Html, badge, prose, styled
from fedrepro.report.text import markdown

CLAIMS = "claims.html"  # the page of all claims, for the other pages of results
PICTURE = "main-claims.png"
RULES = (
    ("holds", f"every difference is above the margin, one-sided p < {LEVEL:g} each"),
    (
        "contradicted",
        f"a difference is below it, p < {LEVEL:g} after Holm's correction over the claim",
    ),
    ("open", "neither; or no run, one seed, earlier settings, or curves that are not flat yet"),
)


NOTES = (
    "A difference has two errors, added in variance. The first is the spread of the paired "
    "differences over seeds, pooled over the comparisons of the claim on one data set and scale.",
    "Differences to one common row are correlated, so that the degrees of freedom of this pooled "
    "spread are somewhat too high.",
    "The second is that of the test images, which all seeds share: from the recorded predictions, "
    "image by image, where both rows kept them; else p(1-p)/N of each row, as if each had its own "
    "images.",
    "The answer stands with its scale. At scale reduced it is about a small network, fewer rounds "
    "and the weights of the protocol page, not about the paper's own run.",
    "A table at scale reduced answers only where its curves are flat: the last quarter of the "
    f"rounds adds less than {FLAT:g} point of mean accuracy to every row compared. What it adds is "
    "read off a straight line through the last half, as the mean over seeds (since 2026-11-24; "
    "before, off the last five rounds alone, which chance moves by a point or more).",
    "An open claim that has runs says which lead such runs would show four times of five, beside "
    "the printed one. Where the curves are flat it says how many seeds a lead of the printed size "
    "takes, in hours of the core that trained them; else it says what is missing.",
    "A claim about traffic is answered at scale paper alone: a small network has other bytes. What "
    "is counted from the paper's own networks and rounds, not trained, has no error.",
)


def rules() -> Html:
    """When a claim holds, is contradicted or stays open."""
    return prose(("answer", "when"), RULES, "the answers a claim can have")


def notes() -> Html:
    """How claims are tested, as text."""
    lines = "".join(f"<li>{escape(note)}</li>" for note in NOTES)
    return Html(f"<ul>{lines}</ul>", "how claims are tested")


def overview() -> pd.DataFrame:
    """The number of claims with each answer: one row per paper."""
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
    """Every claim of a page's paper with its answer, which links to its evidence."""
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
    """Every claim of one paper with its answer, the evidence, and the commands that repeat the
    runs. Each has an anchor: paper and claim id."""
    rows = {}
    for one in of_recorded(name):
        lines = [_said(part, len(one.parts) > 1) for part in one.parts] or [
            escape(one.claim.untested)
        ]
        rows[f'<span id="{name}-{one.claim.id}">{escape(one.claim.claim)}</span>'] = {
            "where": escape(one.claim.where),
            "answer": _badge(one),
            "what was compared": "".join(f"<p>{line}</p>" for line in lines)
            + claim_links.below(one)
            + _commands(one),
        }
    return _table(papers.load(name), rows)


def _table(paper: Paper, rows: Mapping[str, Mapping[str, str]]) -> Html:
    """A table of HTML texts, one row per claim."""
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis(columns="claim")
    label = f"claims of {paper.short} and answers"
    return Html(styled(frame, "protocol prose claims", label), label)


def _badge(one: Answer) -> str:
    return badge(one.verdict, shown=one.answer)


def _said(part: Part, several: bool) -> str:
    """HTML: what a part compared, the printed lead, and the part's own answer beside others."""
    least, said = part.weakest, part.why
    if least is not None and least.printed is not None and "printed" not in said:
        said += f"; printed {least.printed:+.3g}"
    word = f'<span class="verdict verdict-{part.verdict}">{part.verdict}</span> '
    return word * several + escape(said)


def _commands(one: Answer) -> str:
    """The commands that train the runs of a claim again."""
    lines = [
        f"fedrepro sweep {one.paper} --experiment {name} --dataset {part.dataset} "
        f"--scale {part.scale} --seeds 0-{part.seeds - 1}"
        for part in one.parts
        for name in (part.test.experiment, part.test.against)
        if part.seeds and name
    ]
    if not lines:
        return ""
    again = "<br>".join(f"<code>{escape(line)}</code>" for line in dict.fromkeys(lines))
    return f"<details><summary>Run it again</summary>{again}</details>"


def main_claims(page: str, pictures: str) -> str:
    """The papers' main claims in Markdown: one row each, for the data set that supports it least,
    and the picture of all. page: the address of the page of all claims; pictures: the folder of the
    picture."""
    head = ("paper", "claim", "answer", "scale", "least support on", "printed", "ours")
    rows = []
    for paper, one in leads.main():
        answer = f'<a href="{page}#{paper.name}-{one.claim.id}">{one.verdict}</a>'
        least = max(leads.leads(paper, one.parts), key=lambda lead: lead.support, default=None)
        found = ("", "", "", "not run")
        if least is not None:
            found = (least.part.scale + ", counted" * least.counted, least.where, *least.shown)
        rows.append((paper.short, one.claim.main, answer, *found))
    caption = leads.drawn().caption
    return f"{markdown(head, rows)}\n![{caption}]({pictures}/{PICTURE})\n"


def glue_main() -> None:
    """Glue table and picture for the book's first page, so that claims are answered once per
    build."""
    import scrapbook

    scrapbook.glue("main", main_claims(f"results/{CLAIMS}", "_static"))
    scrapbook.glue("picture", b64encode(leads.drawn().png()).decode())
