"""The numbers of an experiment that trains nothing: how many images there are, how far the sources
lie apart, how large messages are, what prototypes tell of images. Rows as `cells.cells` gives
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import linalg

from fedrepro.base.protocol import Protocol, Scale
from fedrepro.base.rng import numpy_stream
from fedrepro.data.domains import DATASETS, DomainArrays, load_domain
from fedrepro.data.splits import make_split
from fedrepro.extras.inversion import likeness
from fedrepro.methods.messages import Network, payload_bytes
from fedrepro.models import discriminator, parameter_count
from fedrepro.papers import COUNTED, Experiment, Paper
from fedrepro.quantities.figure_arrays import Figure, obtain
from fedrepro.records import federation_of

Array = npt.NDArray[np.float64]
Row = dict[str, Any]
# Encoder, and most images of a source, by scale.
MEASURED: Mapping[Scale, tuple[str, int | None]] = {
    "smoke": ("pixels", 300),
    "reduced": ("mobilenetv2-imagenet", 1500),
    "paper": ("mobilenetv2-imagenet", None),
}
NOT_INCEPTION = "features of {} in place of Inception v3's: distances of another scale"
CUT = "{:,} of {:,} images, drawn at random"


@dataclass(frozen=True)
class Sources:
    """The domains of a data set as an experiment's protocol reads them."""

    paper: Paper
    experiment: Experiment
    protocol: Protocol
    seed: int
    runs: Path
    root: Path | None

    @cached_property
    def figure(self) -> Figure:
        """The arrays of the experiment, kept beside the runs."""
        return obtain(self.experiment, self.protocol, self.seed, self.runs, self.root)

    @property
    def dataset(self) -> str:
        return self.protocol.data.dataset

    @cached_property
    def arrays(self) -> dict[str, DomainArrays]:
        size = self.protocol.data.size
        return {name: load_domain(name, size, self.root) for name in DATASETS[self.dataset]}

    def row(self, domain: str | None = None) -> str:
        """The printed row of the data set, or of one of its domains; our own names where the paper
        has none."""
        start = self.experiment.rows.get(self.dataset, self.dataset)
        if domain is None:
            return start
        printed = self.paper.table(self.experiment.table or self.experiment.id).methods
        names = (f"{start} / {name}" for name in self.paper.columns.get(domain, ()))
        return next((name for name in names if name in printed), f"{start} / {domain}")


def facts(
    paper: Paper,
    experiment: Experiment,
    protocol: Protocol,
    seed: int,
    runs: Path,
    root: Path | None = None,
) -> list[Row]:
    """The rows of an experiment of one of the kinds in `papers.UNTRAINED`.

    Raises:
        FedReproError: missing or broken files.
    """
    rows = []
    for method, column, value, more in _KINDS[experiment.kind](
        Sources(paper, experiment, protocol, seed, runs, root)
    ):
        given = {"table": experiment.id, "method": method, "column": column, "value": value}
        plain = {"standin": False, "marks": [], "alternative": False, "alone": True}
        rows.append({**given, **plain, "counted": experiment.kind in COUNTED, **more})
    return rows


Values = Iterator[tuple[str, str, float | None, Row]]


def _counts(sources: Sources) -> Values:
    """Training and test images of every source, before clients get theirs."""
    data = sources.protocol.data
    for name, arrays in sources.arrays.items():
        split = make_split(arrays, data.split, data.split_seed, data.test_share)
        more = {"standin": arrays.standin, "marks": list(arrays.deviations)}
        for column, part in (("train", split.train), ("test", split.test)):
            yield sources.row(name), column, float(len(part)), more


def _clients(sources: Sources) -> Values:
    """Clients of each domain, in the one printed row."""
    federation = federation_of(sources.protocol.data, sources.root)
    owners = [client.domain for client in federation.clients]
    row = sources.paper.table(sources.experiment.table or sources.experiment.id).methods[0]
    for domain in federation.domains:
        marks = list(federation.deviations.get(domain, ()))
        more = {"standin": domain in federation.standins, "marks": marks}
        yield row, domain, float(owners.count(domain)), more


def _shares(sources: Sources) -> Values:
    """Percent of each client's training images that are of a class."""
    counts = federation_of(sources.protocol.data, sources.root).counts()
    counts = counts[counts.split == "train"]
    for client, rows in counts.groupby("client", sort=False):
        for name, images in zip(rows["class"], rows.images, strict=True):
            yield str(client), str(name), 100 * float(images) / float(rows.images.sum()), {}


def _distances(sources: Sources) -> Values:
    """Mean over the sources of the Frechet distance of each to all of them together."""
    from fedrepro.data.embeddings import embedder, encode  # brings torchvision

    name, most = MEASURED[sources.protocol.scale]
    encoder = embedder(name, sources.root)
    features, marks = {}, [NOT_INCEPTION.format(encoder.name)]
    for domain, arrays in sources.arrays.items():
        chosen = _drawn(domain, len(arrays.labels), most)
        images = arrays.images[chosen]
        features[domain] = encode(images, encoder, f"embedding {domain}").astype(np.float64)
        if len(chosen) < len(arrays.labels):
            marks.append(f"{domain}: {CUT.format(len(chosen), len(arrays.labels))}")
        marks += arrays.deviations
    together = np.concatenate(list(features.values()))
    found = {domain: frechet(own, together) for domain, own in features.items()}
    more = {"standin": True, "marks": marks}  # other features: no number of the paper's
    yield sources.row(), "FID", float(np.mean(list(found.values()))), more
    for domain, value in found.items():
        yield f"{sources.row()} / {domain}", "FID", value, {**more, "alternative": True}


def _drawn(domain: str, n: int, most: int | None) -> npt.NDArray[np.int64]:
    """Indices of the images that are measured."""
    if most is None or n <= most:
        return np.arange(n)
    order = numpy_stream(sum(domain.encode()), "figure").permutation(n)
    return np.sort(order[:most])


def frechet(first: Array, second: Array) -> float:
    """The Frechet distance of two sets of features (n, d) and (m, d), each read as a normal
    distribution: |mean difference|^2 + tr(S + T - 2 (S T)^(1/2)). Heusel et al. 2017.

    The root's trace is that of the symmetric (S^(1/2) T S^(1/2))^(1/2), so that a singular S, fewer
    images than features say, does no harm.
    """
    difference = first.mean(axis=0) - second.mean(axis=0)
    s, t = (np.atleast_2d(np.cov(x, rowvar=False)) for x in (first, second))
    values, vectors = linalg.eigh(s)
    root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    crossed = linalg.eigvalsh(root @ t @ root).clip(min=0)
    return float(difference @ difference + np.trace(s) + np.trace(t) - 2 * np.sqrt(crossed).sum())


def _sizes(sources: Sources) -> Values:
    """Counts, rounded to the digits the paper prints."""
    from fedrepro.quantities.sizes import sizes  # brings the round loop

    paper, experiment = sources.paper, sources.experiment
    table = paper.table(experiment.table or experiment.id)
    for row, value in sizes(sources.protocol, sources.root):
        digits = _printed_digits(paper, experiment, row, "value")
        yield row, "value", round(value, digits), {"alternative": row not in table.methods}


def _transfers(sources: Sources) -> Values:
    """MB of all clients in the printed rounds, at the paper's sizes. The experiment's `rows` name
    the table whose arms and rounds are taken."""
    from fedrepro.quantities.transfers import transfers  # brings the round loop

    paper, experiment = sources.paper, sources.experiment
    printed = paper.table(experiment.rows[sources.dataset])
    arms = [arm for arm in paper.arms(printed.id, sources.dataset) if not arm.alternative]
    cells = {arm.label: printed.cell(arm.label, "rounds") for arm in arms}
    rounds = {label: cell.value or 0.0 for label, cell in cells.items() if cell is not None}
    data = sources.protocol.data.model_copy(update={"encoder": None})
    federation = federation_of(data, sources.root)
    column = paper.column(experiment.table or experiment.id, sources.dataset) or sources.dataset
    megabyte = float(paper.reporting["megabyte_bytes"].value)
    digits = {a: _printed_digits(paper, experiment, a, column) for a in rounds}
    for label, sent in transfers(arms, rounds, federation):
        yield label, column, round(sent / megabyte, digits[label]), {}


def _printed_digits(paper: Paper, experiment: Experiment, row: str, column: str) -> int:
    cell = paper.table(experiment.table or experiment.id).cell(row, column)
    return len(cell.printed.partition(".")[2]) if cell is not None else 1


def _example(sources: Sources) -> Values:
    """ADCOL's example (Sec. 4.2): 60,000 images of 784 values at 100 clients, an MLP with two
    hidden layers of 200 units, representations of 128 values, a discriminator with one hidden
    layer of 128.

    The printed 68,628 bytes are those of a discriminator with 5 outputs; 100 clients need 100.
    """
    images, clients, d = 60_000, 100, 128
    network = discriminator(784, 10, (200, 200))
    yield "MLP parameters", "value", float(parameter_count(network)), {}
    yield "FedAvg MB per round", "value", 2 * clients * payload_bytes(Network(network)) / 1e6, {}
    for outputs in (clients, 5):
        size = payload_bytes(Network(discriminator(d, outputs, (d,))))
        sent = (4 * images * d + clients * size) / 1e6
        more = {} if outputs == clients else {"alternative": True}
        end = "" if outputs == clients else f", {outputs} outputs"
        yield f"discriminator bytes{end}", "value", float(size), more
        yield f"ADCOL MB per round{end}", "value", sent, more


def _prototypes(sources: Sources) -> Values:
    """How far a client's embeddings lie from their class's prototype, and from its mean over
    clients."""
    figure, more = sources.figure, {"marks": _encoder_marks(sources)}
    columns = ("to own prototype", "to mean of prototypes")
    for client, values in zip(figure.facts["domains"], figure.arrays["distances"], strict=False):
        for column, value in zip(columns, values, strict=True):
            yield client, column, float(value), more


def _inversion(sources: Sources) -> Values:
    """Squared error of the embedding, and likeness to the image behind a prototype: of the image
    the search began with, of that it found, and of another image of the class."""
    figure = sources.figure
    arrays, settings = figure.arrays, figure.facts["settings"]
    searched = f"{settings['steps']:,} steps of Adam at rate {settings['lr']:g}"
    more = {"marks": [searched, *_encoder_marks(sources)]}
    for index, name in enumerate(figure.facts["rows"]):
        for when, value in zip(("before", "after"), arrays["mse"][index], strict=True):
            yield name, f"MSE {when}", float(value), more
        for images, what in (("start", "before"), ("found", "after"), ("another", "of another")):
            ratio, alike = likeness(arrays[images][index], arrays["behind"][index])
            yield name, f"PSNR {what}", ratio if np.isfinite(ratio) else None, more
            yield name, f"SSIM {what}", alike, more


def _encoder_marks(sources: Sources) -> list[str]:
    deviations = federation_of(sources.protocol.data, sources.root).deviations.values()
    return list(dict.fromkeys(clause for clauses in deviations for clause in clauses))


_KINDS: dict[str, Callable[[Sources], Values]] = {
    "counts": _counts,
    "clients": _clients,
    "shares": _shares,
    "distances": _distances,
    "sizes": _sizes,
    "transfers": _transfers,
    "example": _example,
    "prototypes": _prototypes,
    "inversion": _inversion,
}
