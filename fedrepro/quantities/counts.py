"""How many images and clients there are, and which classes they hold."""

from __future__ import annotations

from fedrepro.data.domains import DATASETS, DomainArrays, load_domain
from fedrepro.data.splits import make_split
from fedrepro.quantities.base import Asked, Values, quantity


def sources(asked: Asked) -> dict[str, DomainArrays]:
    """The domains of the data set, whole."""
    size = asked.protocol.data.size
    return {name: load_domain(name, size, asked.root) for name in DATASETS[asked.dataset]}


def row(asked: Asked, domain: str | None = None) -> str:
    """The printed row of the data set, or of one of its domains; our own names where the paper has
    none."""
    start = asked.experiment.rows.get(asked.dataset, asked.dataset)
    if domain is None:
        return start
    names = (f"{start} / {name}" for name in asked.paper.columns.get(domain, ()))
    return next((name for name in names if name in asked.table.methods), f"{start} / {domain}")


@quantity("counts", counted=True)
def images(asked: Asked) -> Values:
    """Training and test images of every source, before clients get theirs."""
    data = asked.protocol.data
    for name, arrays in sources(asked).items():
        split = make_split(arrays, data.split, data.split_seed, data.test_share)
        more = {"standin": arrays.standin, "marks": list(arrays.deviations)}
        for column, part in (("train", split.train), ("test", split.test)):
            yield row(asked, name), column, float(len(part)), more


@quantity("clients", counted=True)
def clients(asked: Asked) -> Values:
    """Clients of each domain, in the one printed row."""
    federation = asked.federation
    owners = [client.domain for client in federation.clients]
    for domain in federation.domains:
        marks = list(federation.deviations.get(domain, ()))
        more = {"standin": domain in federation.standins, "marks": marks}
        yield asked.table.methods[0], domain, float(owners.count(domain)), more


@quantity("shares")
def shares(asked: Asked) -> Values:
    """Percent of each client's training images that are of a class."""
    counts = asked.federation.counts()
    for client, rows in counts[counts.split == "train"].groupby("client", sort=False):
        for name, number in zip(rows["class"], rows.images, strict=True):
            yield str(client), str(name), 100 * float(number) / float(rows.images.sum())
