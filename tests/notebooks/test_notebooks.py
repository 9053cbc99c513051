"""The notebooks' own rules, and what papermill makes of right and wrong parameters."""

import re
from pathlib import Path

import nbformat
import papermill
import pytest

from fedrepro.report.results import finished

ROOT = Path(__file__).resolve().parents[2]
PARAMETERS = {
    "experiment", "dataset", "methods", "seed", "scale", "device", "data_root", "runs_dir",
    "changes",
}  # fmt: skip


def read(path):
    return nbformat.read(path, as_version=4)


def test_parameters_and_headings_and_no_outputs():
    notebooks = {path.stem: read(path) for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert len(notebooks) == 7
    for name, notebook in notebooks.items():
        assert not any(cell.get("outputs") for cell in notebook.cells), name
        if name != "quickstart":
            known = papermill.inspect_notebook(str(ROOT / "notebooks" / f"{name}.ipynb"))
            assert set(known) == PARAMETERS
            text = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
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
