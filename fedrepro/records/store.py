"""Runs by id: they are read, resumed from their checkpoint or trained when they are needed."""

import json
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors import TensorSpec, safe_open, serialize_file
from safetensors.numpy import save_file
from torch import Tensor

from fedrepro.base import files
from fedrepro.base.errors import Diverged, FedReproError, Stopped, need
from fedrepro.base.progress import Progress, Tracker, progress as default_progress, resolve
from fedrepro.base.protocol import DataSpec
from fedrepro.base.threads import recorded
from fedrepro.data.federation import Federation, build_federation
from fedrepro.data.splits import tested_sample
from fedrepro.engine import ENGINES
from fedrepro.federated import metrics
from fedrepro.federated.metrics import Row
from fedrepro.federated.rounds import Training
from fedrepro.records.packed import Pack, PackedRecord
from fedrepro.records.record import (
    CHECKPOINT,
    Record,
    RunSpec,
    compact,
    environment,
    pick_device,
    run_id,
)

DIVERGED = "diverged.json"  # in the folder of a diverged run: its error
SHARE = 20  # saves may take this fraction (1/n) of the time


def tell(tracker: Tracker, rows: Iterable[Row]) -> None:
    """Send every round of some rows of a curve to a tracker."""
    curve = metrics.framed(rows)
    terms = curve[curve.measure == "term"].pivot_table("value", "round", "subject")
    sent = metrics.traffic(curve)
    tested = metrics.accuracies(curve).rename(columns={"avg": "mean"})
    parts = {"accuracy": tested, "term": terms, "bytes": sent.assign(total=sent.sum(axis=1))}
    table = pd.concat([part.add_prefix(f"{name}/") for name, part in parts.items()], axis=1)
    for number, values in table.iterrows():
        tracker.round(int(str(number)), {str(k): v for k, v in values.dropna().items()})


def opened(track: type[Tracker], folder: Path) -> Tracker:
    """A tracker for a run from its first round on."""
    shutil.rmtree(folder / track.name, ignore_errors=True)
    (folder / track.name).mkdir(parents=True)
    return track(folder / track.name)


class FileCheckpoint:
    """The unfinished state of a run: a safetensors file in its folder. The header has the facts as
    JSON, so that they are of the same round as the tensors; the run, which is its folder; and a
    checksum of the whole file (`base.files`), checked before reading. Due every 30 seconds, or less
    often if it is large: saving 1 GB takes 2 to 7 s, each checksum a third of a second."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / CHECKPOINT
        self._every = 30.0
        self._saved = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self._saved >= self._every

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Replace the checkpoint. If the disk has no room, the old one stays, with a warning."""
        begun, write = time.monotonic(), partial(_write, self.path.parent.name, tensors, facts)
        mend = "make room, or an interrupted run starts from an older one"
        try:
            files.write(self.path, write, mend)
        except FedReproError as full:
            warnings.warn(str(full), stacklevel=2)
        self._saved = time.monotonic()
        self._every = min(1800.0, max(30.0, SHARE * (self._saved - begun)))

    def load(self) -> tuple[Mapping[str, Tensor], dict[str, Any]] | None:
        """The tensors and facts, or None if there is no checkpoint."""
        if not self.path.exists():
            return None
        mend = "delete it to train this run from the start"
        whole = files.is_whole(self.path)
        need(whole, f"{self.path} is damaged, or older than checksums; {mend}")
        with safe_open(self.path, framework="pt") as file:
            run, facts = file.metadata()["run"], json.loads(file.metadata()["facts"])
            names = json.loads(file.metadata().get("names", "[]")) or file.keys()  # in their order
            tensors = {name: file.get_tensor(name) for name in names}
        need(run == self.path.parent.name, f"{self.path} is of another run, {run}; {mend}")
        return tensors, facts


def _write(run: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], path: Path) -> None:
    """In safetensors' format, without a copy but for tensors of a GPU or out of order in memory."""
    whole = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    specs = {
        name: TensorSpec(
            dtype=str(value.dtype).removeprefix("torch."),
            shape=list(value.shape),
            data_ptr=value.data_ptr(),
            data_len=value.nbytes,
        )
        for name, value in whole.items()
    }
    names = json.dumps(list(whole))  # the format sorts them, and a method may go by their order
    said = {**files.UNSIGNED, "run": run, "facts": json.dumps(facts), "names": names}
    serialize_file(specs, path, metadata=said)
    files.sign(path)


@dataclass(frozen=True)
class Probe:
    """A measurement on a training whose clients are in memory; in the record as ``<name>.json``."""

    name: str
    measure: Callable[[Training], Mapping[str, float]]


class Store:
    """A folder of runs, each in its own folder or all packed together."""

    def __init__(self, root: Path | str) -> None:
        self.root = files.full(str(root))  # papermill reads a folder 2026 as a number
        files.check_runs(self.root)
        self._pack = Pack(self.root)

    def find(self, identity: str, probe: Probe | None = None) -> Record | None:
        """The finished run with an id, if there is one and it has the probe's measurement."""
        folder = self.root / identity
        record: Record | None = Record(folder) if (folder / "done").exists() else None
        if record is None and identity in self._pack.runs:
            record = PackedRecord(folder, self._pack)
        missed = record is not None and probe is not None and probe.name not in record.probes
        return None if missed else record

    def obtain(
        self,
        spec: RunSpec,
        *,
        device: str = "auto",
        data_root: Path | None = None,
        progress: Progress | None = None,
        probe: Probe | None = None,
        track: str | type[Tracker] = "",
    ) -> Record:
        """The record of a run: from the store, resumed from its checkpoint, or trained now. A
        record without the probe's measurement is trained again. track: receives its rounds.
        Diverged: its training diverged, now or earlier."""
        tracker = resolve(track)
        federation, config = federation_of(spec.protocol.data, data_root), spec.config()
        words = ENGINES if spec.engine == "auto" else [config["engine"]]
        ids = [run_id(config | {"engine": word}, federation.hashes) for word in words]
        found = next(filter(None, (self.find(identity, probe) for identity in ids)), None)
        folder = self.root / (found.run_id if found is not None else ids[0])
        if found is None:
            mend, busy = "name a writable folder for runs", "another process trains run "
            with files.alone(folder / ".lock", mend, busy + folder.name):
                # Another process may have finished or packed it while this one waited.
                self._pack = Pack(self.root)
                if (found := self.find(folder.name, probe)) is None:
                    if (folder / DIVERGED).exists():
                        raise _diverged(folder)
                    where = pick_device(device)
                    with recorded(where):
                        given = spec.method, spec.protocol, federation, spec.seed, where
                        training = Training(*given, config["engine"])
                        shown = progress or default_progress()
                        _train(folder, config, training, shown, probe, tracker)
                    found = Record(folder)
        if tracker is not None and not (folder / tracker.name).exists():
            told = opened(tracker, folder)
            tell(told, found.curve.itertuples(index=False, name=None))
            told.close()
        return found


class _Changed(FedReproError):
    """A method has another code than when its training began."""


def _train(
    folder: Path,
    config: Mapping[str, Any],
    training: Training,
    progress: Progress,
    probe: Probe | None,
    track: type[Tracker] | None,
) -> None:
    facts = environment(training.device) | {"memory_format": str(training.engine.format)}
    facts |= _before(folder, facts)
    known = {"config": config, "environment": facts, "data": data_facts(training)}
    if not (folder / "done").exists():  # a run that is measured again stays whole until its end
        _write_facts(folder, known)
    checkpoint, tracker = FileCheckpoint(folder), opened(track, folder) if track else None
    spec = RunSpec(training.method, training.protocol, training.seed)

    def after_round(rows: Iterable[Row]) -> None:
        # A method's code, with the class attributes and globals that it uses, is part of the id.
        if spec.config()["method"] != config["method"]:
            what = f"{spec.method.name} changes a class attribute or a global in training"
            mend = "keep it in server.tensors or in first_memory"
            raise _Changed(f"{what}, so no run repeats another; {mend}")
        if tracker is not None:
            tell(tracker, rows)

    try:
        training.run(progress, checkpoint, after_round)
    except KeyboardInterrupt:
        raise Stopped from None
    except _Changed:
        checkpoint.path.unlink(missing_ok=True)  # its rounds are of no run
        raise
    except Diverged as end:
        said = {"message": str(end), "seed": end.seed, "round": end.round}
        files.write_json(folder / DIVERGED, said)
        checkpoint.path.unlink(missing_ok=True)  # it is as large as the network
        raise _diverged(folder) from None
    finally:
        if tracker is not None:
            tracker.close()
    try:
        measured = {} if probe is None else {probe.name: probe.measure(training)}
        (folder / "done").unlink(missing_ok=True)  # it lists files that are written again
        _write_facts(folder, known | measured)
        _write_arrays(folder, training)
    except BaseException:
        checkpoint.save(*training.saved())
        raise
    files.list_sums(folder, without=CHECKPOINT)
    checkpoint.path.unlink(missing_ok=True)


def _before(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of the machines that trained a checkpoint, if they are not those of this one."""
    path = folder / "environment.json"
    if (folder / "done").exists() or not (folder / CHECKPOINT).exists() or not path.exists():
        return {}
    old = files.read_json(path)
    earlier = old.pop("before", [])
    same = all(old.get(key) == facts[key] for key in ("device", "driver", "packages", "commit"))
    return {"before": earlier if same else [*earlier, old]} if earlier or not same else {}


def _write_facts(folder: Path, known: Mapping[str, Any]) -> None:
    for name, content in known.items():
        files.write_json(folder / f"{name}.json", content)


def _write_arrays(folder: Path, training: Training) -> None:
    curve, domains = training.curve(), list(training.federation.domains)
    features, labels, of = training.embed()
    embedded = {"features": compact(features.float().numpy()), "labels": labels.numpy()}
    embedded["domain"] = np.array([domains.index(d) for d in of])
    for name, arrays in (("features", embedded), ("predictions", predicted_of(training))):
        files.write(folder / f"{name}.safetensors", partial(save_file, arrays))
    files.write(folder / "curve.parquet", lambda file: curve.to_parquet(file, index=False))


def _diverged(folder: Path) -> Diverged:
    """The error of a diverged run. It is not trained again: the same seed diverges again."""
    said = files.read_json(folder / DIVERGED)
    # by its name alone: notebooks keep the message, and a path is of one machine
    message = f"{said['message']} (delete the folder {folder.name} to train it again)"
    return Diverged(message, said["seed"], said["round"], folder.name)


def predicted_of(training: Training) -> dict[str, np.ndarray[Any, Any]]:
    """See `Record.predictions`."""
    federation, spec = training.federation, training.protocol
    named = {f"predicted/{name}": value.numpy() for name, value in training.predicted.items()}
    for domain, samples in federation.tests.items():
        named[f"labels/{domain}"] = samples.labels.cpu().to(torch.int16).numpy()
        for source, indices in federation.test_images.get(domain, ()):
            named[f"images/{domain}/{source}"] = indices.astype("int32")
        if spec.tested_at is not None and len(samples) > spec.tested_at:
            sample = tested_sample(domain, len(samples), spec.tested_at, spec.data.split_seed)
            named[f"sample/{domain}"] = sample.astype("int32")
    return named


def data_facts(training: Training) -> dict[str, Any]:
    federation = training.federation
    return {
        "dataset": federation.dataset,
        "domains": list(federation.domains),
        "hashes": dict(federation.hashes),
        "standins": list(federation.standins),
        "subsets": list(federation.subsets),
        "deviations": {k: list(v) for k, v in training.few_tests.deviations.items()},
        "clients": [{"name": c.name, "domain": c.domain} for c in federation.clients],
        "counts": federation.counts().to_dict("records"),
        **({"weights": federation.weights} if federation.weights else {}),
    }


def federation_of(spec: DataSpec, data_root: Path | None = None) -> Federation:
    """The federation of a data spec; the last few are cached, because many runs share one."""
    return _federation(spec.model_dump_json(), data_root)


@lru_cache(maxsize=4)
def _federation(spec: str, data_root: Path | None) -> Federation:
    return build_federation(DataSpec.model_validate_json(spec), root=data_root)
