"""Small made federations: enough to train on, small enough to train in milliseconds."""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest
import torch

from fedrepro import methods
from fedrepro.base.progress import Silent
from fedrepro.base.protocol import Protocol, parse_protocol
from fedrepro.data import domains
from fedrepro.data.federation import ClientData, Federation, Samples
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import Method
from fedrepro.records import Record, Store
from fedrepro.records.packed import Pack
from fedrepro.records.store import FileCheckpoint

SIZE = 16
CLASSES = 3
ON_IMAGES = tuple(name for name in methods.names() if not methods.get(name).needs_embeddings)


def samples(n: int, shift: float, seed: int) -> Samples:
    """n images whose brightness pattern tells the class and whose offset tells the domain."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    noise = torch.rand(n, 3, SIZE, SIZE, generator=generator) * 60
    rows = torch.arange(SIZE)
    pattern = ((rows[None, :] // 4) % CLASSES == labels[:, None]).float() * 120
    images = (noise + pattern[:, None, :, None] + shift).clamp(0, 255).to(torch.uint8)
    return Samples(images, labels)


def federation(sizes: tuple[int, ...] = (21, 13, 9), validation: bool = True) -> Federation:
    """One client a domain, of unequal sizes (partial and single-sample last batches included)."""
    names = tuple(f"domain{i}" for i in range(len(sizes)))
    return Federation(
        dataset="toy",
        size=SIZE,
        classes=tuple("abc"),
        domains=names,
        clients=tuple(
            ClientData(
                name=name,
                domain=name,
                train=samples(n, 25 * i, i),
                validation=samples(6, 25 * i, 50 + i) if validation else None,
            )
            for i, (name, n) in enumerate(zip(names, sizes, strict=True))
        ),
        tests={name: samples(12, 25 * i, 100 + i) for i, name in enumerate(names)},
        hashes={f"data/{name}": str(n) for name, n in zip(names, sizes, strict=True)},
    )


def protocol(**changes: object) -> Protocol:
    """Three rounds of a tiny network, batches of 4; keyword arguments as Protocol.changed."""
    base = parse_protocol(
        {
            "data": {"dataset": "toy", "size": SIZE},
            "model": "tiny-cnn",
            "rounds": 3,
            "local_epochs": 2,
            "batch_size": 4,
            "optimizer": {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-5},
            "scale": "smoke",
        }
    )
    return base.changed(**{key.replace("__", "."): value for key, value in changes.items()})


def start(
    name: str = "FedAvg", sizes: tuple[int, ...] = (21, 13, 9), given: Federation | None = None,
    method: Method | None = None, engine: str = "reference", seed: int = 0,
    fields: dict[str, object] | None = None, **changes: object,
) -> Training:  # fmt: skip
    method = method or methods.create(name, **(fields or {}))
    return Training(method, protocol(**changes), given or federation(sizes), seed, engine=engine)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(curve: pd.DataFrame) -> pd.DataFrame:
    """A curve without its timings, the one thing that may differ between equal runs."""
    return curve[curve.measure != "seconds"].reset_index(drop=True)


def logged(curve: pd.DataFrame, measure: str, number: int) -> dict[str, float]:
    """What a round logged of a measure, by subject, summed over clients."""
    chosen = curve[(curve.measure == measure) & (curve["round"] == number)]
    return chosen.groupby("subject").value.sum().to_dict()


def wait_for(what: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has buried yet counts."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Interrupt(Exception):
    """What ends a training in the middle."""


class StopAfterTwo(FileCheckpoint):
    def due(self):
        return True

    def save(self, tensors, facts):
        super().save(tensors, facts)
        if facts["round"] == 2:
            raise Interrupt


def assert_resumes(begin: Callable[[], Training], folder: Path) -> None:
    """Broken off after two rounds and resumed, a run is the uninterrupted one, bit for bit."""
    whole, resumed = begin(), begin()
    expected = whole.run(Silent())
    with pytest.raises(Interrupt):
        begin().run(Silent(), StopAfterTwo(folder))
    curve = resumed.run(Silent(), FileCheckpoint(folder))
    pd.testing.assert_frame_equal(numbers(curve), numbers(expected), check_exact=True)
    assert list(whole.predicted) == list(resumed.predicted)
    assert_equal(whole.state(), resumed.state())


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert not [name for name, value in one.items() if not torch.equal(value, other[name])]


def records(folder: Path) -> list[Record]:
    """All finished runs of a folder, by id, packed ones last."""
    store = Store(folder)
    names = [done.parent.name for done in sorted(folder.glob("*/done"))]
    names += [run for run in Pack(folder).runs if run not in names]
    return [record for record in map(store.find, names) if record is not None]


def damages(path: Path) -> Iterator[str]:
    """The file empty, cut, or with one bit flipped anywhere; whole again in the end."""
    whole = path.read_bytes()
    draws = random.Random(path.name)
    broken = {"empty": b"", "cut": whole[:-5]}
    for place in [0, len(whole) - 1, *(draws.randrange(len(whole)) for _ in range(20))]:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << draws.randrange(8)
        broken[f"byte {place}"] = bytes(flipped)
    for how, content in {**broken, "whole": whole}.items():
        path.write_bytes(content)
        domains._is_whole.cache_clear()  # two writes may fall on one tick of the file's clock
        if how != "whole":
            yield how
