"""MPFT, Table 3: the bytes our methods send with CLIP's sizes are the printed megabytes."""

from dataclasses import replace

import pytest
import torch

from fedrepro import papers
from fedrepro.data.federation import ClientData, Federation, Samples
from fedrepro.quantities import costs
from fedrepro.quantities.base import Asked, cells

MPFT = papers.load("mpft")
MEGABYTE = float(MPFT.reporting["megabyte_bytes"].value)
# experiment: data set, column of Table 3, clients, classes
SIZES = {
    "table-1-subset50": ("domainnet-50", "Subset-50", 6, 50),
    "table-1-subset100": ("domainnet-100", "Subset-100", 6, 100),
    "table-1-subset150": ("domainnet-150", "Subset-150", 6, 150),
    "table-1-pacs": ("pacs", "PACS", 4, 7),
}
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
def test_counted_bytes_are_the_printed_megabytes(experiment: str, label: str) -> None:
    rounds = MPFT.table(experiment).cell(label, "rounds")
    printed = MPFT.table("table-3-communication").cell(label, SIZES[experiment][1])
    assert rounds is not None and rounds.value and printed is not None
    digits = len(printed.printed.partition(".")[2])
    assert f"{rounds.value * a_round(experiment, label):.{digits}f}" == printed.printed


def test_the_counted_table_is_the_printed_one(monkeypatch: pytest.MonkeyPatch) -> None:
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
