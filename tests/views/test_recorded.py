"""The book's views of executed notebooks: what they show, and what they say where nothing is."""

import nbformat
import pandas as pd
import pytest

from fedrepro.errors import FedReproError
from fedrepro.views import plots, recorded
from fedrepro.views.scraps import SENTINEL, Collected, collect, finished

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


def test_execution_facts(found):
    facts = recorded.executions(found)
    assert len(facts) == 1 and facts.runs[0] == 15 and facts.commit[0] == "abcabcabca"
    assert recorded.hashes(found).sha256.tolist() == ["0123456789abcdef"]
    runs = recorded.every_run(found)
    assert len(runs) == 15 and "best-test (optimistic)" in runs
    assert "torch" in recorded.this_build().index


def test_without_records_pages_say_so():
    empty = Collected([])
    assert "not run" in recorded.table(empty, "table-1").html
    for view in (
        recorded.figure(empty, "table-1", plots.beside),
        recorded.ranks(empty, "table-1"),
        recorded.curves(empty, "table-1", "digits5", "round"),
        recorded.sweep(empty, "figure-2c", "digits5", "mu"),
        recorded.embedding(empty, "digits5", "domain"),
        recorded.samples(empty, "digits5"),
        recorded.counts(empty, "digits5"),
        recorded.executions(empty),
    ):
        assert recorded.NOTHING in view.html


def test_pictures_come_back(found):
    with pytest.raises(FedReproError, match="no notebook holds a picture 'samples'"):
        recorded.samples(found, "office10")
    shown = recorded.samples(Collected([book(0, **{"picture-samples": "QUJD"})]), "office10")
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
