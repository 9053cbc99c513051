"""What training costs: rounds, bytes and seconds, until a target accuracy or the best round; and an
estimate of a run's floating point operations, made without training it."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product

import pandas as pd
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedrepro.base.protocol import AllocationSpec, DataSpec, Protocol
from fedrepro.data.domains import DATASETS
from fedrepro.data.federation import ClientData, Federation, Samples
from fedrepro.data.manifest import COLLECTIONS, collection_of
from fedrepro.federated import metrics
from fedrepro.federated.rounds import Training
from fedrepro.methods import create
from fedrepro.models import build_model
from fedrepro.papers import Arm
from fedrepro.quantities.base import Asked, Result, Values, quantity
from fedrepro.records import Record, federation_of

VALUES = 512  # values of an embedding, for both encoders of the paper
ONCE = {"server_epochs": 1, "server_warmup": 0}  # the server's training does not change the bytes


def targets(asked: Asked) -> dict[str, float]:
    """Target accuracy by column, printed or of our own runs; empty if one of these is missing."""
    target = asked.experiment.target
    if target is None:
        return {}
    if target.accuracy is not None:
        return {"avg": target.accuracy}
    scores = {result.label: asked.scores(result) for result in asked.results}
    if not set(target.lowest_of) <= set(scores):
        return {}
    columns = next(iter(scores.values()))
    return {c: min(scores[label][c] for label in target.lowest_of) for c in columns}


def until(asked: Asked) -> Iterator[tuple[Result, str, int | None, float | None]]:
    """Run and column, the round that reaches the target, and one client's traffic until then in the
    paper's own GB; both None if it is not reached."""
    unit, wanted = asked.unit("gigabyte"), targets(asked)
    for result in asked.results if wanted else ():
        curve = result.curve()
        for column, target in wanted.items():
            last = metrics.rounds_to_target(curve[column], target)
            sent = None if last is None else float(curve["bytes"][last]) / unit
            yield result, column, last, sent


@quantity("rounds", "traffic")
def reached(asked: Asked) -> Values:
    """Rounds, or one client's traffic, to the target."""
    for result, column, last, sent in until(asked):
        yield result.label, column, last if asked.experiment.kind == "rounds" else sent


@quantity("pace")
def pace(asked: Asked) -> Values:
    """How fast and how steadily the mean accuracy rises. ``rounds``: to the lowest final one of all
    printed rows (the rule of ADCOL, Table 2). ``swing``: the mean change from one round to the next
    in points, in the last half of the rounds that all rows have. Nothing if a row is missing, no
    number if one diverged."""
    specs = asked.paper.arm_specs(asked.experiment.id)
    printed = {spec.label for spec in specs if not spec.alternative}
    rows = [one for one in asked.results if one.label in printed]
    lost = printed.intersection(arm.label for arm, _ in asked.diverged)
    if len(rows) + len(lost) < len(printed):
        return
    if lost:
        yield from product([one.label for one in rows], ("rounds", "swing"), [None])
        return
    target = min(asked.scores(one)["avg"] for one in rows)
    means = {one.label: metrics.accuracies(one.record.curve)["avg"] for one in rows}
    common = min(map(len, means.values()))
    for label, mean in means.items():
        yield label, "rounds", metrics.rounds_to_target(mean, target)
        yield label, "swing", float(mean.iloc[common // 2 : common].diff().abs().mean())


@quantity("speedup", per_arm=False)
def speedup(asked: Asked) -> Values:
    """Ratios of traffic: the printed row "A vs B" is B's traffic divided by A's."""
    spent = {(result.label, column): sent for result, column, _, sent in until(asked)}
    for row, column in product(asked.table.rows, targets(asked)):
        names = [(name, column) for name in row.split(" vs ")]
        if spent.keys() >= set(names):
            ours, theirs = (spent[name] for name in names)
            yield row, column, theirs / ours if ours and theirs else None


@quantity("sampling", whole=100.0)
def sampling(asked: Asked) -> Values:
    """Accuracy, and rounds and bytes to the target."""
    for result, column, last, sent in until(asked):
        yield result.label, "accuracy", asked.scores(result)[column]
        yield result.label, "rounds", last
        yield result.label, "size_GB", sent


@quantity("seconds")
def seconds(asked: Asked) -> Values:
    """Training time without testing, as a ratio to the reference row if there is one: of a round,
    as rows may differ in rounds; or up to the reported round, if validation selects it. No ratio
    of two machines."""
    spent, devices = {}, {}
    for result in asked.results:
        curve = result.record.curve
        rounds = curve["round"].max()
        if asked.paper.rule == "validation":
            rounds, curve = 1, curve[curve["round"] <= max(1, metrics.best_round(curve))]
        by_phase = metrics.seconds(curve).drop("evaluate", errors="ignore")
        spent[result.label] = float(by_phase.sum()) / rounds
        devices[result.label] = result.record.environment["device"]
    reference = asked.experiment.relative_to
    base = spent.get(reference) if reference else 1.0
    first, *others = asked.table.columns
    column = asked.column if others else first
    for label, value in spent.items():
        known = base and (not reference or devices[label] == devices[reference])
        yield label, column, value / base if known else None


@quantity("communication")
def communication(asked: Asked) -> Values:
    """The traffic of our runs, up to the best round."""
    for result in asked.results:
        sent = metrics.traffic(result.record.curve)
        best = metrics.best_round(result.record.curve)
        size = float(sent.loc[:best].to_numpy().sum()) if sent.size else 0.0
        yield result.label, asked.column, size / asked.unit("megabyte")


@quantity("transfers", counted=True)
def transfers(asked: Asked) -> Values:
    """The traffic in the printed rounds, at the paper's sizes. The experiment's `rows` name the
    table with the arms and rounds. Messages are counted on random embeddings, so no encoder is
    needed: in MPFT's only round, else in the second, as in the first there are no prototypes. Of
    the other data sets in `rows` no image is read, so arms that send more for more images are left
    out there."""
    for dataset, table in asked.experiment.rows.items():
        printed, read = asked.paper.table(table), dataset == asked.dataset
        spec = asked.paper.protocol(dataset, asked.protocol.scale).data
        data = asked.protocol.data.model_copy(update={"encoder": None})
        federation = federation_of(data, asked.root) if read else one_each(spec)
        column = asked.paper.column(asked.table.id, dataset)
        for arm in asked.paper.arms(table, dataset):
            by_images = arm.fields.get("prototypes") in ("cluster", "random")
            if arm.alternative or (by_images and not read):
                continue
            cell = printed.cell(arm.label, "rounds")
            rounds = (cell.value if cell is not None else None) or 0.0
            sent = rounds * a_round(arm, federation) / asked.unit("megabyte")
            said = [] if read else ["counted without the images"]
            more = {"dataset": dataset, "caveats": said}
            yield arm.label, column, round(sent, asked.digits(arm.label, column)), more


def a_round(arm: Arm, federation: Federation) -> float:
    """An arm's bytes in its last round of at most two; drawn images count as k-means centres."""
    fields = dict(arm.fields)
    if arm.method == "MPFT":
        drawn = {"prototypes": "random"} if fields.get("prototypes") == "cluster" else {}
        fields |= {**ONCE, **drawn}
    run = Training(create(arm.method, **fields), arm.protocol, embedded(federation), 0)
    for _ in range(min(2, arm.protocol.rounds)):
        run.one_round()
    sent = metrics.traffic(run.curve()).sum(axis=1).to_list()
    return sent[-1] if sent else 0.0


def one_each(data: DataSpec) -> Federation:
    """One image of every class for each client, as the manifest has them: no file is read."""
    domains = DATASETS[data.dataset]
    classes = collection_of(domains[0]).classes_of(domains[0])
    own = Samples(torch.zeros(len(classes), 1), torch.arange(len(classes)))
    clients = tuple(ClientData(domain, domain, own, None) for domain in domains)
    return Federation(data.dataset, 1, classes, domains, clients, dict.fromkeys(domains, own))


def embedded(federation: Federation) -> Federation:
    """The same clients with random rows instead of images; two test images per domain."""
    stream = torch.Generator().manual_seed(0)

    def rows(samples: Samples, most: int | None = None) -> Samples:
        labels = samples.labels[:most]
        return Samples(torch.rand(len(labels), VALUES, generator=stream), labels)

    clients = tuple(
        replace(c, train=rows(c.train), validation=c.validation and rows(c.validation, 2))
        for c in federation.clients
    )
    tests = {name: rows(samples, 2) for name, samples in federation.tests.items()}
    return replace(federation, size=VALUES, clients=clients, tests=tests, texts={})


# The operations of a run.


def pflop(protocol: Protocol, images: int, classes: int, size: int) -> float:
    """An estimate of a run's 1e15 floating point operations: three forward passes of the protocol's
    network for each of the clients' images and epochs, without tests, the server's and a method's
    extra work, and the trials of a tuned setting. size: as in `Federation`."""
    p = protocol
    passes = 3 * images * p.participation * p.local_epochs * p.rounds
    embedded = p.data.encoder is not None
    return _forward(p.model, json.dumps(p.model_args), classes, size, embedded) * passes / 1e15


def pflop_unread(protocol: Protocol, known: Iterable[Record]) -> float | None:
    """The same for data that nobody has read, where the number of images is stated or a known run
    divides the same images. None: it is not known, or the images are embedded."""
    return _of_images(protocol, _images(protocol.data, known))


def pflop_done(record: Record) -> float | None:
    """The same of a finished run; None if its images are embedded."""
    counts = pd.DataFrame(record.data["counts"])
    return _of_images(record.protocol, int(counts.images[counts.split == "train"].sum()))


def core_hours(record: Record) -> float | None:
    """Hours of one core that a finished run took; None if it used a GPU."""
    facts = record.environment
    on_gpu = any(one.get("driver") is not None for one in (facts, *facts.get("before", ())))
    seconds = record.curve.value[record.curve.measure == "seconds"]
    return None if on_gpu else float(seconds.sum()) / 3600


def _of_images(protocol: Protocol, images: int | None) -> float | None:
    data, domains = protocol.data, DATASETS.get(protocol.data.dataset, ())
    listed = (c.classes_of(d) for d in domains for c in COLLECTIONS.values() if d in c.domains)
    classes = next(listed, None)
    if images is None or classes is None or data.encoder is not None:
        return None
    return pflop(protocol, images, len(classes), data.size)


def _images(data: DataSpec, known: Iterable[Record]) -> int | None:
    """The number of all clients' training images: as stated, as in the official files, or as in a
    known run, which may have another share of the same images."""
    allocation, domains = data.allocation, DATASETS.get(data.dataset, ())
    clients, each = allocation.clients or dict.fromkeys(domains, 1), allocation.per_client
    stated = each if isinstance(each, dict) else dict.fromkeys(clients, each)
    if all(isinstance(stated.get(domain), int) for domain in clients):
        return sum(int(stated[domain]) * number for domain, number in clients.items())
    if allocation.rule == "dirichlet" and data.split == "official":
        totals = [collection_of(domain).sources[0].totals for domain in domains]
        share = each if isinstance(each, float) else 1.0  # of each client's images
        return round(share * sum(total[0][0] for total in totals)) if all(totals) else None
    for record in known:
        other = record.protocol.data
        same = other.dataset, other.split, other.validation
        if same != (data.dataset, data.split, data.validation):
            continue
        if (times := _times(allocation, other.allocation)) is not None:
            counts = pd.DataFrame(record.data["counts"]).query("split == 'train'")
            held = counts.groupby(["domain", "client"]).images.sum().groupby("domain").mean()
            if set(clients) <= set(held.index):
                total = sum(held[domain] * number for domain, number in clients.items())
                return round(float(total) * times)
    return None


def _times(one: AllocationSpec, other: AllocationSpec) -> float | None:
    """How many times another's images a client has; None if that cannot be told."""
    if one.per_client == other.per_client:
        return 1.0
    own, theirs = (
        1.0 if spec.per_client == "all" and set(spec.clients.values()) <= {1} else spec.per_client
        for spec in (one, other)
    )
    if isinstance(own, float) and isinstance(theirs, float):
        return own / theirs
    return None


@lru_cache
def _forward(model: str, given: str, classes: int, size: int, embedded: bool) -> float:
    """Operations of one image's forward pass."""
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        network = build_model(model, classes, size, **json.loads(given)).eval()
        network(torch.zeros((1, size) if embedded else (1, 3, size, size)))  # shapes, no numbers
    return float(counter.get_total_flops())
