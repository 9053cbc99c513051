"""Results of past notebooks: their runs by id, every number from the records; and their views."""

import ast
import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import matplotlib.text
import nbformat
import numpy as np
import pandas as pd
import pytest

from fedrepro import papers
from fedrepro.base.errors import FedReproError
from fedrepro.quantities.base import study
from fedrepro.records import Store
from fedrepro.report import leaderboard, ledger, results, verdicts, views
from fedrepro.report.picture import Picture
from fedrepro.report.printout import over_seeds
from fedrepro.report.results import FOLDER, Kept, Results, collect, finished, keep, recorded
from tests.report.made import Made

PAGES = FOLDER.parent / "results"
ORDER = {"FedAvg": 40.0, "FedProx": 41.0, "FedBN": 42.0, "PartialFed": 43.0, "ADCOL": 44.0}


def made(
    experiment: str, values: dict[str, float], paper: str = "fedpall", dataset: str = "office10",
    scale: str = "reduced", columns: tuple[str, ...] = ("avg",),
) -> Results:  # fmt: skip
    """Two seeds; the second has 2 more."""
    cells = [{(m, c): v + more for m, v in values.items() for c in columns} for more in (0, 2)]
    seeds = [Made(paper, dataset, scale, n, {experiment: own}) for n, own in enumerate(cells)]
    return Results([(one, [experiment]) for one in seeds], paper)


def both(*found: Results) -> Results:
    return Results([pair for one in found for pair in one.studies], found[0].paper.name)


def write(path: Path, scraps: dict[str, Any]) -> None:
    """A notebook whose only output are the scraps, in scrapbook's own form."""
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell("")]
    for name, data in scraps.items():
        mime = "application/scrapbook.scrap.json+json"
        scrap = {"name": name, "data": data, "encoder": "json", "version": 1}
        about = {"scrapbook": {"name": name, "data": True, "display": False}}
        output = nbformat.v4.new_output("display_data", {mime: scrap}, metadata=about)
        notebook.cells[0].outputs.append(output)
    path.parent.mkdir(exist_ok=True)
    nbformat.write(notebook, path)


def test_a_study_comes_back_from_what_its_notebook_glued(tmp_path, monkeypatch):
    """Live, from the notebook, and from the lines that are kept of it: the same cells."""
    glued: dict[str, Any] = {}
    monkeypatch.setattr("scrapbook.glue", lambda name, value: glued.update({name: value}))
    only = ["SOLO", "FedAvg", "FedProto (lam=2.0)"]  # the last has a row of its own
    changes = {"rounds": 1}
    live = study("adcol", "minidigits", "smoke", 0, only=only, changes=changes, runs_dir=tmp_path)
    chosen = ["table-1", "prose-communication-example"]
    results.glue_study(live, chosen)
    assert not any("value" in json.dumps(glued[name]) for name in ("runs", "trials", "diverged"))
    write(tmp_path / "notebooks" / "one.ipynb", json.loads(json.dumps(glued)))
    del glued["finished"]
    write(tmp_path / "notebooks" / "died.ipynb", glued)
    assert finished(tmp_path / "notebooks" / "one.ipynb")
    assert not finished(tmp_path / "notebooks" / "died.ipynb")
    assert not finished(tmp_path / "absent.ipynb")
    keep(tmp_path)
    for notebooks in ("notebooks", "gone"):
        ((kept, names),) = collect(tmp_path / notebooks)
        assert list(names) == chosen
        for name in chosen:
            assert kept.cells(name) == live.cells(name)
        pd.testing.assert_frame_equal(*(s.curves_of(s.results("table-1")) for s in (kept, live)))
    assert recorded("adcol", tmp_path).studies == []  # smoke is no result
    next(tmp_path.glob("*/done")).unlink()
    with pytest.raises(FedReproError, match=r"one used run .* which is not in"):
        Results(collect(tmp_path / "notebooks")).cells("table-1")


def test_an_unreadable_notebook_and_lines_are_named(tmp_path):
    (tmp_path / "torn.ipynb").write_text('{"cells": [')
    with pytest.raises(FedReproError, match=r"torn\.ipynb is not a readable notebook"):
        collect(tmp_path)
    (tmp_path / results.STUDIES).write_text("{")
    with pytest.raises(FedReproError, match=r"studies\.jsonl\.gz cannot be read"):
        collect(tmp_path / "notebooks")


def test_past_runs_that_diverged_and_rows_that_are_gone_keep_their_place():
    """A label the paper's file lacks is a second reading; a diverged arm has no value."""
    line = next(s for s, _ in recorded("adcol").where(dataset="office10", seed=0).studies
                if "table-4" in s.scraps["study"]["experiments"])  # fmt: skip
    runs = [[r, e, "Gone" if x == "FedBN" else x] for r, e, x in line.scraps["runs"]]
    ended = [["table-4", label, "the loss is NaN", 0, 7] for label in ("FedProx", "Mine")]
    scraps = {**line.scraps, "runs": [r for r in runs if r[2] != "FedProx"], "diverged": ended}
    past = Kept(line.paper, line.dataset, line.scale, 0, store=line.store, scraps=scraps)
    rows = {(r["method"], r["column"]): r for r in past.cells("table-4")}
    assert rows["Gone", "avg"]["alternative"] and rows["Gone", "avg"]["value"] > 0
    assert rows["FedProx", "avg"]["value"] is None is rows["Mine", "avg"]["value"]
    assert "seed 0 diverged in round 7" in rows["FedProx", "avg"]["caveats"]


def test_few_files_hold_all_recorded_runs():
    used = {run for one, _ in recorded().studies for run, *_ in one.scraps["runs"]}  # type: ignore[attr-defined]
    assert len(used) > 500 and all(map(Store(FOLDER).find, used))
    sizes = [path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()]
    assert len(sizes) < 60 and sum(sizes) < 15e6


def words(picture: Any) -> list[str]:
    return [text.get_text() for text in picture.findobj(matplotlib.text.Text)]


def test_a_table_says_at_its_top_which_rows_still_rise(monkeypatch):
    found = made("table-4", ORDER, "adcol")
    assert "still rise" not in views.table(found, "table-4").html  # two rounds tell nothing
    monkeypatch.setattr(Made, "rounds", 8)
    first = unescape(views.table(found, "table-4").html).partition("<table")[0]
    assert "On Office-Caltech-10 at scale reduced these rows still rise" in first
    assert "when their runs end: all 5. They decide nothing." in first
    full = made("table-4", ORDER, "adcol", scale="paper")
    assert "still rise" not in views.table(full, "table-4").html
    monkeypatch.setattr(Made, "asked", 9)  # ended by the protocol's rule, so complete
    assert "still rise" not in views.table(found, "table-4").html
    monkeypatch.setattr(Made, "asked", 0)
    for one, _ in found.studies:
        one.accuracies = {"FedAvg": (40.0,) * 8}  # type: ignore[attr-defined]
    assert "end: FedProx; FedBN; PartialFed; ADCOL. They" in views.table(found, "table-4").html


def test_a_table_puts_the_seeds_together_and_scales_stand_apart():
    found = made("table-4", ORDER, "adcol")
    html = views.table(found, "table-4").html
    assert "45.0 ± 1.4 (n=2)" in html and "small copies" in html and "62.6" in html
    full = made("table-4", {"ADCOL": 60.0}, "adcol", scale="paper")
    html = views.table(both(found, full), "table-4").html
    assert "order of methods only" in html and "paper: the paper's protocol" in unescape(html)
    counted = made("prose-communication-example", {}, "adcol", "pacs")
    seen = views.overview(both(found, full, counted))
    assert seen.seeds.tolist() == ["0, 1"] * 3 and list(seen.index)[2] == "PACS"
    assert sorted(seen.runs[:2]) == [2, 10] and seen.runs.iloc[2] == "counted"


def test_tables_of_some_experiments_and_of_the_others():
    names = ("table-1-digits", "table-2-digits", "table-1-office10")
    found = both(*(made(name, {"FedAPC": 50.0}, "fedapc", "digits4") for name in names))
    shown = [views.table(found, name).html for name in names]
    some = views.tables(found, "accuracy", only=["table-1"])
    rest = views.tables(found, "accuracy", without=("table-1", "prose"))
    assert [one.html for one in some] == [shown[0], shown[2]]
    assert [one.html for one in rest] == [shown[1]] and not views.tables(found, "grid")


def test_without_records_pages_say_so():
    empty = Results([], "adcol")
    by_dataset = (views.curves, views.by_domain, views.traffic, views.numbers)
    shown = [
        *(view(empty) for view in (views.overview, ledger.executions)),
        *(view(empty, "table-1") for view in (views.table, views.beside)),
        *(view(empty, "table-1", "digits5") for view in by_dataset),
        *(view(empty, "table-1", "digits5", "mu") for view in (views.sweep, views.in_and_out)),
        views.embedding(empty, "digits5", "domain", "class"),
        views.picture(empty, "digits5", "samples"),
        views.counts(empty, "digits5"),
        *(getattr(leaderboard, n)(empty, "methods") for n in ("overall", "agreement", "cautioned")),
        *(view(empty) for view in (leaderboard.budget, leaderboard.edges)),
    ]
    assert all(views.NOTHING in one.html for one in shown)
    html = views.table(Results([], "fedpall"), "table-1-pacs").html
    start = f'<span id="table-1-pacs"></span><p><em>{views.NOTHING}</em></p><details>'
    assert html.startswith(start) and "60.6 ± 0.4" in html


def test_a_place_is_a_sentence_with_computed_numbers():
    found = made("table-4", ORDER, "adcol")
    assert views.place(found, "table-4", "office10", "ADCOL", "FedAvg") == (
        "at scale `reduced` ADCOL is number 1 of 5 with 45.0, 1.0 above PartialFed (2 seeds); "
        "FedAvg has 41.0; in the paper ADCOL is number 1 of 5 with 62.6."
    )
    assert views.place(found, "table-4", "office10", "Ditto") == f"Ditto: {views.NOTHING}"
    asked, again = ("table-4", "office10", "ADCOL"), Results([*found.studies, found.studies[0]])
    assert views.place(again, *asked) == views.place(found, *asked)  # a seed that two studies have
    assert again.cells("table-4") == found.cells("table-4")


def test_a_table_with_its_figures_a_data_set_at_a_time(monkeypatch):
    shown: list[Any] = []
    monkeypatch.setattr(views, "show", shown.extend)
    arms = {"FedAvg": 70.0, "I2PFL": 80.0}
    parts = [made("table-4", arms, "i2pfl", dataset) for dataset in ("pacs-leaky", "pacs")]
    things = [*shown, views.beside(both(*parts), "table-4")]
    things = [*shown, *things]
    assert len(things) == 6
    assert ", pacs-leaky." in things[0].html and ", pacs." in things[3].html
    assert all(isinstance(things[place], Picture) for place in (1, 2, 4, 5))


def test_the_grid_has_the_papers_two_cells_and_scales_do_not_mix():
    arms = {"mu=0.1, delta=0.1": 30.0, "mu=0.2, delta=0.2": 40.0}
    found = made("figure-5", arms)
    picture = views.grid(found, "figure-5", "office10", "figure-5-best")
    assert {"31.0", "41.0\n(paper 69.1)"} <= set(words(picture))
    table = picture.axes[0].collections[0].get_array()  # the largest first setting in the first row
    assert float(table[0, 1]) == 41.0 and bool(table.mask[0, 0])
    part = made("figure-5", {"mu=0.1, delta=0.1": 60.0}, scale="paper")
    kept = views.numbers(both(found, part), "figure-5", "office10")
    assert kept.avg.tolist() == [31.0, 41.0]
    whole = made("figure-5", dict.fromkeys(arms, 60.0), scale="paper")
    assert views.numbers(both(found, whole), "figure-5", "office10").avg.tolist() == [61.0, 61.0]


def test_adaptation_in_and_out_of_domain(monkeypatch):
    shown: list[Any] = []
    monkeypatch.setattr(views, "show", shown.extend)
    arms = {"no adaptation": 0.5, "weight 0, 1 images": 0.6, "weight 0, 4 images": 0.7}
    found = made("figure-4", arms, "mpft", "pacs", columns=("out of domain", "in domain"))
    last = views.in_and_out(found, "figure-4", "pacs", "images", "no adaptation")
    how, first = shown
    assert "The paper's figure is on DomainNet" in unescape(how.html)
    labels = [picture.axes[0].get_ylabel() for picture in (first, last)]
    assert labels == ["accuracy out of domain (fraction)", "accuracy in domain (fraction)"]
    assert {"1", "4", "no adaptation", "weight 0"} <= set(words(last))
    means = [line.get_ydata() for line in last.axes[0].lines if len(line.get_xdata()) == 2]
    drawn = [np.round(mean, 6).tolist() for mean in means]
    assert [1.5, 1.5] in drawn and [1.6, 1.7] in drawn  # of 0.5 and 2.5, for each number of images


def test_views_of_the_recorded_runs():
    found = recorded("fedapc").where(dataset="office10")
    runs = re.findall(r">(\d+)</td>\s*</tr>", ledger.executions(found).html)  # the last column
    assert sum(map(int, runs)) == ledger.every_run(found).html.count("run.html#run-") > 10
    assert ledger.hashes(recorded()).html.count("<tr>") > 100 and len(ledger.this_build()) > 9
    sent = views.traffic(found, "table-1-office10", "office10")
    assert {"model up", "prototypes down"} <= set(words(sent))
    assert views.picture(found, "office10", "samples").data.startswith(b"\x89PNG")
    adcol = recorded("adcol")  # a row of one seed takes the spread of other scales, shown or not
    judged = [verdicts.beside(one, "table-4") for one in (adcol, adcol.where(scale="paper"))]
    words_of = [one[one.scale == "paper"].verdict.tolist() for one in judged]
    assert words_of[0] == words_of[1]
    picture = views.curves(adcol.where(scale="paper"), "table-4", "office10")
    levels = [line.get_ydata()[0] for line in picture.axes[0].lines if len(line.get_xdata()) == 2]
    assert levels[:2] == [58.8, 56.2]  # SOLO and FedAvg


def test_rows_of_earlier_settings_are_named():
    found = recorded("adcol").where(dataset="office10", scale="reduced", seed=0)
    assert found.past("table-4") == {}
    (one,) = found.holding("table-4")
    alone = replace(one, seed=1, beside=())  # its runs are of seed 0
    later = Results([(alone, ["table-4"])], "adcol")
    labels = later.past("table-4")["office10"]
    assert labels[:3] == ["SOLO", "FedAvg", "FedBN"]
    assert all(row["past"] for row in later.cells("table-4") if row["method"] in labels)
    newer = replace(alone, beside=[one])  # seed 0 has today's settings: only those count
    assert not any(result.past for result in newer.results("table-4"))
    runs = [run for run in one.scraps["runs"] if run[2] != "FedAvg"]
    ended = [["table-4", "FedAvg", "the loss is NaN", 0, 7]]
    other = replace(one, scraps={**one.scraps, "runs": runs, "diverged": ended})
    newer = replace(alone, beside=[other])  # with today's settings it diverged: that counts too
    assert "FedAvg" not in {result.label for result in newer.results("table-4")}


VIEWS = {"table", "beside", "curves", "sweep", "grid", "by_domain", "logged"}
VIEWS |= {"in_and_out", "traffic", "numbers", "place"}


@pytest.mark.parametrize("name", [*papers.names(), papers.COMMON])
def test_pages_name_experiments_that_are_there(name):
    known = {e.id for e in papers.load(name).experiments}
    path = PAGES / ("common.ipynb" if name == "common" else f"{name}_results.ipynb")
    for cell in nbformat.read(path, as_version=4).cells:
        for call in ast.walk(ast.parse(cell.source)) if cell.cell_type == "code" else ():
            if not isinstance(call, ast.Call) or getattr(call.func, "attr", "") not in VIEWS:
                continue
            if len(call.args) > 1 and isinstance(call.args[1], ast.Constant):
                assert call.args[1].value in known, call.args[1].value


def test_means_over_seeds_are_of_the_named_notebooks_alone():
    place = results.FOLDER / "notebooks"
    named = [place / f"common-office10-reduced-seed{seed}.ipynb" for seed in (0, 2)]
    means = {row[4]: row for row in over_seeds(place, named) if row[1] == "methods"}
    found = recorded("common").where(dataset="office10", scale="reduced")
    cells = [c for c in found.cells("methods") if c["seed"] in (0, 2)]
    own = [c["value"] for c in cells if (c["method"], c["column"]) == ("FedBN", "avg")]
    middle, half = sum(own) / 2, 12.706205 * abs(own[0] - own[1]) / 2
    around = f"{middle - half:.1f} to {middle + half:.1f}"
    assert means["FedBN"][5:] == ("2", f"{middle:.1f}", around)
    alone = {row[4]: row for row in over_seeds(place, named[:1] * 2) if row[1] == "methods"}
    assert alone["FedBN"][5:] == ("1", f"{own[0]:.1f}", "–")
