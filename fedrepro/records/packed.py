"""Many records in few files, for a repository. New runs add files and lines, and change none.
``runs.jsonl.gz`` has one line per run: its config, and hashes of what many runs share (method,
protocol, environment, data), which is once in ``shared.jsonl.gz``. ``<data set>-<scale>.parquet``
has curves, ``...-predictions.parquet`` predictions, ``...-points.parquet`` t-SNE points of the runs
whose features are drawn. Features are left out. Runs are not sorted by paper: two may share one."""

import hashlib
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from io import BytesIO
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from filelock import FileLock, Timeout
from safetensors.numpy import save

from fedrepro.base import files
from fedrepro.base.errors import FedReproError, explained, need
from fedrepro.records.record import CHECKPOINT, Array, Record, run_id, short_hash

PAGE = 1 << 24  # bytes packed together: with the usual 2**20, predictions are a quarter larger
SMALL = {"compression": "brotli", "compression_level": 11}  # zstd is a fifteenth larger
SMALL |= {"data_page_size": PAGE, "dictionary_pagesize_limit": PAGE}
INDEX, SHARED = "runs.jsonl.gz", "shared.jsonl.gz"
PLAIN = "runs.jsonl"  # the index before 2026-11-27
DIGITS = {"term": 3, "loss": 3, "server": 3, "seconds": 2}  # kept of a value, by measure
LOGGED_ROUNDS = 50  # of a run that keep their loss terms, test losses and server log
PARTS = "method", "protocol"  # of a config, that many runs share


class Pack:
    """The packed records of a folder; empty if there are none. Every file is read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._rows = cache(_rows_by_run)

    @cached_property
    def runs(self) -> dict[str, dict[str, Any]]:
        """The index by run id."""
        lines = (line for name in (PLAIN, INDEX) for line in files.read_lines(self.root / name))
        found = {line.get("run", ""): line for line in lines}
        need("" not in found, f"the index in {self.root} has a line without a run; restore it")
        return found

    @cached_property
    def shared(self) -> dict[str, Any]:
        """Content shared by several runs, by hash, and the files' SHA-256, by name."""
        return {line["key"]: line["content"] for line in files.read_lines(self.root / SHARED)}

    def facts(self, run: str) -> dict[str, Any]:
        """A run's measurements by name, with its ``config``, ``environment`` and ``data``. The date
        is in the run's own line."""
        line = self.runs[run]
        parts = {part: self._shared(run, line["config"][part]) for part in PARTS}
        environment = {"date": line["date"]} | self._shared(run, line["environment"])
        whole = {"environment": environment, "data": self._shared(run, line["data"])}
        return {"config": line["config"] | parts, **whole, **line["measured"]}

    def _shared(self, run: str, key: str) -> dict[str, Any]:
        lost = f"{self.root / SHARED} has no {key}, which run {run} needs; restore the file"
        need(key in self.shared, lost)
        found: dict[str, Any] = self.shared[key]
        return found

    def rows(self, run: str, kind: str = "") -> pd.DataFrame:
        """A run's curve, ``-points`` or ``-predictions``; empty if none are kept."""
        path = self.root / f"{self.runs[run]['file']}{kind}.parquet"
        return self._rows(path, self.shared.get(path.name)).get(run, pd.DataFrame())


def _rows_by_run(path: Path, sha256: Any) -> dict[str, pd.DataFrame]:
    """sha256: of the file, checked in a few ms; None in packs that list none."""
    if not path.exists():
        return {}
    with explained(f"{path} cannot be read", "restore the file", OSError, ValueError):
        content = path.read_bytes()
        if sha256 not in (None, hashlib.sha256(content).hexdigest()):
            raise ValueError("it was changed: its checksum differs")
        frame = pd.read_parquet(BytesIO(content))
    parts = frame.groupby(frame.pop("run"), sort=False)
    return {str(run): rows.reset_index(drop=True) for run, rows in parts}


def holds(root: Path, config: Mapping[str, Any], probe: str = "") -> bool:
    """Whether a packed run of a folder has a configuration, on whatever images, and was measured by
    a probe, if one is named."""
    index = [root / name for name in (PLAIN, INDEX)]
    changed = [path.stat().st_mtime_ns for path in index if path.exists()]
    return (short_hash(config), probe) in _configs(root, *changed)


@lru_cache
def _configs(root: Path, *changed: int) -> frozenset[tuple[str, str]]:
    """Hashes of configurations, each with no probe and with those of its run. changed: a changed
    index is read again."""
    pack = Pack(root)
    every = ((pack.facts(run)["config"], line["measured"]) for run, line in pack.runs.items())
    runs = ((short_hash(config), measured) for config, measured in every)
    return frozenset((hash, probe) for hash, measured in runs for probe in ("", *measured))


@dataclass(frozen=True)
class PackedRecord(Record):
    """A record from packed files, like `Record`. folder: its earlier folder, for the name."""

    pack: Pack

    def measured(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.pack.facts(self.run_id)[name]
        return found

    @property
    def probes(self) -> list[str]:
        return sorted(self.pack.runs[self.run_id]["measured"])

    @cached_property
    def curve(self) -> pd.DataFrame:
        found = self.pack.rows(self.run_id)
        lost = f"{self.pack.root} has no curve of run {self.run_id}; restore its parquet files"
        need(len(found), lost)
        return found

    @cached_property
    def features(self) -> dict[str, Array]:
        raise FedReproError(
            f"the features of run {self.run_id} were not packed; train it again in another folder"
        )

    @cached_property
    def predictions(self) -> dict[str, Array]:
        rows = self.pack.rows(self.run_id, "-predictions").itertuples()
        return {row.name: np.frombuffer(row.values, row.dtype) for row in rows}

    @property
    def points(self) -> pd.DataFrame:
        """The stored points; none if no notebook drew the features."""
        return self.pack.rows(self.run_id, "-points")


def pack(root: Path, drawn: Collection[str] = ()) -> int:
    """Move the finished runs of a folder into its packed files; also packed ones that were trained
    again for another measurement. Returns their number. drawn: ids of the runs whose t-SNE points
    are kept. A folder is deleted only after its packed data were read back."""
    try:
        with FileLock(root / ".lock", timeout=0):  # two at once would lose runs
            return _pack(root, drawn)
    except Timeout:
        raise FedReproError(f"another call packs {root}; wait for its end") from None


def _pack(root: Path, drawn: Collection[str]) -> int:
    before = Pack(root)
    groups: dict[str, list[Record]] = {}
    known: list[Record] = []
    for done in sorted(root.glob("*/done")):
        if (done.parent / CHECKPOINT).exists():  # trained again for a measurement
            continue
        record = Record(done.parent)
        own = run_id(record.config, record.data["hashes"])
        need(own == record.run_id, f"{record.folder} is not of run {own}; move the copy away")
        line = before.runs.get(record.run_id)
        if line is not None and set(record.probes) <= line["measured"].keys():
            known.append(record)
            continue
        protocol = record.protocol
        parts = protocol.data.dataset, protocol.data.encoder, protocol.scale
        groups.setdefault("-".join(filter(None, parts)), []).append(record)
    for name, records in groups.items():
        places = chain([name], (f"{name}-{n}" for n in count(2)))
        free = next(one for one in places if not (root / f"{one}.parquet").exists())
        _add(root, free, records, drawn)
    after, packed = Pack(root), [record for records in groups.values() for record in records]
    for record in packed:
        pd.testing.assert_frame_equal(after.rows(record.run_id), light(record))
        _remove(record.folder)
    for record in known:  # unpacked here, or left by a call that was killed
        if light(PackedRecord(record.folder, after)).equals(light(record)):
            _remove(record.folder)
    return len(packed)


def _remove(folder: Path) -> None:
    (folder / "done").unlink()  # first: what a killed call leaves is no run
    shutil.rmtree(folder)


def _add(root: Path, name: str, records: Iterable[Record], drawn: Collection[str]) -> None:
    """Write new files with some records, and add their lines."""
    curves, predicted, points, lines = [], [], [], []
    shared: dict[str, Any] = {}
    before = Pack(root)

    def keep(content: dict[str, Any]) -> str:
        shared[key := short_hash(content)] = content
        return key

    for record in records:
        run, environment = record.run_id, dict(record.environment)
        config = record.config | {part: keep(record.config[part]) for part in PARTS}
        line = {"run": run, "file": name, "config": config, "date": environment.pop("date")}
        measured = before.runs.get(run, {}).get("measured", {})
        measured = measured | {p: record.measured(p) for p in record.probes}
        hashed = {"environment": keep(environment), "data": keep(record.data)}
        lines.append({**line, **hashed, "measured": measured})
        curves.append(light(record).assign(run=run))
        predicted += [
            {"run": run, "name": n, "dtype": str(v.dtype), "values": v.tobytes()}
            for n, v in record.predictions.items()
        ]
        if run in drawn:
            points.append(record.points.assign(run=run))
    frames = {"": curves, "-points": points, "-predictions": [pd.DataFrame(predicted)]}
    for kind, parts in frames.items():
        if parts and len(frame := pd.concat(parts, ignore_index=True)):
            path = root / f"{name}{kind}.parquet"
            files.write(path, partial(frame.to_parquet, **SMALL))
            shared[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    new = [{"key": k, "content": one} for k, one in shared.items() if k not in before.shared]
    for path, more in ((root / SHARED, new), (root / INDEX, lines)):
        files.write_lines(path, more, path.read_bytes() if path.exists() else b"")


def light(record: Record) -> pd.DataFrame:
    """A run's curve with losses and the server's log to three significant digits, seconds to two,
    and loss terms, test losses and the log of so many rounds, evenly spaced, with first and last.
    Exact: accuracies, bytes, validation losses where they choose a round."""
    curve = record.curve
    number, last = curve["round"], max(1, curve["round"].max())
    even = number * LOGGED_ROUNDS // last > (number - 1) * LOGGED_ROUNDS // last
    thin = curve.measure.isin(["term", "server"])
    thin |= (curve.measure == "loss") & (curve.split == "test")
    curve = curve[~thin | even | (number <= 1)].reset_index(drop=True)
    digits = curve.measure.map(DIGITS)
    asked = record.config["protocol"]  # MPFT, on embeddings, reads the round with the best one
    if asked["early_stop"] is not None or asked["data"].get("encoder"):
        digits = digits.mask((curve.measure == "loss") & (curve.split == "validation"))
    pairs = zip(curve.value, digits, strict=True)
    return curve.assign(value=[v if np.isnan(n) else float(f"{v:.{n:.0f}g}") for v, n in pairs])


def unpack(root: Path, out: Path) -> int:
    """Write packed records as folders of runs, without features; a finished folder stays as it is.
    Returns the number written. FedReproError: the records are damaged; the folders would get
    checksums that hide it."""
    if wrong := check(root):
        raise FedReproError(f"{root}: {wrong[0]} ({len(wrong)} mistakes); restore the files")
    packed = Pack(root)
    need(packed.runs, f"no packed runs in {root}; name another folder with --runs")
    runs = [run for run in packed.runs if not (out / run / "done").exists()]
    for run in runs:
        record = PackedRecord(root / run, packed)
        folder = files.make_folder(out / run, "name a writable folder with --out")
        for name in ("config", "environment", "data", *record.probes):
            files.write_json(folder / f"{name}.json", record.measured(name))
        record.curve.to_parquet(folder / "curve.parquet", index=False)
        if predictions := record.predictions:
            (folder / "predictions.safetensors").write_bytes(save(predictions))
        files.list_sums(folder, without=CHECKPOINT)
    return len(runs)


def check(root: Path) -> list[str]:
    """Mistakes in packed records, one line each: ids that do not fit their configs and data,
    changed files, runs without a curve."""
    packed, wrong, changed = Pack(root), [], set[str]()
    for key, content in packed.shared.items():
        if key.endswith(".parquet"):
            path = root / key
            if not path.is_file():
                wrong.append(f"{key} is missing")
            elif hashlib.sha256(path.read_bytes()).hexdigest() != content:
                wrong.append(f"{key} is not what was written")
                changed.add(key)
        elif short_hash(content) != key:
            wrong.append(f"{SHARED}: {key} is not what was written")
    for run in packed.runs:
        facts = packed.facts(run)
        if run_id(facts["config"], facts["data"]["hashes"]) != run:
            wrong.append(f"{run} is not the id of its config and data")
        if f"{packed.runs[run]['file']}.parquet" not in changed and packed.rows(run).empty:
            wrong.append(f"{run} has no curve")
    return wrong
