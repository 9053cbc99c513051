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
from fedrepro.report.comparison import LEVEL
from fedrepro.report.leaderboard import in_short
from fedrepro.report.picture import Picture
from fedrepro.report.results import FLAT, Results, recorded
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

NOTES = (
    "What is tested is the comparison that a claim's sentence names. Accuracies, leads and ratios "
    "in it are the printed ones, unless it calls them a bound. Second readings of a method, which "
    "have no row in the paper's table, are not among the rivals.",
    "A difference has two errors, added in variance. The first is the spread of the paired "
    "differences over seeds, pooled over the comparisons of the claim in one column, on one data "
    "set at one scale. "
    "K differences of n seeds each, all to one common row, correlate by one half: their pooled "
    "spread has K(n-1) / (1 + (K-1)/4) degrees of freedom. Pooling assumes that all of them, also "
    "those that cannot answer, scatter alike. So a decided test also has the interval of its "
    "rival's own spread alone.",
    "The second is that of the test images, which all seeds share. It is computed image by image "
    "from the recorded predictions. If a row kept none, it is p(1-p)/N of each row, as if each row "
    "had its own images. A part of it is in the spread over seeds, too, so intervals are a "
    "little too wide. Leakage, counts, ratios, rounds and the change from round to round have the "
    "first error alone.",
    "An answer is one-sided, so it can stand beside a two-sided interval that has the margin in "
    "it. Where a row has more than three seeds, the others were added because three left a claim "
    "open. Such a second look makes a wrong answer more likely than 5 %.",
    "The answer stands with its scale. At scale reduced it is about a small network, mostly less "
    "training and the weights of the protocol page, not about the paper's own run.",
    "A comparison with one seed answers nothing, even if others have more seeds. Two seeds with "
    "equal differences answer nothing either. One seed at scale paper, or a table there that lacks "
    "rows, stands beside the answer of scale reduced, with the spread of scale reduced.",
    "A difference at scale reduced answers only where the curves of its two rows are flat: the "
    f"last quarter of the rounds adds less than {FLAT:g} point of mean accuracy to each. What it "
    "adds is the rise of a straight line through the last half, as the mean over seeds. A run that "
    "the protocol's own rule ended early is complete, so it does not count as rising.",
    "A row that still rises, or has earlier settings, or no number for some seed, or was not run, "
    "leaves open the differences that it is part of, not the others; of *faster*, "
    "which counts rounds to a level that all rows set, every one. One difference is enough to "
    "contradict a claim; a claim holds only if all its differences can answer.",
    "An open claim that has runs says which lead such runs would show with 80 % probability. Where "
    "the curves are flat it says whether the printed lead lies outside our 95 % interval, and how "
    "many seeds it takes to show it (or two points, if none is printed), in hours of one core. "
    "Outside is no answer to a claim: at scale reduced a lead may have another size.",
    "Where some seeds of a row have today's settings, those of earlier settings are left out.",
    "A test without runs, or with runs of earlier settings, names the command that trains three "
    "seeds of its rows, and the hours: the operations that `fedrepro campaign --list` estimates, "
    "with a tuned setting's trials, at the mean speed of the paper's recorded runs of that scale, "
    "or of all papers' if it has none. The speed of the network in question may be another, and "
    "what a method computes beside it, such as a ResNet-50 as discriminator, is not counted.",
    "Where a generated stand-in replaces a domain, a mean has it too, and so has the answer. The "
    "evidence then gives the difference without it.",
    "Some tests can be made at scale paper alone: of traffic, as a small network has other bytes; "
    "of FedPall's leakage, whose estimate is too rough for few images; of ADCOL with one local "
    "epoch, which the paper reads before its curves are flat, and with privacy on a budget, whose "
    "noise adds up over rounds. What is counted, not trained, has no error.",
)


def rules() -> Html:
    return prose(("answer", "when"), RULES, "the answers a claim can have")


def notes() -> Html:
    lines = "".join(f"<li>{escape(note)}</li>" for note in NOTES)
    return Html(f"<ul>{lines}</ul>", "how claims are tested")


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
        own = [p if p.scale == "paper" else p.larger for p in one.parts]
        for part in leads([p for p in own if p and not all(d.exact for d in p.differences)]):
            printed, ours = _words(paper, part)
            seeds = f"; {part.weakest.runs}" * (len(part.weakest.gaps) > 1)
            ours += seeds + f"; printed {printed}" * bool(printed)
            what = one.claim.main or one.claim.short or one.claim.claim
            said = f"{paper.short}, {dataset_name(part.dataset)}: {what}"
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
        printed, ours = _words(paper, part)
        said = f"{dataset_name(part.dataset)}, {part.scale}: {ours}"
        outside = ", outside our interval" * bool(part.outside)
        said += f"; printed {printed}{outside}" * bool(printed)
        if (rest := part.weakest.rest) is not None:
            said += "; without the stand-in " + f"{rest:+.1f}".replace("-", MINUS)
        yield f"{badge(part.verdict)} " * bool(one.parts[1:]) + escape(said)
    if lacking := dict.fromkeys(part.place for part in one.parts if not part.differences):
        yield escape(f"not run: {', '.join(lacking)}")
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
        f"--scale {part.scale} --seeds 0-{max(len(d.gaps) for d in part.differences) - 1}</code>"
        for part in one.parts
        for name in (part.test.experiment, part.test.against)
        if part.differences and name
    ]
    return folded("Run it again", "<br>".join(dict.fromkeys(lines))) if lines else ""


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
        shown = paper.column(table, column) if table else None
        cell = part.dataset, part.scale, row, shown or column
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
    larger = part.larger and _in_points(part.larger)
    return replace(part, differences=tuple(differences), larger=larger)


def _words(paper: Paper, part: Part) -> tuple[str, str]:
    """The printed lead and ours: ``+1.6``, ``+0.5 [-1.1, +2.1] over FedBN``; or the values."""
    test, least, larger, unit = part.test, part.weakest, part.larger, ""
    if not least.whole and (table := paper.experiment(test.experiment).table):
        named = str(test.by) if test.kind else paper.table(table).unit
        unit = UNITS.get(named, f" {named}")
    over, form = f"{unit} over ", "+.1f"
    if test.lower:
        over, form = f"{unit} less than ", ".1f"
    if test.above is not None:
        over, form = f"{unit}; claimed: {'below' if test.lower else 'above'} ", ".4g"

    def value(lead: float) -> str:
        if test.above is not None:
            lead = test.above + (-lead if test.lower else lead)
        near = bool(lead) and not float(f"{lead:{form}}")  # -0.03 is no -0.0
        return f"{lead:{form.replace('.1', '.2') if near else form}}".replace("-", MINUS)

    ours = value(least.mean)
    if least.interval is not None:
        backwards = test.above is not None and test.lower  # the lead grows as the value falls
        ours += " [{}, {}]".format(*map(value, least.interval[:: -1 if backwards else 1]))
    ours += over + least.other
    if least.margin and test.above is None:
        ours += f"; has to be above {value(least.margin)}"
    ours += "; one seed" * (len(least.gaps) == 1 and not least.exact)
    others = "other rows: " * part.decides(least)
    lists = {"still rising": part.rising, "earlier settings": part.past, "not run": part.lacking}
    lists["one seed"] = tuple(part.single) if len(least.gaps) > 1 else ()
    ours += "".join(f"; {others}{why}" for why, rows in lists.items() if rows)
    if larger is not None:
        run = larger.weakest
        ours += f"; scale {larger.scale}, {run.runs}: {value(run.mean)}{over}{run.other}"
        if run.printed is not None and run.other != least.other:
            ours += f", where {value(run.printed)} is printed"
    return "" if least.printed is None else value(least.printed) + unit, ours


def every() -> list[tuple[Paper, Answer]]:
    """Every claim of every paper, answered."""
    return [(papers.load(name), one) for name in papers.names() for one in of_recorded(name)]


def main() -> list[tuple[Paper, Answer]]:
    return [(paper, one) for paper, one in every() if one.claim.main]


def drawn() -> Picture:
    """The main claims' leads: under every claim its data sets whose leads have an interval."""
    rows: list[tuple[str, Part | None]] = []
    for paper, one in main():
        if own := [part for part in leads(one.parts) if part.weakest.interval]:
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
        found = (scale, dataset_name(part.dataset), *_words(paper, part))
    said = one.claim.main or one.claim.short or one.claim.claim
    return (_link(page, one, one.verdict), paper.short, said, *found)


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
    return (
        f"{len(answered)} claims: {decided('holds')}, {decided('contradicted')}, "
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
