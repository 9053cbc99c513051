"""Numbers that need no training: sizes, distances, messages; MPFT's Table 3 with CLIP's sizes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import linalg

from fedrepro import papers
from fedrepro.data.federation import ClientData, Federation, Samples
from fedrepro.quantities import base, costs, counted
from fedrepro.quantities.base import Asked, cells, study
from fedrepro.quantities.costs import core_hours, pflop, pflop_done, pflop_unread
from fedrepro.quantities.counted import frechet
from fedrepro.records import Record, federation_of
from fedrepro.report.results import recorded


def gaussian(n: int, d: int, seed: int, shift: float = 0.0, scale: float = 1.0) -> np.ndarray:
    return shift + scale * np.random.default_rng(seed).normal(size=(n, d))


def test_as_with_the_square_root_of_the_product():
    mix = np.random.default_rng(3).normal(size=(5, 5))
    x, y = gaussian(60, 5, 0) @ mix, gaussian(90, 5, 1, shift=0.4)
    s, t = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    difference = x.mean(0) - y.mean(0)
    expected = difference @ difference + np.trace(s + t - 2 * linalg.sqrtm(s @ t).real)
    assert frechet(x, y) == pytest.approx(expected)
    few = frechet(gaussian(4, 30, 0), gaussian(5, 30, 1))  # fewer images than features
    assert np.isfinite(few) and few > 0


def found(experiment, dataset="minidigits", scale="smoke", paper="adcol", **more):
    rows = study(paper, dataset, scale, **more).cells(experiment)
    return {(row["method"], row["column"]): row for row in rows}


def test_the_example_of_message_sizes():
    rows = found("prose-communication-example")
    value = {method: row["value"] for (method, _), row in rows.items()}
    assert value["MLP parameters"] == 199_210
    assert value["FedAvg MB per round"] == pytest.approx(159.4, abs=0.05)
    assert value["discriminator bytes"] == 4 * (128 * 128 + 128 + 100 * 129)
    assert value["discriminator bytes, 5 outputs"] == 68_628  # what the paper prints
    assert value["ADCOL MB per round, 5 outputs"] == pytest.approx(37.6, abs=0.05)
    assert rows["ADCOL MB per round, 5 outputs", "value"]["alternative"]


def test_sizes_and_distances_of_sources_are_those_before_clients_get_theirs():
    whole, *each = found("table-3-fid").values()
    assert whole["value"] == pytest.approx(np.mean([row["value"] for row in each]))
    assert whole["standin"] and "Inception" in whole["caveats"][0]
    rows = found("table-3-sizes")
    assert rows["minidigits / mini-scanned", "train"]["value"] == 1437
    assert rows["minidigits / mini-scanned", "test"]["value"] == 360


def test_what_counts_a_subset_says_so_and_the_size_of_a_network_does_not(monkeypatch):
    whole, real = counted.sources, base.federation_of

    def cut(asked):
        return {k: replace(v, subset=k == "mini-font") for k, v in whole(asked).items()}

    monkeypatch.setattr(counted, "sources", cut)
    lesser = {"subsets": ("mini-font",)}
    monkeypatch.setattr(base, "federation_of", lambda *where: replace(real(*where), **lesser))
    sizes = found("table-3-sizes")
    assert {m for (m, _), row in sizes.items() if row["subset"]} == {"minidigits / mini-font"}
    messages = found("prose-cost", paper="fedpall")
    lesser_rows = {method for (method, _), row in messages.items() if row["subset"]}
    up = "bytes up in a round, relative to FedAvg (percent)"
    assert lesser_rows == {"images per client, minidigits", up}


def test_the_clients_of_each_domain_are_the_printed_ones(real_data, tmp_path):
    given = {"data_root": real_data, "runs_dir": tmp_path, "paper": "i2pfl"}
    rows = found("table-2-pacs", "pacs", "paper", **given)
    printed = {"photo": 3, "art_painting": 2, "cartoon": 1, "sketch": 4}
    assert {domain: row["value"] for (_, domain), row in rows.items()} == printed
    assert {method for method, _ in rows} == {"clients"} and not list(tmp_path.iterdir())
    rows = found("table-2", "digits4-standin", "paper", **given)
    assert [domain for (_, domain), row in rows.items() if row["standin"]] == ["syn-standin"]


MPFT = papers.load("mpft")
MEGABYTE = float(MPFT.reporting["megabyte_bytes"].value)
# experiment: data set, column of Table 3, clients, classes
SIZES = {f"table-1-subset{n}": (f"domainnet-{n}", f"Subset-{n}", 6, n) for n in (50, 100, 150)}
ARMS = ("FedAvg", "FedProx", "Ditto", "MOON", "FedProto", "DBE", "MPFT (Average)")


def made(clients: int, classes: int) -> Federation:
    """One training image of each class for each client, and one to test on."""

    def samples(n: int) -> Samples:
        return Samples(torch.zeros(n, 3), torch.arange(n))

    names = tuple(f"domain{i}" for i in range(clients))
    own = tuple(ClientData(name, name, samples(classes), samples(2)) for name in names)
    tests = {name: samples(2) for name in names}
    return Federation("made", 3, tuple(str(k) for k in range(classes)), names, own, tests)


def a_round(experiment: str, label: str) -> float:
    """Megabytes of a round as the paper counts them, all clients together."""
    dataset, _, *size = SIZES[experiment]
    arm = next(a for a in MPFT.arms(experiment, dataset) if a.label == label)
    return costs.a_round(arm, made(*size)) / MEGABYTE


@pytest.mark.parametrize("label", ARMS)
@pytest.mark.parametrize("experiment", SIZES)
def test_counted_bytes_are_the_printed_megabytes(experiment, label):
    rounds = MPFT.table(experiment).cell(label, "rounds")
    printed = MPFT.table("table-3-communication").cell(label, SIZES[experiment][1])
    assert rounds is not None and rounds.value and printed is not None
    digits = len(printed.printed.partition(".")[2])
    assert f"{rounds.value * a_round(experiment, label):.{digits}f}" == printed.printed


def test_the_counted_table_is_the_printed_one(monkeypatch):
    """PACS from the domains' real sizes: 0.56 of 9,991 images, cut by class, in the printed rounds
    at 512 values; rates 0.1 and 0.3 send ceil(rate n_k) rows a class and client."""
    federation, clients = made(4, 7), []
    for client, n in zip(federation.clients, (1670, 2048, 2344, 3929), strict=True):
        labels = torch.arange(round(0.56 * n)) % 7
        clients.append(replace(client, train=Samples(torch.zeros(len(labels), 3), labels)))
    whole = replace(federation, clients=tuple(clients))
    monkeypatch.setattr(costs, "federation_of", lambda *_: whole)
    rows = cells(Asked(MPFT, MPFT.experiment("table-3-traffic"), MPFT.protocol("pacs")))
    table = MPFT.table("table-3-communication")
    assert len(rows) == 12 and all(row["counted"] for row in rows)
    for row in rows:
        cell = table.cell(row["method"], "PACS")
        assert cell is not None and row["value"] == cell.value, row["method"]


def test_operations_are_three_passes_for_each_image_and_epoch():
    asked = study("mpft", "minidigits", "smoke")
    arm = next(arm for arm in asked.arms("table-1-pacs") if arm.label == "FedAvg")
    data = federation_of(arm.protocol.data)
    images, size, classes = sum(len(c.train) for c in data.clients), data.size, len(data.classes)
    adapter = 2 * (2 * size * (size // 4) + size * classes)
    rounds = arm.protocol.rounds * arm.protocol.local_epochs
    found = pflop(arm.protocol, images, classes, size)
    assert found == pytest.approx(3 * adapter * images * rounds / 1e15)
    assert pflop_unread(arm.protocol, []) is None  # embedded


def _runs(paper: str, experiment: str) -> list[Record]:
    return [result.record for _, _, result in recorded(paper).runs(experiment)]


@pytest.mark.parametrize(
    ("paper", "experiment", "known"),
    [
        ("adcol", "table-4", None),  # 125 images for every client
        ("i2pfl", "table-8-digits", None),  # a stated number for every domain
        ("i2pfl", "table-8-office10", "table-3-office10"),  # a share, and other numbers of clients
    ],
)
def test_a_run_is_estimated_before_it_is_made(paper, experiment, known):
    others = _runs(paper, known) if known else []
    first, *_ = runs = _runs(paper, experiment)
    assert all((core_hours(r) is None) == ("NVIDIA" in r.environment["device"]) for r in runs)
    assert pflop_unread(first.protocol, others) == pytest.approx(pflop_done(first), rel=0.01)
    assert (pflop_unread(first.protocol, []) is None) == bool(known)


def test_all_images_are_estimated_from_a_run_on_a_quarter_of_them():
    (run, *_) = runs = _runs("fedpall", "table-1-office10")
    assert run.protocol.data.allocation.per_client == 0.25
    whole = run.protocol.changed(**{"data.allocation.per_client": "all"})
    assert pflop_unread(whole, runs) == pytest.approx(4 * pflop_done(run), rel=0.01)


def test_label_skew_divides_all_images_of_the_release():
    (arm,) = [a for a in papers.load("adcol").arms("table-12") if a.label == "FedAvg"]
    assert pflop_unread(arm.protocol, []) == pflop(arm.protocol, 50_000, 10, 32)
