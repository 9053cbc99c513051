"""What a notebook leaves for others: glued with scrapbook, collected with scrapbook."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import scrapbook

from fedrepro.base.errors import FedReproError
from fedrepro.quantities.paper_run import Study
from fedrepro.report.picture import Picture
from fedrepro.report.tables import Html

SENTINEL = "finished"


def glue_study(
    study: Study,
    experiments: Sequence[str],
    pictures: Mapping[str, Picture] | None = None,
    **extra: Any,
) -> None:
    """Glue a notebook's parameters in effect, every run and every cell, and last the sentinel
    that tells a whole notebook from one whose kernel died. pictures: figures for other pages;
    extra: plain values."""
    runs: dict[str, dict[str, Any]] = {}
    labels: dict[str, list[list[str]]] = {}
    cells: list[dict[str, Any]] = []
    for experiment in experiments:
        for result in study.results(experiment):
            runs.setdefault(result.record.run_id, result.summary())
            labels.setdefault(result.record.run_id, []).append([experiment, result.label])
        cells += study.cells(experiment)
    parameters = {
        "paper": study.paper.name,
        "dataset": study.dataset,
        "scale": study.scale,
        "seed": study.seed,
        "experiments": list(experiments),
    }
    scrapbook.glue("study", parameters)
    scrapbook.glue("runs", [{**run, "used": labels[key]} for key, run in runs.items()])
    scrapbook.glue("cells", cells)
    scrapbook.glue("counts", study.federation().counts().to_dict("records"))
    for name, picture in (pictures or {}).items():
        extra[f"picture-{name}"] = base64.b64encode(picture.png()).decode()
    for name, value in extra.items():
        scrapbook.glue(name, value)
    scrapbook.glue(SENTINEL, True)


class Collected:
    """The scraps of many notebooks, seeds and data sets side by side."""

    def __init__(self, notebooks: Iterable[dict[str, Any]]) -> None:
        self.notebooks = list(notebooks)

    @property
    def cells(self) -> pd.DataFrame:
        """Every cell of every notebook."""
        return pd.DataFrame([row for book in self.notebooks for row in book["cells"]])

    @property
    def runs(self) -> list[dict[str, Any]]:
        """Every run, each with its notebook's `dataset`."""
        return [
            {**run, "dataset": book["study"]["dataset"]}
            for book in self.notebooks
            for run in book["runs"]
        ]

    def where(self, **facts: Any) -> Collected:
        """Those notebooks whose study has the given values (dataset="office10", ...)."""
        return Collected(
            book
            for book in self.notebooks
            if all(book["study"].get(key) == value for key, value in facts.items())
        )

    def picture(self, name: str) -> Html:
        """A glued figure of the first notebook that has it."""
        for book in self.notebooks:
            if f"picture-{name}" in book:
                data, alt = book[f"picture-{name}"], f"{name} of {book['study']['dataset']}"
                return Html(f'<img alt="{alt}" src="data:image/png;base64,{data}">', alt)
        raise FedReproError(f"no notebook holds a picture {name!r}; execute the notebooks again")

    def curves(self, experiment: str) -> pd.DataFrame:
        """Tidy curves of one experiment: label, seed, dataset, round, avg, bytes and domains."""
        frames = [
            pd.DataFrame(run["curve"]).assign(label=label, seed=run["seed"], dataset=run["dataset"])
            for run in self.runs
            for used, label in run["used"]
            if used == experiment
        ]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def collect(folder: Path | str, paper: str | None = None) -> Collected:
    """Read every executed notebook under a folder (and its sub-folders) that finished."""
    found = []
    paths = sorted(Path(folder).rglob("*.ipynb"))
    for path in paths:
        if ".ipynb_checkpoints" in path.parts:
            continue
        try:
            scraps = scrapbook.read_notebook(str(path)).scraps.data_dict
        except (ValueError, KeyError, AttributeError) as error:
            raise FedReproError(f"{path} is no readable notebook ({error}); remove it") from None
        if scraps.get(SENTINEL) and (paper is None or scraps["study"]["paper"] == paper):
            found.append({**scraps, "path": str(path)})
    return Collected(found)


def finished(notebook: Path) -> bool:
    """Whether an executed notebook reached its last cell. Papermill's own marks do not tell: after
    a kernel's death they call every cell completed."""
    if not notebook.exists():
        return False
    try:
        scraps = scrapbook.read_notebook(str(notebook)).scraps.data_dict
    except (ValueError, KeyError, AttributeError, OSError):
        return False
    return bool(scraps.get(SENTINEL))
