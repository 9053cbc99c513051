"""The claims' answers for pages and the README, with a picture of the main ones."""

import re
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from html import escape

import nbformat
import pandas as pd

from fedrepro import papers
from fedrepro.base.files import CHECKOUT
from fedrepro.papers import Paper
from fedrepro.report import figures, views
from fedrepro.report.claims import Answer, Part, Word, of_recorded
from fedrepro.report.comparison import LEVEL, Difference
from fedrepro.report.leaderboard import in_short
from fedrepro.report.picture import Picture
from fedrepro.report.results import Results, recorded
from fedrepro.report.tables import MINUS, Html, badge, folded, prose, styled
from fedrepro.report.text import dataset_name, markdown

CLAIMS = "claims.html"  # the page of all claims, for the other pages of results
PICTURE = "main-claims.png"
UNITS = {"factor": " times", "percent": "", "as named in the row": "", "swing": " points"}
COLUMNS = ("answer", "paper", "claim", "scale", "data set", "printed", "ours")
HEAD = ["where", "answer", "our lead, and the printed one"]
RULES: tuple[tuple[Word, str], ...] = (
    ("holds", f"every difference is above the margin (0 or the size it names), p < {LEVEL:g}"),
    (
        "contradicted",
        f"a difference is below the margin, p < {LEVEL:g} after Holm's correction over the claim's "
        "differences that can answer",
    ),
    ("open", "neither; or no run, one seed, earlier settings, or curves that are not flat yet"),
)


def rules() -> Html:
    return prose(("answer", "when"), RULES, "the answers a claim can have")


def overview() -> pd.DataFrame:
    """The number of claims with each answer: one row per paper."""
    words = {name: Counter(one.verdict for one in of_recorded(name)) for name in papers.names()}
    counts = pd.DataFrame(words).reindex([word for word, _ in RULES]).fillna(0).astype(int)
    return counts.rename(columns=lambda name: papers.load(name).short).T


def answers(found: Results) -> Html:
    """Every claim of a page's paper with its answer, which links to its evidence."""
    rows = {}
    for one in of_recorded(found.paper.name):
        link = _link(CLAIMS, one, badge(one.verdict, shown=one.answer))
        rows[escape(one.claim.claim)] = escape(one.claim.where), link
    return _table(found.paper.short, rows)


def _link(page: str, one: Answer, text: str) -> str:
    return f'<a href="{page}#{one.paper}-{one.claim.id}">{text}</a>'


def at_scale_paper() -> Html:
    """The claims that runs at scale paper speak to, each with its answer and the lead that supports
    it least there. What is only counted is left out."""
    rows = {}
    for paper, one in every():
        own = [p if p.scale == "paper" else p.beside for p in one.parts]
        for part in leads([p for p in own if p and not all(d.exact for d in p.differences)]):
            printed, ours, _ = _words(paper, one, part)
            seeds = f"{part.weakest.runs}: " * (len(part.weakest.gaps) > 1)
            ours = seeds + ours + f"; printed {printed}" * bool(printed)
            said = f"{paper.short}, {dataset_name(part.dataset)}: {one.claim.name}"
            link = _link(CLAIMS, one, badge(one.verdict, shown=one.answer))
            rows[escape(said)] = escape(one.claim.where), link, escape(ours)
    return _table("all papers", rows)


def shown(name: str) -> Html:
    """Every claim of one paper with an anchor (paper and claim id), its answer, and one line per
    data set. Folded: what each part compared, with its own answer if there are several, and the
    commands that repeat the runs."""
    paper, rows = papers.load(name), {}
    for one in of_recorded(name):
        parts = [_in_points(part) for part in one.parts]
        tests = [f"{badge(p.verdict)} " * bool(parts[1:]) + escape(p.result) for p in parts]
        left = [escape(f"{p.place}: {p.missing}") for p in parts if p.missing]
        ends = [folded("What would decide it", _lines(dict.fromkeys(left)))] if left else []
        every = _lines(tests) + "".join([*ends, links(one), _commands(one)])
        rows[f'<span id="{name}-{one.claim.id}">{escape(one.claim.claim)}</span>'] = (
            escape(one.claim.where),
            badge(one.verdict, shown=one.answer),
            _lines(_brief(paper, one)) + (folded("Tests and runs", every) if tests else every),
        )
    return _table(paper.short, rows)


def _brief(paper: Paper, one: Answer) -> Iterator[str]:
    """Of each data set, the lead that supports the claim least; then what was not run."""
    for part in leads(one.parts):
        printed, ours, beside = _words(paper, one, part)
        said = f"{dataset_name(part.dataset)}, {part.scale}: {ours}"
        outside = ", outside our interval" * bool(part.outside)
        said += f"; printed {printed}{outside}" * bool(printed)
        if (rest := part.weakest.rest) is not None:
            said += "; without the stand-in " + f"{rest:+.1f}".replace("-", MINUS)
        said += f"; {beside}" * bool(beside)
        yield f"{badge(part.verdict)} " * bool(one.parts[1:]) + escape(said)
    if lacking := dict.fromkeys(part.result for part in one.parts if not part.differences):
        yield escape("; ".join(lacking))
    if not one.parts:
        yield escape(one.claim.untested)


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"<p>{text}</p>" for text in texts)


def _table(whose: str, rows: Mapping[str, Sequence[str]]) -> Html:
    frame = pd.DataFrame(rows, HEAD[: max(map(len, rows.values()), default=0)]).T
    label = f"claims of {whose} and answers"
    return Html(styled(frame.rename_axis(columns="claim"), "protocol prose claims", label), label)


def _commands(one: Answer) -> str:
    lines = [
        f"<code>fedrepro sweep {one.paper} --experiment {escape(name)} --dataset {part.dataset} "
        f"--scale {part.scale} --seeds {_seeds(part)}</code>"
        for part in one.parts
        for name in (part.test.experiment, part.test.against)
        if part.differences and name
    ]
    return folded("Run it again", "<br>".join(dict.fromkeys(lines))) if lines else ""


def _seeds(part: Part) -> str:
    """As ``--seeds`` takes them: 0-2 where none between is missing."""
    *first, last = sorted({int(seed) for one in part.differences for seed in one.gaps.index})
    whole = first and last - first[0] == len(first)
    return f"{first[0]}-{last}" if whole else ",".join(map(str, [*first, last]))


# From a claim to what is behind it: the printed table beside ours, the figures, and the runs.


def links(one: Answer) -> str:
    """HTML: links to what each part of a claim was read from, then to the figures."""
    found = [link for part in one.parts for link in _part(one.paper, part)]
    if not one.parts:
        found = [link for name in one.claim.experiments for link in _linked(one.paper, name, "")]
    found += _figures(one)
    return f"<p>See {', '.join(dict.fromkeys(found))}.</p>" if found else ""


def _part(name: str, part: Part) -> Iterator[str]:
    paper, other = papers.load(name), part.weakest.other if part.differences else ""
    rows = [(used, row) for used, *_, row in part.rows(other)]
    for experiment in dict.fromkeys(used for used, _ in rows):
        yield from _linked(name, experiment, part.dataset)
    if not part.differences:
        return
    for experiment, row in dict.fromkeys([(part.test.experiment, part.test.better), *rows]):
        table = paper.experiment(experiment).table
        column = "avg" if part.test.kind else part.weakest.column
        cell = part.dataset, part.scale, row, paper.column(table, column)
        if runs := recorded(name).links(experiment).get(cell):
            yield f'<a href="{runs}">runs of {escape(row)}{_on(part.dataset)}</a>'


def _linked(paper: str, experiment: str, dataset: str) -> Iterator[str]:
    """A link to a table on the first page of results that shows it, if there is a table."""
    if papers.load(paper).experiment(experiment).table:
        places, own = views.anchors(recorded(paper), experiment), f"{experiment}-{dataset}"
        named = re.compile(rf'found\b[^\n]*"{re.escape(experiment)}"')
        pages = (page for page, text in _sources(paper).items() if named.search(text))
        place = f"{next(pages, f'{paper}_results.html')}#{own if own in places else places[0]}"
        yield f'<a href="{place}">{escape(experiment)}{_on(dataset)}</a>'


def _on(dataset: str) -> str:
    return f" on {escape(dataset_name(dataset))}" if dataset else ""


def _figures(one: Answer) -> Iterator[str]:
    """Links to the headings that name the figures of a claim."""
    names = "\n".join([*one.claim.experiments, *(part.test.experiment for part in one.parts)])
    for number in dict.fromkeys(re.findall(r"^figure-(\d+[a-z]?)", names, re.MULTILINE)):
        heading = re.compile(rf"^##+ *(.*\(Figures? [^)\n]*\b{number}\b.*)", re.MULTILINE)
        for page, text in _sources(one.paper).items():
            if title := heading.search(text):
                slug = re.sub("[^a-z0-9]+", "-", title[1].lower()).strip("-")  # as Sphinx makes it
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


# The main claims.


def leads(parts: Sequence[Part]) -> list[Part]:
    """Of each data set with runs, the part whose lead supports its claim least, in points."""
    ran = [part for part in parts if part.differences]
    of = {part.dataset: [p for p in ran if p.dataset == part.dataset] for part in ran}
    return [_in_points(max(own, key=lambda part: part.weakest.weakness)) for own in of.values()]


def _in_points(part: Part) -> Part:
    differences, names = [], ("mean", "error", "margin", "printed", "rest", "whole")
    for one in part.differences:
        by = 100 / one.whole if one.whole else 1
        known = {name: getattr(one, name) for name in names}
        scaled = {name: by * value for name, value in known.items() if value is not None}
        scaled |= {name: by**2 * getattr(one, name) for name in ("spread", "images")}
        differences.append(replace(one, gaps=by * one.gaps, **scaled))
    beside = part.beside and _in_points(part.beside)
    return replace(part, differences=tuple(differences), beside=beside)


def _words(paper: Paper, one: Answer, part: Part) -> tuple[str, str, str]:
    """The printed lead, ours, and ours at the other scale: ``+1.6``, ``+0.5 [-1.1, +2.1] over
    FedBN``, ``scale paper, 2 seeds: -4.3 over FedBN``; or the values."""
    test, least, other, unit = part.test, part.weakest, part.beside, ""
    if not least.whole and (table := paper.experiment(test.experiment).table):
        named = str(test.by) if test.kind else paper.table(table).unit
        unit = UNITS.get(named, f" {named}")
    over, form, sign = f"{unit} over ", "+.1f", 1
    if test.lower:
        sign = -1 if least.mean < 0 else 1
        over, form = f"{unit} {'more' if sign < 0 else 'less'} than ", ".1f"
    if test.above is not None:
        sign = -1 if test.lower else 1  # the lead grows as the value falls
        over, form = f"{unit}; claimed: {'below' if test.lower else 'above'} ", ".4g"

    def value(lead: float) -> str:
        lead = sign * lead + (test.above or 0)
        lead = max(lead, 0.0) if unit == UNITS["factor"] else lead  # an interval's end, too
        near = bool(lead) and not float(f"{lead:{form}}")  # -0.03 is no -0.0
        return f"{lead:{form.replace('.1', '.2') if near else form}}".replace("-", MINUS)

    def lead(found: Difference, between: bool = True) -> str:
        both = ", ".join(map(value, found.interval[::sign] if found.interval and between else ()))
        return f"{value(found.mean)}{f' [{both}]' * bool(both)}{over}{found.other}"

    several = len({part.test.better for part in one.parts}) > 1
    ours = f"{test.better}: " * several + lead(least)
    if least.margin and test.above is None:
        ours += f"; has to be above {value(least.margin)}"
    ours += "; one seed" * (len(least.gaps) == 1 and not least.exact)
    others = "other rows: " * part.decides(least)
    lists = {"still rising": part.rising, "earlier settings": part.past}
    lists["one seed"] = tuple(part.single) if len(least.gaps) > 1 else ()
    ours += "".join(f"; {others}{why}" for why, rows in lists.items() if rows)
    ours += "; other rows: not run" * bool(part.lacking)
    beside = ""
    if other:
        run = other.weakest
        beside = f"scale {other.scale}, {run.runs}: {lead(run, other.ready)}"
        if run.printed is not None and run.other != least.other:
            beside += f", where {value(run.printed)} is printed"
    return "" if least.printed is None else value(least.printed) + unit, ours, beside


def every() -> list[tuple[Paper, Answer]]:
    """Every claim of every paper, answered."""
    return [(papers.load(name), one) for name in papers.names() for one in of_recorded(name)]


def main() -> list[tuple[Paper, Answer]]:
    return [(paper, one) for paper, one in every() if one.claim.main]


def drawn() -> Picture:
    """The main claims' leads in points: under every claim its data sets whose leads have an
    interval."""
    rows: list[tuple[str, Part | None]] = []
    for paper, one in main():
        if own := [p for p in leads(one.parts) if p.weakest.interval and p.weakest.whole]:
            rows.append((f"{paper.short}: {one.claim.main}", None))
            rows += [(dataset_name(part.dataset), part) for part in own]
    return figures.leads(rows)


def main_claims(page: str, pictures: str) -> str:
    """In Markdown: the claims that are decided, then the main ones that are open, one row each for
    the data set that supports it least; a picture of the main ones, and the order under the common
    protocol. page: the address of all claims, beside the common protocol's; pictures: a folder."""
    words = {word: place for place, (word, _) in enumerate(RULES)}
    found = sorted(every(), key=lambda pair: words[pair[1].verdict])
    decided = [(paper, one) for paper, one in found if one.verdict != "open"]
    left = [(paper, one) for paper, one in main() if one.verdict == "open"]
    tables = [
        f"**{name}**\n\n{markdown(COLUMNS, [_row(page, *pair) for pair in own])}"
        for name, own in (("Decided", decided), ("Main claims that are open", left))
        if own
    ]
    picture = f"![{drawn().caption}]({pictures}/{PICTURE})\n"
    order = in_short(recorded("common"), "methods", page.replace("claims", "common"))
    return "\n".join([f"{totals()}\n", *tables, picture, order])


def _row(page: str, paper: Paper, one: Answer) -> tuple[str, ...]:
    found = ("", "", "", "not run")
    if ran := leads(one.deciding if one.verdict == "contradicted" else one.parts):
        part = max(ran, key=lambda part: part.weakest.weakness)
        scale = part.scale + ", counted" * all(d.exact for d in part.differences)
        printed, *ours = _words(paper, one, part)
        found = scale, dataset_name(part.dataset), printed, "; ".join(filter(None, ours))
    return (_link(page, one, one.verdict), paper.short, one.claim.name, *found)


def totals() -> str:
    """How many claims have which answer, and why some are open."""
    answered = [one for _, one in every()]

    def decided(word: Word) -> str:
        own = [one.answer for one in answered if one.verdict == word]
        how = Counter(answer.removeprefix(word).lstrip(", ") for answer in own)
        counts = ", ".join(f"{count} {scale}" for scale, count in how.items())
        return f"**{word} {len(own)}**" + f" ({counts})" * bool(own)

    left = [one for one in answered if one.verdict == "open"]
    ran = [one for one in left if any(part.differences for part in one.parts)]
    mute = sum(bool(one.claim.untested) for one in left)
    late = [one for one in ran if any(part.rising or part.past for part in one.parts)]
    beside = [part for one in answered for part in one.parts if part.outside is not None]
    apart = [part.weakest for part in beside if part.outside]
    less = sum(one.mean < (one.printed or 0) for one in apart)
    own = [(f"{paper.short}: {one.claim.name}", one.verdict) for paper, one in main()]
    first = {word: [said for said, verdict in own if verdict == word] for word, _ in RULES}
    named = [
        f"**{w} {len(f)}**" + f" ({'; '.join(f)})" * (w != "open") for w, f in first.items() if f
    ]
    return (
        f"{len(own)} main claims: {', '.join(named)}.\n\n"
        f"All {len(answered)} claims: {decided('holds')}, {decided('contradicted')}, "
        f"**open {len(left)}**."
        f" Of the open ones, {mute} cannot be tested, {len(left) - len(ran) - mute} have no run, "
        f"{len(late)} have runs that are too short or of earlier settings, and "
        f"{len(ran) - len(late)} have too few runs, or no clear difference on at least one task. "
        f"{len(beside)} comparisons have flat curves and a printed lead. In each we take "
        f"the rival that is hardest to beat in our runs. In {len(apart)} the printed lead is "
        f"outside our 95 % interval: ours is smaller in {less} and larger in {len(apart) - less}. "
        "Comparing with the hardest rival makes our leads smaller, never larger."
    )


def glue_main() -> None:
    """Glue table and picture for the book's first page: claims are answered once per build."""
    import scrapbook

    scrapbook.glue("main", main_claims(f"results/{CLAIMS}", "_static"))
    scrapbook.glue("picture", b64encode(drawn().png()).decode())
