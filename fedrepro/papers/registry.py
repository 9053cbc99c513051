"""The papers by name, read from their files."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from fedrepro.base.errors import FedReproError, choices
from fedrepro.data import folders
from fedrepro.papers.paper import Paper

FOLDER = Path(__file__).parent
COMMON = "common"  # the project's own protocol, in the form of a paper without printed numbers
# All papers take 0.66 s in Python, 0.10 s in C.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Images of one's own, `folder:PATH`, under a paper's first protocol: its network and training, and
# one client per domain with all training images.
OWN = {
    "data.dataset": folders.FOLDER,
    "data.split": "pooled-stratified",
    "data.test_share": 0.2,
    "data.validation": 0.1,
    "data.allocation.rule": "domain",
    "data.allocation.clients": {},
    "data.allocation.per_client": "all",
    "data.allocation.every_class": False,
}
LISTED = ("id", "dataset", "caption", "state", "reason")


def names() -> list[str]:
    """The papers' names, sorted."""
    return sorted({path.stem for path in FOLDER.glob("*.yaml") if "." not in path.stem} - {COMMON})


@lru_cache
def load(name: str) -> Paper:
    """A paper by name, or the common protocol. FedReproError, with the choices, if there is
    none."""
    known = [*names(), COMMON]
    if name not in known:
        raise FedReproError(f"no paper {name!r}; choose from {choices(name, known)}")
    return read_paper(FOLDER / f"{name}.yaml")


def experiments(paper: str | None = None) -> list[dict[str, str]]:
    """Every table and figure of one paper or of all: paper, id, dataset, caption, state, reason."""
    return [
        {"paper": name, **{key: getattr(experiment, key) for key in LISTED}}
        for name in ([paper] if paper is not None else names())
        for experiment in load(name).experiments
    ]


def read_paper(path: Path) -> Paper:
    """Read ``<name>.yaml``, ``<name>.tables.yaml`` unless the first has ``tables``, and
    ``<name>.authors.yaml`` if it exists. An experiment with a table's id shows that table unless
    it says otherwise. FedReproError: the first mistake, in one line."""
    raw = {**_read_yaml(path), "name": path.stem}
    if "tables" not in raw:
        raw |= _read_yaml(path.with_name(f"{path.stem}.tables.yaml"))
    if raw.get("protocols"):
        raw["datasets"].setdefault(folders.FOLDER, _own(next(iter(raw["protocols"]))))
    authors = path.with_name(f"{path.stem}.authors.yaml")
    if authors.exists():
        raw["filed"] = _read_yaml(authors)
    try:
        paper = Paper.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise FedReproError(f"{path.name}, {place}: {first['msg']}; correct the file") from None
    tables = {table.id for table in paper.tables}
    shown = tuple(
        e.model_copy(update={"table": e.id})
        if e.id in tables and "table" not in e.model_fields_set
        else e
        for e in paper.experiments
    )
    return paper.model_copy(update={"experiments": shown})


def _own(protocol: str) -> dict[str, Any]:
    """The data set of one's own images, in the form of the YAML files."""
    told = {"source": "your own images have no official parts and no table of clients"}
    changes = {key: {"value": value, "status": "decided", **told} for key, value in OWN.items()}
    caveat = "your own images, not the paper's"
    return {"protocol": protocol, "changes": changes, "caveat": caveat, "added": True}


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        return dict(yaml.load(path.read_text(encoding="utf-8"), _LOADER))
    except (yaml.YAMLError, TypeError, ValueError, OSError) as error:
        flat = " ".join(str(error).split())
        raise FedReproError(f"{path.name} is not readable YAML ({flat}); correct it") from None
