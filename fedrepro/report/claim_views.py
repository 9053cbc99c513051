"""The claims' answers for pages and the README."""

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from functools import cache
from html import escape

import nbformat
import pandas as pd

from fedrepro import papers
from fedrepro.base.places import CHECKOUT
from fedrepro.papers import Paper
from fedrepro.report import leads, run_page, views
from fedrepro.report.claims import LEVEL, Answer, Part, Word, answered, of_recorded
from fedrepro.report.results import FLAT, Results, kept
from fedrepro.report.tables import Html, badge, prose, styled
from fedrepro.report.text import dataset_name, markdown

CLAIMS = "claims.html"  # the page of all claims, for the other pages of results
PICTURE = "main-claims.png"
RULES: tuple[tuple[Word, str], ...] = (
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
    counts = {}
    for name in papers.list():
        verdicts = [answer.verdict for answer in of_recorded(name)]
        counts[papers.load(name).short] = {word: verdicts.count(word) for word, _ in RULES}
    return pd.DataFrame.from_dict(counts, orient="index")


def answers(found: Results) -> Html:
    """Every claim of a page's paper with its answer, which links to its evidence."""
    rows = {}
    for one in answered(found):
        answer = badge(one.verdict, shown=one.answer)
        rows[escape(one.claim.claim)] = {
            "where": escape(one.claim.where),
            "answer": f'<a href="{CLAIMS}#{one.paper}-{one.claim.id}">{answer}</a>',
        }
    return _table(found.paper, rows)


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
            "answer": badge(one.verdict, shown=one.answer),
            "what was compared": "".join(f"<p>{line}</p>" for line in lines)
            + links(one)
            + _commands(one),
        }
    return _table(papers.load(name), rows)


def _table(paper: Paper, rows: Mapping[str, Mapping[str, str]]) -> Html:
    """A table of HTML texts, one row per claim."""
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis(columns="claim")
    label = f"claims of {paper.short} and answers"
    return Html(styled(frame, "protocol prose claims", label), label)


def _said(part: Part, several: bool) -> str:
    """HTML: what a part compared, the printed lead, and the part's own answer beside others."""
    least, said = part.weakest, part.why
    if least is not None and least.printed is not None and "printed" not in said:
        said += f"; printed {least.printed:+.3g}"
    word = f'<span class="verdict verdict-{part.verdict}">{part.verdict}</span> '
    return word * several + escape(said)


def _commands(one: Answer) -> str:
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
        lead = max(leads.leads(paper, one.parts), key=lambda lead: lead.least.p, default=None)
        found = ("", "", "", "not run")
        if lead is not None:
            counted = ", counted" * all(d.exact for d in lead.part.differences)
            found = (lead.part.scale + counted, lead.where, *lead.shown)
        rows.append((paper.short, one.claim.main, answer, *found))
    return f"{markdown(head, rows)}\n![{leads.caption()}]({pictures}/{PICTURE})\n"


def glue_main() -> None:
    """Glue table and picture for the book's first page, so that claims are answered once per
    build."""
    import scrapbook

    scrapbook.glue("main", main_claims(f"results/{CLAIMS}", "_static"))
    scrapbook.glue("picture", b64encode(leads.drawn().png()).decode())


# From a claim to what is behind it: the printed table beside ours, the figures, and the runs.


def links(one: Answer) -> str:
    """HTML: a line of links for what each part of a claim was read from, then the figures."""
    found = [link for part in one.parts for link in _part(one.paper, part)]
    if not one.parts:
        found = [link for name in one.claim.experiments for link in _linked(one.paper, name, "")]
    found += _figures(one)
    return f"<p>See {', '.join(dict.fromkeys(found))}.</p>" if found else ""


def _part(paper: str, part: Part) -> Iterator[str]:
    test, least = part.test, part.weakest
    for name in filter(None, (test.experiment, test.against)):
        yield from _linked(paper, name, part.dataset)
    if least is None:
        return
    found, theirs = kept(paper), test.against or test.experiment
    for name, row in ((test.experiment, test.better), (theirs, least.other)):
        table = found.paper.experiment(name).table
        shown = found.paper.column(table, least.column) if table else None
        cell = part.dataset, part.scale, row, shown or least.column
        if runs := _runs(paper, name).get(cell):
            yield f'<a href="{runs}">runs of {escape(row)}{_on(part.dataset)}</a>'


def _linked(paper: str, experiment: str, dataset: str) -> Iterator[str]:
    """A link to a table on the first page of results that shows it, if there is a table."""
    if not kept(paper).paper.experiment(experiment).table:
        return
    places, own = views.anchors(kept(paper), experiment), f"{experiment}-{dataset}"
    named = re.compile(rf'found\b[^\n]*"{re.escape(experiment)}"')
    pages = (page for page, text in _sources(paper).items() if named.search(text))
    place = f"{next(pages, f'{paper}_results.html')}#{own if own in places else places[0]}"
    yield f'<a href="{place}">{escape(experiment)}{_on(dataset)}</a>'


def _on(dataset: str) -> str:
    return f" on {escape(dataset_name(dataset))}" if dataset else ""


@cache
def _runs(paper: str, experiment: str) -> dict[run_page.Cell, str]:
    return run_page.links(kept(paper), experiment)


def _figures(one: Answer) -> Iterator[str]:
    """Links to the headings that name the figures of a claim."""
    headings = [
        (page, line.lstrip("# "))
        for page, text in _sources(one.paper).items()
        for line in text.splitlines()
        if line.startswith("##")
    ]
    names = [*one.claim.experiments, *(part.test.experiment for part in one.parts)]
    for number in dict.fromkeys(re.findall(r"^figure-(\d+[a-z]?)", "\n".join(names), re.MULTILINE)):
        for page, title in headings:
            if re.search(rf"\(Figures? [^)]*\b{number}\b", title):
                slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")  # as Sphinx makes it
                yield f'<a href="{page}#{slug}">Figure {number}</a>'
                break


@cache
def _sources(paper: str) -> dict[str, str]:
    """What the cells of a paper's pages of results say, the main one first."""
    files = sorted((CHECKOUT / "book" / "results").glob(f"{paper}_*.ipynb"), reverse=True)
    return {
        f"{file.stem}.html": "\n".join(c.source for c in nbformat.read(file, as_version=4).cells)
        for file in files
    }
