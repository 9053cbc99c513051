"""A federation: clients with their images, and a test set per domain."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedrepro.base.errors import need, one_of
from fedrepro.base.protocol import DataSpec
from fedrepro.data.domains import DomainArrays, load_dataset
from fedrepro.data.embeddings import embed_domain, embedder
from fedrepro.data.manifest import Root, data_root, locate
from fedrepro.data.partition import POOLED, Partition, Pieces, make_partition
from fedrepro.data.readers import read_list
from fedrepro.data.splits import Indices, Split, limit_test, make_split, tested_sample

Arrays = dict[str, DomainArrays]  # by domain


@dataclass(frozen=True, eq=False)
class Samples:
    """Images uint8 (n, 3, H, W), or embeddings float32 (n, d), and labels int64 (n,)."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Samples":
        return Samples(self.images.to(device), self.labels.to(device))

    def few(self, count: int) -> "Samples":
        """So many of them, or all, evenly spaced: of every class, if they are in order of class."""
        chosen = torch.linspace(0, len(self) - 1, min(count, len(self))).round().long()
        return Samples(self.images[chosen], self.labels[chosen])


@dataclass(frozen=True, eq=False)
class ClientData:
    """One client. validation: training images of its domain that no client has, if any; all
    clients of the domain share them."""

    name: str
    domain: str
    train: Samples
    validation: Samples | None


@dataclass(frozen=True, eq=False)
class Federation:
    """All data of a run.
    size: side of an image in pixels, or values of an embedding. texts: for an encoder with a text
    part, its head (K, d) for each domain. domains: names of the test sets, in order. hashes:
    ``data/<domain>``, ``split/<domain>`` per source domain, and ``allocation``. standins, subsets:
    domains that contain a stand-in, or lack images of the release. deviations: domain -> what
    differs from the papers' data there. test_images: by test set, in its order, the images' source
    domains and indices there (unknown if pooled). weights: of the domains in a mean over clients,
    if they are not the numbers of test images."""

    dataset: str
    size: int
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    clients: tuple[ClientData, ...]
    tests: dict[str, Samples]
    hashes: dict[str, str] = field(default_factory=dict)
    standins: tuple[str, ...] = ()
    deviations: dict[str, tuple[str, ...]] = field(default_factory=dict)
    texts: dict[str, Tensor] = field(default_factory=dict)
    test_images: dict[str, Pieces] = field(default_factory=dict)
    subsets: tuple[str, ...] = ()
    weights: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        tested = ", ".join(f"{domain} ({len(test):,})" for domain, test in self.tests.items())
        trained = sum(len(client.train) for client in self.clients)
        return (
            f"<Federation {self.dataset}: {len(self.clients)} clients with {trained:,} images of "
            f"{len(self.classes)} classes; tested on {tested}>"
        )

    @property
    def lone(self) -> str:
        """A domain without a client, empty if each has one."""
        return min(set(self.domains) - {client.domain for client in self.clients}, default="")

    def tested_on(self, most: int | None, seed: int) -> "Federation":
        """The same federation with a fixed sample of at most this many test images per domain."""
        tests, deviations = dict(self.tests), dict(self.deviations)
        for domain, whole in self.tests.items():
            if most is not None and len(whole) > most:
                part = torch.from_numpy(tested_sample(domain, len(whole), most, seed))
                tests[domain] = Samples(whole.images[part], whole.labels[part])
                clause = f"{domain}: {most:,} of {len(whole):,} tested before the last five rounds"
                deviations[domain] = (*deviations.get(domain, ()), clause)
        return replace(self, tests=tests, deviations=deviations)

    def counts(self) -> pd.DataFrame:
        """Images by domain, client (empty: all), split (train, validation, test), class; also 0."""
        parts = [(c.domain, c.name, "train", c.train) for c in self.clients]
        for split, whole in (("validation", self.validations()), ("test", self.tests)):
            parts += [(domain, "", split, samples) for domain, samples in whole.items()]
        rows = []
        for domain, client, split, samples in parts:
            images = torch.bincount(samples.labels.cpu(), minlength=len(self.classes)).tolist()
            counted = zip(self.classes, images, strict=True)
            rows += [(domain, client, split, name, count) for name, count in counted]
        return pd.DataFrame(rows, columns=["domain", "client", "split", "class", "images"])

    def validations(self) -> dict[str, Samples]:
        """The validation images of the domains that have some."""
        return {c.domain: c.validation for c in self.clients if c.validation is not None}

    def to(self, device: torch.device | str) -> "Federation":
        """The same federation on a device; a shared validation set is moved once."""
        validation = {d: s.to(device) for d, s in self.validations().items()}
        clients = tuple(
            replace(c, train=c.train.to(device), validation=validation.get(c.domain))
            for c in self.clients
        )
        tests = {domain: samples.to(device) for domain, samples in self.tests.items()}
        texts = {domain: head.to(device) for domain, head in self.texts.items()}
        return replace(self, clients=clients, tests=tests, texts=texts)


def build_federation(spec: DataSpec, root: Path | None = None) -> Federation:
    """The federation of a specification: load, split and allocate its data set. It depends on
    ``spec.split_seed``, not on a run's seed. Under label skew all domains become one, ``pooled``.
    FedReproError: unknown data set, broken files, impossible clients."""
    arrays, splits, partition = divided(spec, root)
    size, texts = spec.size, dict[str, Tensor]()
    if spec.encoder is not None:
        encoder = embedder(spec.encoder, root)
        size, text = encoder.size, encoder.text
        if text is not None:
            texts = {name: text(name, a.classes).float().cpu() for name, a in arrays.items()}
        arrays = {n: embed_domain(a, encoder, partition.used(n)) for n, a in arrays.items()}
    held, tests = partition.validation, partition.tests
    own: dict[str, tuple[str, ...]] = {d: (pieces[0][0],) for d, pieces in tests.items()}  # sources
    # MPFT's code: a mixed test set counts as the unmixed one, a divided one as its training images
    mixed, cut = spec.allocation.rule == "mixed", spec.allocation.cut_tests
    weights = {name: len(split.test) for name, split in splits.items() if mixed}
    weights |= {client.domain: len(client) for client in partition.clients if cut}
    if pooled := any(client.domain == POOLED for client in partition.clients):
        own = {POOLED: tuple(arrays)}
        held = {POOLED: sum(held.values(), ())} if held else {}
        tests = {POOLED: sum(tests.values(), ())}
    validation = {domain: _gather(arrays, pieces) for domain, pieces in held.items()}
    notes = {name: a.deviations + partition.leaks(name) for name, a in arrays.items()}
    deviations = {d: sum((notes[name] for name in names), ()) for d, names in own.items()}
    return Federation(
        dataset=spec.dataset,
        size=size,
        classes=next(iter(arrays.values())).classes,
        domains=tuple(own),
        clients=tuple(
            ClientData(c.name, c.domain, _gather(arrays, c.train), validation.get(c.domain))
            for c in partition.clients
        ),
        tests={domain: _gather(arrays, pieces) for domain, pieces in tests.items()},
        hashes={
            **{f"data/{name}": a.hash for name, a in arrays.items()},
            **{f"split/{name}": split.hash for name, split in splits.items()},
            "allocation": partition.hash,
        },
        texts=texts if pooled else {d: texts[s] for d, (s, *_) in own.items() if texts},
        test_images={} if pooled else tests,
        weights=weights,
        standins=tuple(d for d in own if any(arrays[n].standin for n, _ in tests[d])),
        subsets=tuple(d for d in own if any(arrays[n].subset for n, _ in tests[d])),
        deviations={domain: clauses for domain, clauses in deviations.items() if clauses},
    )


def divided(spec: DataSpec, root: Root = None) -> tuple[Arrays, dict[str, Split], Partition]:
    """A data set's domains, the split of each, and the clients' shares."""
    arrays = load_dataset(spec.dataset, spec.size, root)
    for name in spec.test_limit if isinstance(spec.test_limit, dict) else ():
        one_of(name, arrays, f"{spec.dataset} domain")
    splits = {name: _split(spec, a) for name, a in arrays.items()}
    labels = {name: a.labels for name, a in arrays.items()}
    shared = originals(arrays, root) if spec.allocation.disjoint else None
    return arrays, splits, make_partition(splits, labels, spec, shared)


def originals(arrays: Arrays, root: Root = None) -> dict[str, Indices]:
    """By domain, a number for each image that is the same for images of one original.
    MNIST-M has the digits of MNIST over photographs. Its subset stores the MNIST number of each
    image, or its files are named after it. FedReproError: a label is not the original's. Without
    both domains, images are of one original if they are equal pixel by pixel."""
    if not {"mnist", "mnistm"} <= arrays.keys():
        return {d: np.array([hash(one.tobytes()) for one in a.images]) for d, a in arrays.items()}
    mnist, found = arrays["mnist"], locate("mnistm", data_root(root)).files
    if "npz" in found:
        with np.load(found["npz"], allow_pickle=False) as archive:
            train, test = archive["train_index"], archive["test_index"]
    else:
        lists = (read_list(found[f"{part}-labels"]) for part in ("train", "test"))
        train, test = (np.array([int(Path(file).stem) for file in rows]) for rows in lists)
    index = np.concatenate([train, test + int((mnist.part == 0).sum())]).astype(np.int64)
    same = np.array_equal(mnist.labels[index], arrays["mnistm"].labels)
    need(same, "MNIST-M is not numbered as MNIST; leave allocation.disjoint out")
    return {"mnist": np.arange(len(mnist.labels)), "mnistm": index}


def _split(spec: DataSpec, arrays: DomainArrays) -> Split:
    floor = spec.split == "class-first" and spec.dataset == "pacs"
    rule, limit = spec.split + "-floor" * floor, spec.test_limit
    split = make_split(arrays, rule, spec.split_seed, spec.test_share)
    limit = limit.get(arrays.name) if isinstance(limit, dict) else limit
    return split if limit is None else limit_test(split, arrays.labels, limit, spec.split_seed)


def _gather(arrays: Arrays, pieces: Pieces) -> Samples:
    """Copy the images from the mapped files; grey ones get three equal channels."""
    images, labels = [], []
    for name, indices in pieces:
        part = np.asarray(arrays[name].images[indices])  # no longer a view of the file
        grey = part.ndim == 4 and part.shape[1] == 1
        images.append(np.repeat(part, 3, axis=1) if grey else part)
        labels.append(arrays[name].labels[indices])
    return Samples(*(torch.from_numpy(np.concatenate(parts)) for parts in (images, labels)))
