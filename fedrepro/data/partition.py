"""How training images become clients' images: the rules of ``AllocationSpec``, with a hash."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedrepro.base.errors import FedReproError
from fedrepro.base.protocol import AllocationSpec
from fedrepro.base.rng import numpy_stream
from fedrepro.data.dealing import every_class, parts, skewed_owners
from fedrepro.data.splits import Indices, Split, divide, domain_key, update_with

POOLED = "pooled"  # the one domain that several domains become under label skew
_SMALLEST_CLIENT = 2  # BatchNorm cannot train on fewer
_DIRICHLET_TRIES = 100

# rounds of the allocation stream, one per kind of draw, so that none shifts another
_ORDER, _VALIDATION, _SKEW, _MIX, _CUT, _EVERY_CLASS, _MIX_TEST, _MIX_VALIDATION = range(8)

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
    """Clients in order; per domain the validation images no client holds (absent where there are
    none) and the test images."""

    clients: tuple[ClientShare, ...]
    validation: dict[str, Pieces]
    tests: dict[str, Pieces]
    rule: str

    @property
    def hash(self) -> str:
        """sha256 over the rule, every client's name, domain and indices, and validation. Tests
        count where they are mixed; a domain's own are hashed with its split."""
        digest = hashlib.sha256(self.rule.encode())
        for client in self.clients:
            digest.update(f"|{client.name}|{client.domain}".encode())
            for domain, indices in client.train:
                digest.update(f"|{domain}|".encode())
                update_with(digest, indices)
        mixed = {d: p for d, p in self.tests.items() if [source for source, _ in p] != [d]}
        for what, given in (("validation", self.validation), ("test", mixed)):
            for domain in sorted(given):
                digest.update(f"|{what}|{domain}|".encode())
                for source, indices in given[domain]:
                    digest.update(b"" if source == domain else f"|{source}|".encode())
                    update_with(digest, indices)
        return digest.hexdigest()

    def used(self, domain: str) -> Indices:
        """The images of a source domain that anyone trains, validates or tests on, ascending."""
        all_of = (c.train for c in self.clients), self.validation.values(), self.tests.values()
        pieces = [piece for some in all_of for given in some for piece in given]
        used = [indices for source, indices in pieces if source == domain]
        return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *used]))


def make_allocation(
    splits: Mapping[str, Split],
    labels: Mapping[str, NDArray[np.int64]],
    spec: AllocationSpec,
    seed: int,
    validation: int | float,
    shared: Mapping[str, Indices] | None = None,
) -> Allocation:
    """Give the training images of all splits to clients, no image twice but under ``cut_tests``.

    labels: per domain, of all its images. validation: a count, at most so many images per domain,
    drawn from the training images that no client holds (none where nothing is left); or a share
    of the training images, by class, set aside before clients get theirs. shared: of domains with
    images of the same things, which thing each of its images shows, for ``disjoint``.

    Raises:
        FedReproError: a specification that cannot be met, naming what is there.
    """
    if spec.cut_tests:
        return _cut(splits, labels, spec, seed, validation)
    aside = _set_aside(splits, labels, seed, validation)
    rules = {"domain": _per_domain, "table": _table, "dirichlet": _dirichlet, "mixed": _mixed}
    given = _Allocator(splits, labels, spec, seed, aside)
    clients = rules[spec.rule](given)
    tests = {name: split.test for name, split in splits.items()}
    if spec.disjoint:
        clients = [_untested(client, tests, shared or {}) for client in clients]
    for client in clients:
        if len(client) < _SMALLEST_CLIENT:
            raise FedReproError(
                f"allocation leaves client {client.name} {len(client)} image(s); every client "
                f"needs {_SMALLEST_CLIENT} or more: raise per_client or lower the clients"
            )
    held_out = aside or _left_over(splits, clients, seed, int(validation))
    if spec.rule == "mixed":
        mixed = _mix(given, held_out, _MIX_VALIDATION)
        some = {name: pieces for name, pieces in mixed.items() if any(len(i) for _, i in pieces)}
        after = some, _mix(given, tests, _MIX_TEST)
    else:
        after = _alone(held_out), _alone(tests)
    return Allocation(tuple(clients), *after, spec.model_dump_json())


def _untested(
    client: ClientShare, tests: Mapping[str, Indices], shared: Mapping[str, Indices]
) -> ClientShare:
    """A client less the training images of what a test image of another domain shows."""
    kept = []
    for domain, indices in client.train:
        if domain in shared:
            tested = [shared[other][tests[other]] for other in shared if other != domain]
            indices = indices[~np.isin(shared[domain][indices], np.concatenate(tested))]
        kept.append((domain, indices))
    return replace(client, train=tuple(kept))


def _alone(parts: Mapping[str, Indices]) -> dict[str, Pieces]:
    return {name: ((name, indices),) for name, indices in parts.items()}


def _set_aside(
    splits: Mapping[str, Split],
    labels: Mapping[str, NDArray[np.int64]],
    seed: int,
    validation: int | float,
) -> dict[str, Indices]:
    """The share of each domain's training images that is kept for validation, if it is a share."""
    if not isinstance(validation, float) or validation == 0:
        return {}
    if not 0 < validation < 1:
        raise FedReproError(
            f"validation = {validation}: a share lies between 0 and 1; a count has no point"
        )
    return {
        name: np.sort(divide(name, split.train, labels[name], validation, seed)[1])
        for name, split in splits.items()
    }


@dataclass(frozen=True)
class _Allocator:
    """The inputs of a rule. aside: training images no client may get. orders: the others, in the
    order they are given out."""

    splits: Mapping[str, Split]
    labels: Mapping[str, NDArray[np.int64]]
    spec: AllocationSpec
    seed: int
    aside: Mapping[str, Indices]
    orders: dict[str, Indices] = field(init=False)

    def __post_init__(self) -> None:
        orders = {}
        for name, split in self.splits.items():
            free = split.train
            if name in self.aside:
                free = free[~np.isin(free, self.aside[name])]
            random = self.spec.draw == "random"
            orders[name] = self.stream(name, _ORDER).permutation(free) if random else free
        object.__setattr__(self, "orders", orders)

    def stream(self, name: str, round: int) -> np.random.Generator:
        """A domain's own draws of one kind."""
        return numpy_stream(self.seed, "allocation", domain_key(name), round)

    def labels_of(self, name: str, indices: Indices) -> NDArray[np.int64]:
        return np.asarray(self.labels[name])[indices]

    def places(self, name: str, indices: Indices) -> list[Indices]:
        """Positions in ``indices`` that are dealt out together: all, or class by class."""
        if not self.spec.by_class:
            return [np.arange(len(indices))]
        label = self.labels_of(name, indices)
        return [np.flatnonzero(label == k) for k in np.unique(label)]

    def chunks(self, clients: Mapping[str, int]) -> dict[str, list[Indices]]:
        """Each domain's images, in order, for so many clients of it, sized by ``per_client``."""
        if self.spec.by_class:
            return {name: self._divided(name, count) for name, count in clients.items()}
        sizes = {name: self._sizes(name, count) for name, count in clients.items()}
        if self.spec.per_client == "smallest":
            smallest = min(size for row in sizes.values() for size in row)
            sizes = {name: [smallest] * len(row) for name, row in sizes.items()}
        return {name: self._runs(name, row) for name, row in sizes.items()}

    def _divided(self, name: str, clients: int) -> list[Indices]:
        if self.spec.per_client != "all":
            raise FedReproError("by_class divides whole domains; set per_client to all")
        order = self.orders[name]
        dealt = [np.array_split(order[places], clients) for places in self.places(name, order)]
        return [np.concatenate([parts[i] for parts in dealt]) for i in range(clients)]

    def _sizes(self, name: str, clients: int) -> list[int]:
        per, available = self.spec.per_client, len(self.orders[name])
        if isinstance(per, str):  # all, smallest: even parts, the first ones longer by at most one
            return [available // clients + (i < available % clients) for i in range(clients)]
        if isinstance(per, dict):
            if name not in per:
                raise FedReproError(f"per_client says nothing of {name}; add it")
            per = per[name]
        size = _amount(per, available)
        if self.spec.remainder and size * (clients - 1) < available:
            return [size] * (clients - 1) + [min(size, available - size * (clients - 1))]
        if size * clients > available or (isinstance(per, float) and per * clients > 1 + 1e-9):
            wanted = (
                f"{clients} client(s) of {per} each" if isinstance(per, float) else size * clients
            )
            raise FedReproError(
                f"allocation wants {wanted} training images of {name}, which has {available}; "
                "lower per_client or the number of clients"
            )
        return [size] * clients

    def _runs(self, name: str, sizes: list[int]) -> list[Indices]:
        order, borders = self.orders[name], np.cumsum(sizes)
        if self.spec.every_class:
            owner = np.searchsorted(borders, np.arange(len(order)), side="right")
            label, rng = self.labels_of(name, order), self.stream(name, _EVERY_CLASS)
            order = order[every_class(name, label, owner, len(sizes), rng)]
        return np.split(order, borders)[:-1]


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


def _cut(
    splits: Mapping[str, Split],
    labels: Mapping[str, NDArray[np.int64]],
    spec: AllocationSpec,
    seed: int,
    validation: int | float,
) -> Allocation:
    """Training and test images of each domain in parts, a client and a domain for each."""
    if spec.rule != "table" or not isinstance(validation, float):
        raise FedReproError("cut_tests needs rule table and a share of images for validation")
    clients: list[ClientShare] = []
    held: dict[str, Pieces] = {}
    tests: dict[str, Pieces] = {}
    for domain in (name for name in splits if spec.clients.get(name)):
        split, count = splits[domain], spec.clients[domain]
        train, test = (parts(i, labels[domain], count) for i in (split.train, split.test))
        for number in range(count):
            name = f"{domain}-{number + 1}"
            kept, away = divide(name, train[number], labels[domain], validation, seed)
            clients.append(ClientShare(name, name, ((domain, kept),)))
            held[name], tests[name] = ((domain, np.sort(away)),), ((domain, test[number]),)
    return Allocation(tuple(clients), held, tests, spec.model_dump_json())


def _mixed(given: _Allocator) -> list[ClientShare]:
    """Client i hands a random share of its images to client i - 1 and gets client i + 1's."""
    names = list(given.splits)
    if given.spec.ratio is None:
        raise FedReproError("allocation rule mixed needs a share; set allocation.ratio")
    if len(names) < 2:
        raise FedReproError("allocation rule mixed needs two domains or more; use rule domain")
    chunks = given.chunks(dict.fromkeys(names, 1))
    own = {name: chunk for name, (chunk,) in chunks.items()}
    return [ClientShare(name, name, train) for name, train in _mix(given, own, _MIX).items()]


def _mix(given: _Allocator, parts: Mapping[str, Indices], round: int) -> dict[str, Pieces]:
    """Each domain's images less a random share ``ratio``, and that share of the next domain's."""
    kept, away, names = {}, {}, list(given.splits)
    for name in names:
        part = parts.get(name, np.empty(0, dtype=np.int64))
        rng, chosen = given.stream(name, round), np.zeros(len(part), dtype=bool)
        for places in given.places(name, part):
            count = math.floor((given.spec.ratio or 0.0) * len(places) + 1e-9)
            chosen[rng.permutation(places)[:count]] = True
        kept[name], away[name] = part[~chosen], part[chosen]
    following = dict(zip(names, names[1:] + names[:1], strict=True))
    return {name: ((name, kept[name]), (other, away[other])) for name, other in following.items()}


def _dirichlet(given: _Allocator) -> list[ClientShare]:
    """Label skew: for each class k, p_k ~ Dir_N(alpha), client j gets the share p_kj (ADCOL B.8).

    All domains are pooled first. A draw that leaves a client fewer than two images is repeated.
    ``per_client`` then cuts every client's own images: to a fraction of them, a count, or the
    smallest client's number.
    """
    spec, names = given.spec, list(given.splits)
    if spec.alpha is None or spec.count is None:
        raise FedReproError("allocation rule dirichlet needs allocation.alpha and allocation.count")
    for name in ("by_class", "every_class", "remainder"):
        if getattr(spec, name):
            raise FedReproError(f"allocation rule dirichlet deals by itself; {name} is not for it")
    source = np.concatenate([np.full(len(given.orders[n]), i) for i, n in enumerate(names)])
    index = np.concatenate([given.orders[n] for n in names])
    label = np.concatenate([np.asarray(given.labels[n])[given.orders[n]] for n in names])
    rng = numpy_stream(given.seed, "allocation", round=_SKEW)
    for _ in range(_DIRICHLET_TRIES):
        owners = skewed_owners(label, spec.count, spec.alpha, rng)
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


def _cut_members(members: list[Indices], given: _Allocator) -> list[Indices]:
    per = given.spec.per_client
    if per == "all":
        return members
    if isinstance(per, dict):
        raise FedReproError("allocation rule dirichlet pools the domains; give one per_client")
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


def _left_over(
    splits: Mapping[str, Split], clients: list[ClientShare], seed: int, limit: int
) -> dict[str, Indices]:
    """Up to ``limit`` training images of each domain that no client holds."""
    rest = {}
    for name, split in splits.items():
        held = [i for client in clients for domain, i in client.train if domain == name]
        free = np.setdiff1d(split.train, np.concatenate(held)) if held else np.sort(split.train)
        rng = numpy_stream(seed, "allocation", domain_key(name), _VALIDATION)
        chosen = np.sort(rng.permutation(free)[:limit])
        if len(chosen):
            rest[name] = chosen
    return rest
