"""The notebooks' own rules, and what papermill makes of right and wrong parameters."""

import ast
from pathlib import Path

import nbformat
import pandas as pd
import papermill
import pytest

from fedrepro.report import views
from fedrepro.report.results import SENTINEL, collect, finished

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
QUICKSTART = ROOT / "notebooks" / "quickstart.ipynb"
PAPERS = [path for path in NOTEBOOKS if path != QUICKSTART]
PAGES = sorted((ROOT / "book" / "results").glob("*.ipynb"))
PARAMETERS = {
    "experiment", "dataset", "methods", "seed", "scale", "device", "data_root", "runs_dir",
    "changes",
}  # fmt: skip


def read(path):
    return nbformat.read(path, as_version=4)


# Where a reader writes a method, and what that takes beside fedrepro.
WRITTEN = {
    **{path.stem: {"fedrepro", "dataclasses", "math"} for path in PAPERS},
    "quickstart": {"fedrepro", "dataclasses"},
    "write_a_method": {"fedrepro", "dataclasses", "pathlib", "tempfile", "torch", "PIL"},
}
# Pages of what is beside the library in a checkout: the golden numbers, the speed reports.
BESIDE = {"parity": {"sys", "parity"}, "performance": {"sys", "report", "report_growth"}}


@pytest.mark.parametrize("path", NOTEBOOKS + PAGES, ids=lambda p: p.stem)
def test_cells_are_short_import_only_fedrepro_and_define_no_class_but_a_method(path):
    for cell in read(path).cells:
        if cell.cell_type != "code":
            continue
        tree = ast.parse(cell.source)
        own = WRITTEN.get(path.stem, set())
        method = any(isinstance(node, ast.ClassDef) for node in ast.walk(tree))
        assert own or not method
        assert len(cell.source.splitlines()) <= (25 if method else 15), cell.source
        allowed = {"fedrepro", *own, *BESIDE.get(path.stem, ())}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                assert node.module.split(".")[0] in allowed
            if isinstance(node, ast.Import):
                roots = {alias.name.split(".")[0] for alias in node.names}
                assert roots <= (allowed - {"fedrepro"}) | own


@pytest.mark.parametrize("path", NOTEBOOKS + PAGES, ids=lambda p: p.stem)
def test_the_kernel_is_the_one_every_environment_has(path):
    assert read(path).metadata.kernelspec.name == "python3"


@pytest.mark.parametrize("path", PAPERS, ids=lambda p: p.stem)
def test_parameters_and_headings(path):
    assert set(papermill.inspect_notebook(str(path))) == PARAMETERS
    headings = [
        line
        for cell in read(path).cells
        if cell.cell_type == "markdown"
        for line in cell.source.splitlines()
        if line.startswith("## ")
    ]
    assert [heading.split(".")[0] for heading in headings] == [f"## {i}" for i in range(1, 11)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_are_kept_without_outputs(path):
    assert all(not cell.get("outputs") for cell in read(path).cells)


@pytest.mark.slow
def test_papermill_by_hand_glues_runs_and_the_sentinel(tmp_path):
    out = tmp_path / "out.ipynb"
    papermill.execute_notebook(
        str(ROOT / "notebooks" / "adcol.ipynb"),
        str(out),
        {"seed": 1, "experiment": "table-1", "methods": ["SOLO", "ADCOL"],
         "runs_dir": str(tmp_path / "runs")},
        kernel_name="python3",
        progress_bar=False,
    )  # fmt: skip
    assert finished(out)
    found = collect(tmp_path, "adcol", tmp_path / "runs")
    ((kept, names),) = found.studies
    assert kept.seed == 1 and list(names) == ["table-1"]
    cells = pd.DataFrame(found.cells("table-1"))
    assert set(cells.method) == {"SOLO", "ADCOL"} and cells.value.between(0, 100).all()
    curve = found.curves("table-1")
    assert set(curve.label) == {"SOLO", "ADCOL"} and (curve["bytes"] >= 0).all()
    assert views.picture(found, "minidigits", "samples").html.startswith("<img")


@pytest.mark.slow
def test_a_wrong_parameter_is_one_line_in_the_notebook(tmp_path):
    out = tmp_path / "out.ipynb"
    given, message = {"changes": {"local_epochs": -1}}, "protocol setting local_epochs = -1"
    with pytest.raises(papermill.PapermillExecutionError):
        papermill.execute_notebook(
            str(ROOT / "notebooks" / "adcol.ipynb"), str(out), given,
            kernel_name="python3", progress_bar=False,
        )  # fmt: skip
    errors = [
        output
        for cell in read(out).cells
        for output in cell.get("outputs", [])
        if output.output_type == "error"
    ]
    assert len(errors) == 1 and len(errors[0].traceback) == 1
    assert (
        errors[0].traceback[0].startswith("FedReproError: ") and message in errors[0].traceback[0]
    )
    assert not finished(out) and SENTINEL == "finished"
