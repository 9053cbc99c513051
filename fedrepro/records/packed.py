"""Many records in few files, which a repository can hold. New runs add files and lines; nothing
that is there is written again.

``runs.jsonl`` has one line per run: its config, and by hash what many runs have alike (protocol,
environment, data), which ``shared.jsonl`` holds once. ``<data set>-<scale>.parquet`` has curves,
``...-predictions.parquet`` predictions, ``...-points.parquet`` t-SNE points of those runs whose
features are drawn. Features themselves are left out. A run is not filed under a paper: two papers
may share it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.numpy import save

from fedrepro.base import files
from fedrepro.base.errors import FedReproError

INDEX, SHARED = "runs.jsonl", "shared.jsonl"


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


class Pack:
    """The packed records of a folder; empty where there are none."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def runs(self) -> dict[str, dict[str, Any]]:
        """The index by run id."""
        return {line["run"]: line for line in _lines(self.root / INDEX)}

    @cached_property
    def shared(self) -> dict[str, Any]:
        """What runs have alike, and the SHA-256 of the files, by hash and by name."""
        return {line["key"]: line["content"] for line in _lines(self.root / SHARED)}

    def config(self, run: str) -> dict[str, Any]:
        config = self.runs[run]["config"]
        return {**config, "protocol": self.shared[config["protocol"]]}

    def facts(self, run: str, kind: str) -> dict[str, Any]:
        """Its ``environment`` or ``data``."""
        found: dict[str, Any] = self.shared[self.runs[run][kind]]
        return found

    def curve(self, run: str) -> pd.DataFrame:
        return self._rows(run, "").drop(columns="run")

    def points(self, run: str) -> pd.DataFrame:
        """t-SNE points of its test features: x, y, domain, cls; empty where none are kept."""
        return self._rows(run, "-points").drop(columns="run", errors="ignore")

    def predictions(self, run: str) -> dict[str, np.ndarray[Any, Any]]:
        """As `Record.predictions`."""
        rows = self._rows(run, "-predictions")
        if rows.empty:
            return {}
        columns = zip(rows["name"], rows["dtype"], rows["values"], strict=True)
        return {name: np.frombuffer(values, dtype) for name, dtype, values in columns}

    def _rows(self, run: str, kind: str) -> pd.DataFrame:
        name = f"{self.runs[run]['file']}{kind}.parquet"
        if name not in self._tables:
            self._tables[name] = _by_run(self.root / name)
        return self._tables[name].get(run, pd.DataFrame()).reset_index(drop=True)

    @cached_property
    def _tables(self) -> dict[str, dict[str, pd.DataFrame]]:
        return {}


def _by_run(path: Path) -> dict[str, pd.DataFrame]:
    """The rows of a packed file by run; none where there is no file."""
    if not path.exists():
        return {}
    try:
        rows = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise FedReproError(f"{path} cannot be read ({error}); restore the file") from None
    return {str(run): part for run, part in rows.groupby("run", sort=False)}


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise FedReproError(f"{path} cannot be read ({error}); restore the file") from None


def pack(root: Path, drawn: Collection[str] = ()) -> int:
    """Move the finished runs of a folder into its packed files; how many there were.

    drawn: ids of the runs of whose test features t-SNE points are kept. A folder goes only once
    what was packed of it has been read back.
    """
    from fedrepro.records.store import Record

    before = Pack(root)
    groups: dict[str, list[Record]] = {}
    for done in sorted(root.glob("*/done")):
        record = Record(done.parent)
        if record.run_id not in before.runs:
            data = record.config["protocol"]["data"]
            encoder = f"-{data['encoder']}" if data.get("encoder") else ""
            scale = record.config["protocol"]["scale"]
            groups.setdefault(f"{data['dataset']}{encoder}-{scale}", []).append(record)
    for name, records in groups.items():
        _add(root, _free_name(root, name), records, drawn)
    after = Pack(root)
    for records in groups.values():
        for record in records:
            pd.testing.assert_frame_equal(after.curve(record.run_id), record.curve)
            shutil.rmtree(record.folder)
    return sum(len(records) for records in groups.values())


def _free_name(root: Path, name: str) -> str:
    taken = (f"{name}{end}" for end in ["", *(f"-{n}" for n in range(2, 1000))])
    return next(one for one in taken if not (root / f"{one}.parquet").exists())


def _add(root: Path, name: str, records: Iterable[Any], drawn: Collection[str]) -> None:
    """New files with some records, and their lines."""
    from fedrepro.records.embedding import tsne

    curves, predicted, points, lines = [], [], [], []
    shared: dict[str, Any] = {}
    for record in records:
        run, config, facts = record.run_id, dict(record.config), {}
        for kind, content in (
            ("protocol", config.pop("protocol")),
            ("environment", record.environment),
            ("data", record.data),
        ):
            facts[kind] = _hash(content)
            shared[facts[kind]] = content
        config["protocol"] = facts.pop("protocol")
        measured = {p: record.measured(p) for p in record.probes}
        lines.append({"run": run, "file": name, "config": config, **facts, "measured": measured})
        curves.append(record.curve.assign(run=run))
        predicted += [
            {"run": run, "name": n, "dtype": str(v.dtype), "values": v.tobytes()}
            for n, v in record.predictions.items()
        ]
        if run in drawn:
            classes = list(dict.fromkeys(row["class"] for row in record.data["counts"]))
            plane = tsne(record.features, record.data["domains"], classes, config["seed"])
            points.append(plane.assign(run=run))
    frames = {"": curves, "-points": points, "-predictions": [pd.DataFrame(predicted)]}
    for kind, parts in frames.items():
        if parts and len(frame := pd.concat(parts, ignore_index=True)):
            path = root / f"{name}{kind}.parquet"
            files.write(path, partial(frame.to_parquet, compression="zstd"))
            shared[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    known = Pack(root).shared
    _append(
        root / SHARED,
        [{"key": k, "content": content} for k, content in shared.items() if k not in known],
    )
    _append(root / INDEX, lines)


def _append(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    new = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    files.write(path, lambda file: file.write_text(old + new, encoding="utf-8"))


def unpack(root: Path, out: Path) -> int:
    """Write packed records as folders of runs, without their features; how many there are."""
    packed = Pack(root)
    for run, line in packed.runs.items():
        folder = files.make_folder(out / run, "name a writable folder with --out")
        files.write_json(folder / "config.json", packed.config(run))
        for kind in ("environment", "data"):
            files.write_json(folder / f"{kind}.json", packed.facts(run, kind))
        for probe, measured in line["measured"].items():
            files.write_json(folder / f"{probe}.json", measured)
        curve = BytesIO()
        packed.curve(run).to_parquet(curve, index=False)
        (folder / "curve.parquet").write_bytes(curve.getvalue())
        if predictions := packed.predictions(run):
            (folder / "predictions.safetensors").write_bytes(save(predictions))
        files.list_sums(folder)
    return len(packed.runs)


def check(root: Path) -> list[str]:
    """What is wrong with packed records, a line each: ids that their configs and data do not give,
    files that are not what was written, runs without a curve."""
    from fedrepro.records.store import run_id

    packed, wrong = Pack(root), []
    for key, content in packed.shared.items():
        if key.endswith(".parquet"):
            path = root / key
            if not path.is_file():
                wrong.append(f"{key} is missing")
            elif hashlib.sha256(path.read_bytes()).hexdigest() != content:
                wrong.append(f"{key} is not what was written")
        elif _hash(content) != key:
            wrong.append(f"{SHARED}: {key} is not what was written")
    curves = {
        run
        for file in {line["file"] for line in packed.runs.values()}
        if (root / f"{file}.parquet").is_file()
        for run in pd.read_parquet(root / f"{file}.parquet", columns=["run"])["run"].unique()
    }
    for run in packed.runs:
        if run_id(packed.config(run), packed.facts(run, "data")["hashes"]) != run:
            wrong.append(f"{run} is not the id of its config and data")
        if run not in curves:
            wrong.append(f"{run} has no curve")
    return wrong
