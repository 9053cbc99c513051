"""The notebooks' own rules, and what papermill makes of right and wrong parameters."""

import ast
import re
from pathlib import Path

import nbformat
import papermill
import pytest

from fedrepro.report.results import finished

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
def test_cells_import_only_fedrepro_define_no_class_but_a_method_and_have_no_outputs(path):
    for cell in read(path).cells:
        if cell.cell_type != "code":
            continue
        assert path in PAGES or not cell.outputs
        tree = ast.parse(cell.source)
        own = WRITTEN.get(path.stem, set())
        method = any(isinstance(node, ast.ClassDef) for node in ast.walk(tree))
        assert own or not method
        allowed = {"fedrepro", *own, *BESIDE.get(path.stem, ())}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                assert node.module.split(".")[0] in allowed
            if isinstance(node, ast.Import):
                roots = {alias.name.split(".")[0] for alias in node.names}
                assert roots <= (allowed - {"fedrepro"}) | own


@pytest.mark.parametrize("path", PAPERS, ids=lambda p: p.stem)
def test_parameters_and_headings(path):
    assert set(papermill.inspect_notebook(str(path))) == PARAMETERS
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    assert re.findall(r"^## ([^.\n]*)", text, re.M) == [str(i) for i in range(1, 11)]


@pytest.mark.slow
def test_a_wrong_parameter_is_one_line_in_the_notebook(tmp_path):
    source, out = ROOT / "notebooks" / "adcol.ipynb", tmp_path / "out.ipynb"
    given, how = {"changes": {"local_epochs": -1}}, {"kernel_name": "python3"}
    with pytest.raises(papermill.PapermillExecutionError):
        papermill.execute_notebook(str(source), str(out), given, progress_bar=False, **how)
    outputs = [one for cell in read(out).cells for one in cell.get("outputs", [])]
    (error,) = [one for one in outputs if one.output_type == "error"]
    (line,) = error.traceback
    assert line.startswith("FedReproError: ") and "protocol setting local_epochs = -1" in line
    assert not finished(out)
