"""How training images become clients' images: the rules of ``AllocationSpec``, with a hash."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedrepro.data.splits import Indices, Split, domain_key, update_with
from fedrepro.errors import FedReproError
from fedrepro.protocol import AllocationSpec
from fedrepro.rng import numpy_stream

POOLED = "pooled"  # the one domain that several domains become under label skew
_SMALLEST_CLIENT = 2  # BatchNorm cannot train on fewer
_DIRICHLET_TRIES = 100

# rounds of the allocation stream, one per kind of draw, so that none shifts another
_ORDER, _VALIDATION, _SKEW, _MIX, _CUT = range(5)

Pieces = tuple[tuple[str, Indices], ...]


@dataclass(frozen=True, eq=False)
class ClientShare:
    """One client: the domain it stands for and its training images, piece by piece."""

    name: str
    domain: str
    train: Pieces

    def __len__(self) -> int:
        return sum(len(indices) for _, indices in self.train)


@dataclass(frozen=True, eq=False)
class Allocation:
    """Clients in order, and per source domain the validation images no client holds."""

    clients: tuple[ClientShare, ...]
    validation: dict[str, Indices]
    rule: str

    @property
    def hash(self) -> str:
        """sha256 over the rule, every client's name, domain and indices, and validation."""
        digest = hashlib.sha256(self.rule.encode())
        for client in self.clients:
            digest.update(f"|{client.name}|{client.domain}".encode())
            for domain, indices in client.train:
                digest.update(f"|{domain}|".encode())
                update_with(digest, indices)
        for domain in sorted(self.validation):
            digest.update(f"|validation|{domain}|".encode())
            update_with(digest, self.validation[domain])
        return digest.hexdigest()


def make_allocation(
    splits: Mapping[str, Split],
    labels: Mapping[str, NDArray[np.int64]],
    spec: AllocationSpec,
    seed: int,
    validation: int,
) -> Allocation:
    """Give the training images of all splits to clients, no image twice.

    labels: per domain, of all its images. validation: at most this many images per domain, drawn
    from the training images that no client holds (none where nothing is left).

    Raises:
        FedReproError: a specification that cannot be met, naming what is there.
    """
    rules = {"domain": _per_domain, "table": _table, "dirichlet": _dirichlet, "mixed": _mixed}
    clients = rules[spec.rule](_Allocator(splits, labels, spec, seed))
    for client in clients:
        if len(client) < _SMALLEST_CLIENT:
            raise FedReproError(
                f"allocation leaves client {client.name} {len(client)} image(s); every client "
                f"needs {_SMALLEST_CLIENT} or more: raise per_client or lower the clients"
            )
    rest = _validation(splits, clients, seed, validation)
    return Allocation(tuple(clients), rest, spec.model_dump_json())


@dataclass(frozen=True)
class _Allocator:
    """The inputs of a rule."""

    splits: Mapping[str, Split]
    labels: Mapping[str, NDArray[np.int64]]
    spec: AllocationSpec
    seed: int
    orders: dict[str, Indices] = field(init=False)

    def __post_init__(self) -> None:
        orders = {}
        for name, split in self.splits.items():
            rng = numpy_stream(self.seed, "allocation", domain_key(name), _ORDER)
            random = self.spec.draw == "random"
            orders[name] = rng.permutation(split.train) if random else split.train
        object.__setattr__(self, "orders", orders)

    def chunks(self, clients: Mapping[str, int]) -> dict[str, list[Indices]]:
        """Each domain's images, in order, for so many clients of it, sized by ``per_client``."""
        per = self.spec.per_client
        parts = {name: _cut(name, self.orders[name], count, per) for name, count in clients.items()}
        if per == "smallest":
            smallest = min(len(chunk) for chunks in parts.values() for chunk in chunks)
            parts = {name: [c[:smallest] for c in chunks] for name, chunks in parts.items()}
        return parts


def _cut(name: str, order: Indices, clients: int, per: int | float | str) -> list[Indices]:
    if isinstance(per, str):  # all, smallest: even parts, the first ones longer by at most one
        return np.array_split(order, clients)
    size = _amount(per, len(order))
    if size * clients > len(order) or (isinstance(per, float) and per * clients > 1 + 1e-9):
        wanted = f"{clients} client(s) of {per} each" if isinstance(per, float) else size * clients
        raise FedReproError(
            f"allocation wants {wanted} training images of {name}, which has {len(order)}; "
            "lower per_client or the number of clients"
        )
    return [order[i * size : (i + 1) * size] for i in range(clients)]


def _amount(per: int | float, available: int) -> int:
    """A count as it is; a fraction rounded down, as every script of the papers does."""
    if isinstance(per, float):
        if not 0 < per <= 1:
            raise FedReproError(
                f"per_client = {per}: a fraction lies above 0 and up to 1; a count has no point"
            )
        return math.floor(per * available + 1e-9)
    if per < 1:
        raise FedReproError(f"per_client = {per}: give each client at least 1 image")
    return per


def _per_domain(given: _Allocator) -> list[ClientShare]:
    chunks = given.chunks(dict.fromkeys(given.splits, 1))
    return [ClientShare(name, name, ((name, chunk),)) for name, (chunk,) in chunks.items()]


def _table(given: _Allocator) -> list[ClientShare]:
    table = given.spec.clients
    for name, count in table.items():
        if name not in given.splits:
            raise FedReproError(
                f"allocation table names {name!r}; the domains are {', '.join(given.splits)}"
            )
        if count < 0:
            raise FedReproError(f"allocation table: {name} = {count}; a number of clients is >= 0")
    wanted = {name: table[name] for name in given.splits if table.get(name)}
    if not wanted:
        raise FedReproError("allocation rule table has no client; set allocation.clients")
    shares = []
    for name, chunks in given.chunks(wanted).items():
        for i, chunk in enumerate(chunks, start=1):
            label = name if len(chunks) == 1 else f"{name}-{i}"
            shares.append(ClientShare(label, name, ((name, chunk),)))
    return shares


def _mixed(given: _Allocator) -> list[ClientShare]:
    """Client i hands a random share of its images to client i - 1 and gets client i + 1's."""
    ratio, names = given.spec.ratio, list(given.splits)
    if ratio is None:
        raise FedReproError("allocation rule mixed needs a share; set allocation.ratio")
    if len(names) < 2:
        raise FedReproError("allocation rule mixed needs two domains or more; use rule domain")
    kept, given_away = {}, {}
    for name, (chunk,) in given.chunks(dict.fromkeys(names, 1)).items():
        rng = numpy_stream(given.seed, "allocation", domain_key(name), _MIX)
        away = math.floor(ratio * len(chunk) + 1e-9)
        chosen = np.zeros(len(chunk), dtype=bool)
        chosen[rng.permutation(len(chunk))[:away]] = True
        kept[name], given_away[name] = chunk[~chosen], chunk[chosen]
    following = dict(zip(names, names[1:] + names[:1], strict=True))
    return [
        ClientShare(name, name, ((name, kept[name]), (other, given_away[other])))
        for name, other in following.items()
    ]


def _dirichlet(given: _Allocator) -> list[ClientShare]:
    """Label skew: for each class k, p_k ~ Dir_N(alpha), client j gets the share p_kj (ADCOL B.8).

    All domains are pooled first. A draw that leaves a client fewer than two images is repeated.
    ``per_client`` then cuts every client's own images: to a fraction of them, a count, or the
    smallest client's number.
    """
    spec, names = given.spec, list(given.splits)
    if spec.alpha is None or spec.count is None:
        raise FedReproError("allocation rule dirichlet needs allocation.alpha and allocation.count")
    source = np.concatenate([np.full(len(given.orders[n]), i) for i, n in enumerate(names)])
    index = np.concatenate([given.orders[n] for n in names])
    label = np.concatenate([np.asarray(given.labels[n])[given.orders[n]] for n in names])
    rng = numpy_stream(given.seed, "allocation", round=_SKEW)
    for _ in range(_DIRICHLET_TRIES):
        owners = _skewed_owners(label, spec.count, spec.alpha, rng)
        if np.bincount(owners, minlength=spec.count).min() >= _SMALLEST_CLIENT:
            break
    else:
        raise FedReproError(
            f"dirichlet alpha = {spec.alpha} leaves one of {spec.count} clients without images in "
            f"{_DIRICHLET_TRIES} draws; raise alpha or lower count"
        )
    members = _cut_members([np.flatnonzero(owners == j) for j in range(spec.count)], given)
    domain = names[0] if len(names) == 1 else POOLED
    shares = []
    for j, own in enumerate(members, start=1):
        pieces = ((n, index[own[source[own] == i]]) for i, n in enumerate(names))
        shares.append(ClientShare(f"{domain}-{j}", domain, tuple(p for p in pieces if len(p[1]))))
    return shares


def _skewed_owners(
    label: NDArray[np.int64], clients: int, alpha: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    owners = np.empty(len(label), dtype=np.int64)
    for k in np.unique(label):
        members = rng.permutation(np.flatnonzero(label == k))
        shares = rng.dirichlet(np.full(clients, alpha))
        borders = np.floor(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for j, part in enumerate(np.split(members, borders)):
            owners[part] = j
    return owners


def _cut_members(members: list[Indices], given: _Allocator) -> list[Indices]:
    per = given.spec.per_client
    if per == "all":
        return members
    smallest = min(len(own) for own in members)
    cut = []
    for j, own in enumerate(members):
        size = smallest if isinstance(per, str) else _amount(per, len(own))
        if size > len(own):
            raise FedReproError(
                f"allocation wants {size} images per client; client {j + 1} drew {len(own)}: "
                "lower per_client or raise alpha"
            )
        rng = numpy_stream(given.seed, "allocation", j, _CUT)
        cut.append(np.sort(rng.permutation(own)[:size]))
    return cut


def _validation(
    splits: Mapping[str, Split], clients: list[ClientShare], seed: int, limit: int
) -> dict[str, Indices]:
    rest = {}
    for name, split in splits.items():
        held = [i for client in clients for domain, i in client.train if domain == name]
        free = np.setdiff1d(split.train, np.concatenate(held)) if held else np.sort(split.train)
        rng = numpy_stream(seed, "allocation", domain_key(name), _VALIDATION)
        chosen = np.sort(rng.permutation(free)[:limit])
        if len(chosen):
            rest[name] = chosen
    return rest
