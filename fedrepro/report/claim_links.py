"""From a claim on the page of all claims to what is behind it: the printed table beside ours, the
figures, and the runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html import escape

import nbformat

from fedrepro.base.places import CHECKOUT
from fedrepro.report import run_page, views
from fedrepro.report.claims import Answer, Part
from fedrepro.report.results import kept
from fedrepro.report.text import dataset_name


def below(one: Answer) -> str:
    """HTML: a line of links for what each part of a claim was read from, then the figures."""
    links = [link for part in one.parts for link in _part(one.paper, part)]
    if not one.parts:
        links = [link for name in one.claim.experiments for link in _table(one.paper, name, "")]
    links += _figures(one)
    return f"<p>See {', '.join(dict.fromkeys(links))}.</p>" if links else ""


def _part(paper: str, part: Part) -> Iterator[str]:
    test, least = part.test, part.weakest
    for name in filter(None, (test.experiment, test.against)):
        yield from _table(paper, name, part.dataset)
    if least is None:
        return
    theirs = test.against or test.experiment
    for name, row in ((test.experiment, test.better), (theirs, least.other)):
        cell = part.dataset, part.scale, row, _column(paper, name, least.column)
        if runs := _runs(paper, name).get(cell):
            yield f'<a href="{runs}">runs of {escape(row)}{_on(part.dataset)}</a>'


def _table(paper: str, experiment: str, dataset: str) -> Iterator[str]:
    """A link to a table on its page of results, if there is one."""
    if kept(paper).paper.experiment(experiment).table:
        places, own = views.anchors(kept(paper), experiment), f"{experiment}-{dataset}"
        place = f"{_page(paper, experiment)}#{own if own in places else places[0]}"
        yield f'<a href="{place}">{escape(experiment)}{_on(dataset)}</a>'


def _on(dataset: str) -> str:
    return f" on {escape(dataset_name(dataset))}" if dataset else ""


def _column(paper: str, experiment: str, column: str) -> str:
    found = kept(paper).paper
    table = found.experiment(experiment).table
    return (found.column(table, column) if table else None) or column


@cache
def _runs(paper: str, experiment: str) -> dict[run_page.Cell, str]:
    return run_page.links(kept(paper), experiment)


def _figures(one: Answer) -> Iterator[str]:
    """Links to the headings that name the figures of a claim."""
    names = [*one.claim.experiments, *(part.test.experiment for part in one.parts)]
    for name in dict.fromkeys(names):
        number = re.match(r"figure-(\d+[a-z]?)", name)
        for page, title in _headings(one.paper) if number else ():
            if number and re.search(rf"\(Figures? [^)]*\b{number[1]}\b", title):
                yield f'<a href="{page}#{_slug(title)}">Figure {number[1]}</a>'
                break


@cache
def _headings(paper: str) -> list[tuple[str, str]]:
    """Of the pages of results: page and heading."""
    return [
        (page, line.lstrip("# "))
        for page, text in _sources(paper).items()
        for line in text.splitlines()
        if line.startswith("##")
    ]


def _page(paper: str, experiment: str) -> str:
    """The page of results that shows a table."""
    shown = re.compile(rf'found\b[^\n]*"{re.escape(experiment)}"')
    pages = [page for page, text in _sources(paper).items() if shown.search(text)]
    return pages[0] if pages else f"{paper}_results.html"


@cache
def _sources(paper: str) -> dict[str, str]:
    """What the cells of a paper's pages of results say, the main one first."""
    files = sorted((CHECKOUT / "book" / "results").glob(f"{paper}_*.ipynb"), reverse=True)
    return {
        f"{file.stem}.html": "\n".join(c.source for c in nbformat.read(file, as_version=4).cells)
        for file in files
    }


def _slug(title: str) -> str:
    """A heading's address, as Sphinx makes it."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
