"""The book's views of executed notebooks: what they show, and what they say where nothing is."""

import ast

import matplotlib.text
import nbformat
import pandas as pd
import pytest

from fedrepro import papers
from fedrepro.base.errors import FedReproError
from fedrepro.report import execution, plots, recorded
from fedrepro.report.recorded import Found
from fedrepro.report.scraps import SENTINEL, Collected, collect, finished

BOOK = recorded.FOLDER.parent
PAGES = [BOOK / "results" / f"{paper}_results.ipynb" for paper in papers.list()]

METHODS = ("FedAvg", "FedProx", "FedBN", "PartialFed", "ADCOL")
DOMAINS = ("amazon", "caltech", "dslr", "webcam", "avg")


def book(seed, scale="reduced", dataset="office10", **more):
    """The scraps of one executed notebook, as `glue_study` leaves them."""
    cells = [
        {
            "table": "table-4", "method": method, "column": column, "value": 40.0 + i + seed,
            "standin": False, "marks": ["small copies"], "alternative": False,
            "dataset": dataset, "seed": seed, "scale": scale,
        }
        for i, method in enumerate(METHODS)
        for column in DOMAINS
    ]  # fmt: skip
    environment = {
        "date": "2026-01-02T03:04:05+00:00", "device": "a processor", "threads": 1,
        "python": "3.11.1", "commit": "abc" * 10, "dirty": False,
        "packages": {"torch": "2.13.0", "torchvision": None, "numpy": "2.4"},
    }  # fmt: skip
    runs = [
        {
            "run_id": f"{method}{seed}", "label": method, "scale": scale, "seed": seed,
            "used": [["table-4", method]], "rounds": 2, "environment": environment,
            "scores": {"last": {"avg": 40.0}, "best-test": {"avg": 41.0}},
            "hashes": {"data/amazon": "0123456789abcdef99"},
            "curve": {"round": [1, 2], "avg": [30.0, 40.0], "bytes": [1e6, 2e6]},
        }
        for method in METHODS
    ]  # fmt: skip
    study = {"paper": "adcol", "dataset": dataset, "scale": scale, "seed": seed}
    return {"study": study, "runs": runs, "cells": cells, **more}


@pytest.fixture
def found():
    return Collected([book(0), book(1), book(2)])


def test_a_table_puts_the_seeds_together(found):
    html = recorded.table(found, "table-4").html
    assert "44.0" in html or "45.0" in html
    assert "(n=3)" in html and "small copies" in html and "62.6" in html
    assert "order of methods only" in html


def test_figures_of_a_table(found):
    assert isinstance(recorded.figure(found, "table-4", plots.beside), plots.Picture)
    assert isinstance(recorded.ranks(found, "table-4"), plots.Picture)
    assert isinstance(recorded.curves(found, "table-4", "office10", "bytes"), plots.Picture)


def test_overview_counts_seeds_and_runs(found):
    row = recorded.overview(found).loc["office10"]
    assert row.seeds == "0, 1, 2" and row.runs == 15
    again = recorded.overview(Collected([*found.notebooks, book(1)])).loc["office10"]
    assert again.equals(row)  # two notebooks that share their runs
    counted = recorded.overview(Collected([book(0, "paper", runs=[])])).loc["office10"]
    assert counted.seeds == "0" and counted.runs == 0


def test_execution_facts(found):
    facts = execution.executions(found)
    assert len(facts) == 1 and facts.runs[0] == 15 and facts.commit[0] == "abcabcabca"
    assert execution.hashes(found).sha256.tolist() == ["0123456789abcdef"]
    runs = execution.every_run(found)
    assert len(runs) == 15 and "best-test (optimistic)" in runs
    assert "torch" in execution.this_build().index


def test_without_records_pages_say_so():
    empty = Found([], "adcol")
    for view in (
        recorded.overview(empty),
        recorded.table(empty, "table-1"),
        recorded.beside(empty, "table-1"),
        recorded.across(empty, "table-1", ["digits5", "digits5-standin"]),
        recorded.rules(empty, "table-1", "digits5"),
        recorded.figure(empty, "table-1", plots.beside),
        recorded.ranks(empty, "table-1"),
        recorded.curves(empty, "table-1", "digits5", "round"),
        recorded.sweep(empty, "figure-2c", "digits5", "mu"),
        recorded.by_domain(empty, "table-1", "digits5"),
        recorded.in_and_out(empty, "table-1", "digits5", "images"),
        recorded.traffic(empty, "table-1", "digits5"),
        recorded.embedding(empty, "digits5", "domain", "class"),
        recorded.picture(empty, "digits5", "samples"),
        recorded.counts(empty, "digits5"),
        execution.executions(empty),
    ):
        assert recorded.NOTHING in view.html


def test_pictures_come_back(found):
    with pytest.raises(FedReproError, match="no notebook holds a picture 'samples'"):
        found.picture("samples")
    assert recorded.NOTHING in recorded.picture(found, "office10", "samples").html
    drawn = Collected([book(0, **{"picture-samples": "QUJD"})])
    shown = recorded.picture(drawn, "office10", "samples")
    assert 'src="data:image/png;base64,QUJD"' in shown.html and "alt=" in shown.html


def write(path, scraps):
    """A notebook whose only output are the scraps, in scrapbook's own form."""
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell("")]
    for name, data in scraps.items():
        mime = "application/scrapbook.scrap.json+json"
        scrap = {"name": name, "data": data, "encoder": "json", "version": 1}
        notebook.cells[0].outputs.append(
            nbformat.v4.new_output(
                "display_data",
                {mime: scrap},
                metadata={"scrapbook": {"name": name, "data": True, "display": False}},
            )
        )
    nbformat.write(notebook, path)


def test_only_whole_notebooks_are_collected_and_smoke_is_no_result(tmp_path):
    write(tmp_path / "whole.ipynb", {**book(0), SENTINEL: True})
    write(tmp_path / "smoke.ipynb", {**book(0, scale="smoke"), SENTINEL: True})
    write(tmp_path / "died.ipynb", book(1))
    assert finished(tmp_path / "whole.ipynb") and not finished(tmp_path / "died.ipynb")
    assert not finished(tmp_path / "absent.ipynb")
    assert len(collect(tmp_path).notebooks) == 2
    kept = recorded.notebooks("adcol", tmp_path).notebooks
    assert [b["study"]["scale"] for b in kept] == ["reduced"]
    assert isinstance(collect(tmp_path).cells, pd.DataFrame)


def test_an_unreadable_notebook_is_named(tmp_path):
    (tmp_path / "torn.ipynb").write_text('{"cells": [')
    with pytest.raises(FedReproError, match=r"torn\.ipynb is no readable notebook"):
        collect(tmp_path)


def test_the_readmes_table_is_what_the_records_say():
    found = recorded.notebooks("adcol")
    table = recorded.headline(found, {"table-1": "Digits", "table-4": "Office-Caltech-10"})
    assert table in (recorded.FOLDER.parents[1] / "README.md").read_text(encoding="utf-8")


def test_a_page_names_its_paper():
    empty = Found([], "fedpall")
    html = recorded.table(empty, "table-1-pacs").html
    assert html.startswith(f"<p><em>{recorded.NOTHING}</em></p><details>")
    assert "FedPall, table-1-pacs" in html and "60.6 ± 0.4" in html and "not run" in html
    assert recorded.NOTHING in recorded.grid(empty, "figure-5", "office10", "figure-5-best").html
    assert recorded.table(empty.where(dataset="pacs"), "table-1-pacs").html == html
    with pytest.raises(FedReproError, match="a table is of one paper; name it"):
        recorded.table(Found([]), "table-1-pacs")


def seeds(experiment, arms, dataset="office10", scale="reduced", paper="fedpall", **more):
    """Notebooks of two seeds. arms: a value by label, of column avg; the second seed has 2 more.
    more: of every run."""
    books = []
    for seed in (0, 1):
        values = {label: value + 2 * seed for label, value in arms.items()}
        facts = {"seed": seed, "scale": scale, "dataset": dataset}
        cells = [
            {
                "table": experiment, "method": label, "column": "avg", "value": value,
                "standin": False, "marks": [], **facts,
            }
            for label, value in values.items()
        ]  # fmt: skip
        runs = [
            {
                "label": label, "used": [[experiment, label]], **facts,
                "scores": {
                    "last": {"amazon": value - 3, "avg": value - 3},
                    "best-test": {"amazon": value, "avg": value},
                },
                **more,
            }
            for label, value in values.items()
        ]  # fmt: skip
        study = {"paper": paper, **facts}
        books.append({"study": study, "runs": runs, "cells": cells})
    return books


def words(picture):
    return [text.get_text() for text in picture.findobj(matplotlib.text.Text)]


def test_every_score_rule_beside_the_others():
    found = Found(seeds("table-1-office10", {"FedAvg": 40.0, "FedPall": 50.0}), "fedpall")
    table = recorded.rules(found, "table-1-office10", "office10")
    assert table.index.tolist() == ["FedAvg", "FedPall"]
    assert table["last"].tolist() == ["38.0 ± 1.4", "48.0 ± 1.4"]  # of 37, 39 and 47, 49
    assert table["best-test (optimistic)"].tolist() == ["41.0 ± 1.4", "51.0 ± 1.4"]


def test_two_readings_of_a_data_set_side_by_side():
    arms = {"FedAvg": 70.0, "I2PFL": 80.0}
    books = seeds("table-4", arms, "pacs-leaky", paper="i2pfl")
    books += seeds("table-4", {"FedAvg": 55.5}, "pacs", paper="i2pfl")
    found = Found(books, "i2pfl")
    table = recorded.across(found, "table-4", ["pacs-leaky", "pacs"])
    assert table.index.tolist() == [("reduced", "FedAvg")]  # I2PFL has one of the two only
    assert table.iloc[0].to_dict() == {"pacs-leaky": 71.0, "pacs": 56.5, "difference": -14.5}
    alone = recorded.across(found.where(dataset="pacs"), "table-4", ["pacs-leaky", "pacs"])
    assert recorded.NOTHING in alone.html


def test_a_table_with_its_figures_a_data_set_at_a_time(monkeypatch):
    shown = []
    monkeypatch.setattr(recorded, "show", shown.extend)
    books = seeds("table-4", {"FedAvg": 70.0, "I2PFL": 80.0}, "pacs-leaky", paper="i2pfl")
    books += seeds("table-4", {"FedAvg": 50.0, "I2PFL": 60.0}, "pacs", paper="i2pfl")
    last = recorded.beside(Found(books, "i2pfl"), "table-4")
    things = [*shown, last]
    assert len(things) == 6
    assert ", pacs-leaky." in things[0].html and ", pacs." in things[3].html
    assert all(isinstance(things[place], plots.Picture) for place in (1, 2, 4, 5))


def test_the_grid_has_the_papers_two_cells():
    arms = {"mu=0.1, delta=0.1": 30.0, "mu=0.2, delta=0.2": 40.0}
    found = Found(seeds("figure-5", arms), "fedpall")
    picture = recorded.grid(found, "figure-5", "office10", "figure-5-best")
    assert {"31.0", "41.0\n(paper 69.1)"} <= set(words(picture))


def test_accuracies_by_domain_follow_the_papers_score_rule():
    found = Found(seeds("figure-3", {"CE": 40.0}), "fedpall")
    (axes,) = recorded.by_domain(found, "figure-3", "office10").axes[:1]
    assert axes.lines[0].get_ydata().tolist() == [41.0, 41.0]  # best-test, not last
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["amazon", "avg"]


def test_adaptation_in_and_out_of_domain(monkeypatch):
    shown = []
    monkeypatch.setattr(recorded, "show", shown.extend)
    arms = {"no adaptation": 0.5, "weight 0, 1 images": 0.6, "weight 0, 4 images": 0.7}
    books = seeds("figure-4", arms, "pacs", paper="mpft")
    for book in books:
        cells = [{**cell, "column": "out of domain"} for cell in book["cells"]]
        book["cells"] = cells + [{**cell, "column": "in domain"} for cell in cells]
        book["cells"] += [{**cell, "column": "best round"} for cell in cells]
    last = recorded.in_and_out(Found(books, "mpft"), "figure-4", "pacs", "images", "no adaptation")
    labels = [picture.axes[0].get_ylabel() for picture in [*shown, last]]
    assert labels == ["accuracy out of domain (fraction)", "accuracy in domain (fraction)"]
    axes = last.axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1 images", "4 images"]
    drawn = {bars.get_label(): list(bars.lines[0].get_ydata()) for bars in axes.containers}
    assert drawn["no adaptation"] == pytest.approx([1.5, 1.5])  # of 0.5 and 2.5, level
    assert drawn["weight 0"] == pytest.approx([1.6, 1.7])


def test_one_setting_without_a_reference():
    books = seeds("figure-6", {"threshold 0.1": 0.5, "threshold 0.01": 0.6}, "pacs", paper="mpft")
    for book in books:
        book["cells"] = [{**cell, "column": "in domain"} for cell in book["cells"]]
    picture = recorded.in_and_out(Found(books, "mpft"), "figure-6", "pacs", "threshold")
    ticks = [tick.get_text() for tick in picture.axes[0].get_xticklabels()]
    assert ticks == ["0.1", "0.01"]


def test_traffic_by_kind_of_message():
    sent = {"up/features": 3e6, "down/prototypes": 1e3}
    found = Found(seeds("table-1-office10", {"FedPall": 50.0}, bytes=sent), "fedpall")
    picture = recorded.traffic(found, "table-1-office10", "office10")
    assert {"features up", "prototypes down"} <= set(words(picture))


def test_numbers_of_what_is_only_drawn():
    found = Found(seeds("figure-3", {"CE": 40.0, "CE + KL": 50.0}), "fedpall")
    table = recorded.numbers(found, "figure-3", "office10")
    assert table.avg.to_dict() == {"CE": 41.0, "CE + KL": 51.0}
    assert recorded.NOTHING in recorded.numbers(found, "figure-3", "pacs").html


def test_scales_do_not_mix_in_a_figure():
    books = seeds("figure-5", {"mu=0.1, delta=0.1": 30.0})
    full = seeds("figure-5", {"mu=0.1, delta=0.1": 60.0}, scale="paper")
    found = Found([*books, *full], "fedpall")
    assert "61.0" in words(recorded.grid(found, "figure-5", "office10", "figure-5-best"))


def test_scale_paper_takes_a_figure_over_once_it_holds_every_row():
    books = seeds("figure-5", {"mu=0.1, delta=0.1": 30.0, "mu=0.1, delta=0.5": 31.0})
    part = seeds("figure-5", {"mu=0.1, delta=0.1": 60.0}, scale="paper")
    other = seeds("figure-3", {"CE": 20.0}, scale="paper")
    found = Found([*part, *other, *books], "fedpall")
    assert recorded.numbers(found, "figure-5", "office10").avg.tolist() == [31.0, 32.0]
    assert recorded.numbers(found, "figure-3", "office10").avg.tolist() == [21.0]


def test_one_row_at_scale_paper_stands_in_the_table_beside_those_at_reduced(found):
    one = book(0, "paper")
    one["cells"] = [row for row in one["cells"] if row["method"] == "ADCOL"]
    both = Found([*found.notebooks, one], "adcol")
    html = recorded.table(both, "table-4").html
    assert "order of methods only" in html and "1 of at least 3 seeds" in html
    assert recorded.headline(both, {"table-4": "O"}) == recorded.headline(found, {"table-4": "O"})
    assert words(recorded.ranks(both, "table-4")) == words(recorded.ranks(found, "table-4"))


def test_what_is_not_run_has_its_reason():
    html = recorded.blocked("mpft").html
    assert "table-1-subset50: Accuracy in and out of domain, 50 classes" in html
    assert "DomainNet" in html and "table-1-pacs" not in html


TABLES = {"table", "figure", "ranks", "beside", "across"}
DRAWN = {"rules", "curves", "sweep", "grid", "by_domain", "in_and_out", "traffic", "numbers"}


def asked(page):
    """The views a page calls, each with the texts it gives them."""
    code = [
        cell.source for cell in nbformat.read(page, as_version=4).cells if cell.cell_type == "code"
    ]
    for call in ast.walk(ast.parse("\n".join(code))):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            given = [*call.args, *(word.value for word in call.keywords if word.arg != "scale")]
            yield call.func.attr, [one.value for one in given if isinstance(one, ast.Constant)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_pages_ask_for_experiments_and_data_sets_there_are(page):
    """A misspelt one would say that nothing is recorded, for ever."""
    paper = papers.load(page.stem.partition("_")[0])
    found = [(view, texts) for view, texts in asked(page) if texts]
    for view, texts in found:
        if view in TABLES:
            assert paper.table(paper.experiment(texts[0]).table)
        elif view in DRAWN:
            assert texts[1] in paper.datasets_for(texts[0]), texts
        elif view in ("embedding", "where"):
            assert texts[0] in paper.datasets, texts
    assert {view for view, _ in found} >= {"claims", "curves"}
    assert sum(view in TABLES | DRAWN for view, _ in found) > 5


def test_a_picture_by_name_or_the_line_that_says_nothing():
    found = Collected([book(0), book(1, **{"picture-prototypes": "QUJD"})])
    assert "QUJD" in recorded.picture(found, "office10", "prototypes").html
    assert recorded.picture(found, "pacs", "prototypes").html == recorded.nothing().html
    assert recorded.radar(found, "figure-3", "office10").html == recorded.nothing().html
    assert recorded.radar(found, "table-4", "office10").axes[0].name == "polar"
