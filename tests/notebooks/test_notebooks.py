"""The notebooks: their parameters, and their teaching cells run as a reader runs them."""

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import papermill
import pytest

from fedrepro import methods
from fedrepro.base.files import CHECKOUT
from fedrepro.report.results import finished

PARAMETERS = {
    "experiment", "dataset", "methods", "seed", "scale", "device", "data_root", "runs_dir",
    "changes",
}  # fmt: skip


def read(path):
    return nbformat.read(path, as_version=4)


def test_parameters_and_headings_and_no_outputs():
    notebooks = {path.stem: read(path) for path in (CHECKOUT / "notebooks").glob("*.ipynb")}
    assert len(notebooks) == 7
    for name, notebook in notebooks.items():
        assert not any(cell.get("outputs") for cell in notebook.cells), name
        if name != "quickstart":
            known = papermill.inspect_notebook(str(CHECKOUT / "notebooks" / f"{name}.ipynb"))
            assert set(known) == PARAMETERS
            text = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
            assert re.findall(r"^## ([^.\n]*)", text, re.M) == [str(i) for i in range(1, 11)]


@pytest.mark.slow
def test_a_wrong_parameter_is_one_line_in_the_notebook(tmp_path):
    source, out = CHECKOUT / "notebooks" / "adcol.ipynb", tmp_path / "out.ipynb"
    given, how = {"changes": {"local_epochs": -1}}, {"kernel_name": "python3"}
    with pytest.raises(papermill.PapermillExecutionError):
        papermill.execute_notebook(str(source), str(out), given, progress_bar=False, **how)
    outputs = [one for cell in read(out).cells for one in cell.get("outputs", [])]
    (error,) = [one for one in outputs if one.output_type == "error"]
    (line,) = error.traceback
    assert line.startswith("FedReproError: ") and "protocol setting local_epochs = -1" in line
    assert not finished(out)


PAPERS = ("adcol", "fedpall", "i2pfl", "mpft", "fedapc")
START = "study = notebook.open_study({!r}, 'minidigits', 'smoke', 0, runs_dir={!r})"


def shown(paper: str, place: Path) -> list[Any]:
    """What the cells between the equations and the protocol show, in order. They are run as a
    module, for a class's source must be found."""
    cells = read(CHECKOUT / "notebooks" / f"{paper}.ipynb").cells
    heads = [i for i, cell in enumerate(cells) if cell.source.startswith(("### The loss", "## 3."))]
    code = [c.source for c in cells[heads[0] : heads[-1]] if c.cell_type == "code"]
    lines = ["from fedrepro.report import notebook", START.format(paper, str(place))]
    lines.append("seed, shown = 0, []")
    for source in code:
        tree = ast.parse(source)
        last = tree.body[-1]
        assert isinstance(last, ast.Expr | ast.ClassDef), "a teaching cell shows something"
        if isinstance(last, ast.Expr):
            tree.body[-1:] = ast.parse(f"shown.append({ast.unparse(last)})").body
        lines.append(ast.unparse(tree))
    file = place / f"{paper}_lesson.py"
    file.write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place))
        return list(importlib.import_module(file.stem).shown)


@pytest.mark.parametrize("paper", PAPERS)
def test_terms_by_hand_are_the_methods_and_a_changed_one_changes_the_run(paper, tmp_path, registry):
    source, shapes, by_hand, compared = shown(paper, tmp_path)
    assert methods.get(compared.index[0]).name == compared.index[0]
    assert "def " in source.data and "fedrepro/methods/" in source.data
    assert shapes["shape"]["logits"] == (*shapes["shape"]["y"], 10)
    hand, code = by_hand.columns
    pd.testing.assert_series_equal(by_hand[hand], by_hand[code], check_names=False, atol=1e-5)
    assert (by_hand.abs() > 1e-4).all().all(), "a term is 0"
    runs = [pd.read_parquet(path) for path in tmp_path.glob("lessons/*/curve.parquet")]
    original, changed = (run[run.measure == "loss"].value.tolist() for run in runs)
    assert len(compared) == 2 and original != changed  # accuracies of few images may be equal
    assert not list(tmp_path.glob("*/done"))
