"""How training images become clients' images: the rules of ``AllocationSpec``, with a hash."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedrepro.base.errors import FedReproError, need
from fedrepro.base.protocol import AllocationSpec
from fedrepro.base.rng import numpy_stream
from fedrepro.data.pictures import Labels
from fedrepro.data.splits import Indices, Split, digest_of, divide, domain_key, parts

POOLED = "pooled"  # the name of all domains together under label skew
_SMALLEST_CLIENT = 2  # BatchNorm cannot train with fewer
_DIRICHLET_TRIES = 100

# rounds of the allocation stream, one per kind of draw, so that they are independent
_ORDER, _VALIDATION, _SKEW, _MIX, _CUT, _EVERY_CLASS, _MIX_TEST, _MIX_VALIDATION = range(8)

Pieces = tuple[tuple[str, Indices], ...]  # source domains and indices there


@dataclass(frozen=True, eq=False)
class ClientShare:
    """One client: its domain and its training images, in pieces."""

    name: str
    domain: str
    train: Pieces

    def __len__(self) -> int:
        return sum(len(indices) for _, indices in self.train)


@dataclass(frozen=True, eq=False)
class Partition:
    """Clients in order; per domain the validation images that no client has, if any, and tests."""

    clients: tuple[ClientShare, ...]
    validation: dict[str, Pieces]
    tests: dict[str, Pieces]
    rule: str

    @property
    def hash(self) -> str:
        """sha256 over rule, clients, validation, and tests if mixed (else the split has them)."""
        told: list[str | Indices] = [self.rule]
        for client in self.clients:
            told.append(f"|{client.name}|{client.domain}")
            for domain, indices in client.train:
                told += [f"|{domain}|", indices]
        mixed = {d: p for d, p in self.tests.items() if [source for source, _ in p] != [d]}
        for what, given in (("validation", self.validation), ("test", mixed)):
            for domain in sorted(given):
                told.append(f"|{what}|{domain}|")
                for source, indices in given[domain]:
                    told += ["" if source == domain else f"|{source}|", indices]
        return digest_of(*told)

    def used(self, domain: str) -> Indices:
        """The images of a source domain used for training, validation or test, ascending."""
        given = [*(c.train for c in self.clients), *self.validation.values(), *self.tests.values()]
        return np.unique(taken(given, domain))


def taken(given: Iterable[Pieces], domain: str) -> Indices:
    """The images of a source domain in some pieces, in order."""
    found = [indices for pieces in given for source, indices in pieces if source == domain]
    return np.concatenate([np.empty(0, dtype=np.int64), *found])


def make_partition(
    splits: Mapping[str, Split],
    labels: Mapping[str, Labels],
    spec: AllocationSpec,
    seed: int,
    validation: int | float,
    shared: Mapping[str, Indices] | None = None,
) -> Partition:
    """Divide all splits' training images among clients, none twice except with ``cut_tests``.
    labels: per domain, of all its images. validation: as in DataSpec. shared: for ``disjoint``, by
    domain the number of each image's original. FedReproError: an impossible specification."""
    if spec.disjoint:
        splits = {name: _untested(split, splits, shared or {}) for name, split in splits.items()}
    partitioner = _Partitioner(splits, labels, spec, seed, validation)
    if spec.cut_tests:
        return partitioner.cut()
    clients: list[ClientShare] = getattr(partitioner, spec.rule)()
    mend = f"every client needs {_SMALLEST_CLIENT} or more: raise per_client or lower the clients"
    for client in clients:
        left = f"allocation leaves client {client.name} {len(client)} image(s)"
        need(len(client) >= _SMALLEST_CLIENT, f"{left}; {mend}")
    held = partitioner.spread(partitioner.aside or partitioner.left_over(clients), _MIX_VALIDATION)
    held = {name: pieces for name, pieces in held.items() if any(len(i) for _, i in pieces)}
    tests = partitioner.spread({name: s.test for name, s in splits.items()}, _MIX_TEST)
    return Partition(tuple(clients), held, tests, spec.model_dump_json())


def _untested(split: Split, splits: Mapping[str, Split], shared: Mapping[str, Indices]) -> Split:
    """A split without the training images whose original a test image has too."""
    if split.domain not in shared:
        return split
    tested = np.concatenate([numbers[splits[name].test] for name, numbers in shared.items()])
    return replace(split, train=split.train[~np.isin(shared[split.domain][split.train], tested)])


@dataclass(frozen=True)
class _Partitioner:
    """The inputs of `make_partition`; one method per rule, and shared functions."""

    splits: Mapping[str, Split]
    labels: Mapping[str, Labels]
    spec: AllocationSpec
    seed: int
    validation: int | float

    @cached_property
    def aside(self) -> dict[str, Indices]:
        """The share of each domain's training images kept for validation; none if it is a count."""
        share = self.validation
        if not isinstance(share, float) or share == 0:
            return {}
        said = f"validation = {share}: a share is between 0 and 1; a count has no point"
        need(0 < share < 1, said)
        return {
            name: np.sort(divide(name, split.train, self.labels[name], share, self.seed)[1])
            for name, split in self.splits.items()
        }

    @cached_property
    def orders(self) -> dict[str, Indices]:
        """The training images for clients, in the order in which they are distributed."""
        orders = {}
        for name, split in self.splits.items():
            orders[name] = split.train[~np.isin(split.train, self.aside.get(name, ()))]
            if self.spec.draw == "random":
                orders[name] = self.stream(name, _ORDER).permutation(orders[name])
        return orders

    def stream(self, name: str, round: int) -> np.random.Generator:
        """A domain's own random stream for one kind of draw."""
        return numpy_stream(self.seed, "allocation", domain_key(name), round)

    def left_over(self, clients: list[ClientShare]) -> dict[str, Indices]:
        """Up to ``validation`` training images of each domain that no client has."""
        rest = {}
        for name, split in self.splits.items():
            free = np.setdiff1d(split.train, taken((c.train for c in clients), name))
            drawn = self.stream(name, _VALIDATION).permutation(free)[: int(self.validation)]
            rest[name] = np.sort(drawn)
        return rest

    def domain(self) -> list[ClientShare]:
        """One client per domain."""
        return self.given(dict.fromkeys(self.splits, 1))

    def table(self) -> list[ClientShare]:
        """The specified number of clients for each domain."""
        table, known = self.spec.clients, ", ".join(self.splits)
        for name, count in table.items():
            need(name in self.splits, f"allocation table names {name!r}; the domains are {known}")
            need(count >= 0, f"allocation table: {name} = {count}; a number of clients is >= 0")
        wanted = {name: table[name] for name in self.splits if table.get(name)}
        need(wanted, "allocation rule table has no client; set allocation.clients")
        return self.given(wanted)

    def given(self, clients: Mapping[str, int]) -> list[ClientShare]:
        """The given number of clients for each domain, sized by ``per_client``."""
        if self.spec.by_class:
            found = {name: self._divided(name, count) for name, count in clients.items()}
        else:
            sizes = {name: self._sizes(name, count) for name, count in clients.items()}
            if self.spec.per_client == "smallest":
                smallest = min(size for row in sizes.values() for size in row)
                sizes = {name: [smallest] * len(row) for name, row in sizes.items()}
            found = {name: self._runs(name, row) for name, row in sizes.items()}
        return [
            ClientShare(name if len(chunks) == 1 else f"{name}-{i}", name, ((name, chunk),))
            for name, chunks in found.items()
            for i, chunk in enumerate(chunks, start=1)
        ]

    def mixed(self) -> list[ClientShare]:
        """Client i gives a random share of its images to client i - 1 and gets one from i + 1."""
        rule, several = "allocation rule mixed needs", len(self.splits) > 1
        need(self.spec.ratio is not None, f"{rule} a share; set allocation.ratio")
        need(several, f"{rule} two domains or more; use rule domain")
        own = {client.name: client.train[0][1] for client in self.domain()}
        return [ClientShare(name, name, train) for name, train in self.spread(own, _MIX).items()]

    def spread(self, parts: Mapping[str, Indices], round: int) -> dict[str, Pieces]:
        """Each domain's images; under rule mixed without a random share ``ratio``, plus that share
        of the next domain's."""
        if self.spec.rule != "mixed":
            return {name: ((name, part),) for name, part in parts.items()}
        kept, away, names = {}, {}, list(self.splits)
        for name, part in parts.items():
            rng, chosen = self.stream(name, round), np.zeros(len(part), dtype=bool)
            for places in self._places(name, part):
                count = math.floor((self.spec.ratio or 0.0) * len(places) + 1e-9)
                chosen[rng.permutation(places)[:count]] = True
            kept[name], away[name] = part[~chosen], part[chosen]
        following = zip(names, names[1:] + names[:1], strict=True)
        return {name: ((name, kept[name]), (other, away[other])) for name, other in following}

    def dirichlet(self) -> list[ClientShare]:
        """Label skew (ADCOL B.8), all domains pooled: for each class k, p_k ~ Dir_N(alpha), client
        j gets the share p_kj. A draw that leaves a client fewer than two images is repeated."""
        spec, names, rule = self.spec, list(self.splits), "allocation rule dirichlet"
        alpha, count = spec.alpha or 0.0, spec.count or 0
        need(alpha > 0 and count > 0, f"{rule} needs allocation.alpha and allocation.count")
        for name in ("by_class", "every_class", "remainder"):
            need(not getattr(spec, name), f"{rule} assigns images itself; remove {name}")
        source = np.repeat(np.arange(len(names)), [len(self.orders[n]) for n in names])
        index = np.concatenate([self.orders[n] for n in names])
        label = np.concatenate([self.labels[n][self.orders[n]] for n in names])
        rng = numpy_stream(self.seed, "allocation", round=_SKEW)
        for _ in range(_DIRICHLET_TRIES):
            owners = _skewed_owners(label, count, alpha, rng)
            if np.bincount(owners, minlength=count).min() >= _SMALLEST_CLIENT:
                break
        else:
            raise FedReproError(
                f"dirichlet alpha = {alpha} leaves one of {count} clients without images in "
                f"{_DIRICHLET_TRIES} draws; raise alpha or lower count"
            )
        members = self._cut_members([np.flatnonzero(owners == j) for j in range(count)])
        domain = names[0] if len(names) == 1 else POOLED
        shares = []
        for j, own in enumerate(members, start=1):
            pieces = ((n, index[own[source[own] == i]]) for i, n in enumerate(names))
            pieces = (piece for piece in pieces if len(piece[1]))
            shares.append(ClientShare(f"{domain}-{j}", domain, tuple(pieces)))
        return shares

    def _cut_members(self, members: list[Indices]) -> list[Indices]:
        per = self.spec.per_client
        if per == "all":
            return members
        if isinstance(per, dict):
            raise FedReproError("allocation rule dirichlet pools the domains; give one per_client")
        smallest, cut = min(len(own) for own in members), []
        for j, own in enumerate(members):
            size = smallest if isinstance(per, str) else _amount(per, len(own))
            wants = f"allocation wants {size} images per client; client {j + 1} drew {len(own)}"
            need(size <= len(own), f"{wants}: lower per_client or raise alpha")
            rng = numpy_stream(self.seed, "allocation", j, _CUT)
            cut.append(np.sort(rng.permutation(own)[:size]))
        return cut

    def cut(self) -> Partition:
        """Training and test images of each domain in parts; each part is a client and a domain."""
        table, share = self.spec.clients, self.validation
        fits = self.spec.rule == "table" and isinstance(share, float)
        need(fits, "cut_tests needs rule table and a share of images for validation")
        clients: list[ClientShare] = []
        held: dict[str, Pieces] = {}
        tests: dict[str, Pieces] = {}
        for domain, split in ((d, split) for d, split in self.splits.items() if table.get(d)):
            label = self.labels[domain]
            both = (parts(i, label, table[domain]) for i in (split.train, split.test))
            for number, (train, test) in enumerate(zip(*both, strict=True), start=1):
                name = f"{domain}-{number}"
                kept, away = divide(name, train, label, share, self.seed)
                clients.append(ClientShare(name, name, ((domain, kept),)))
                held[name], tests[name] = ((domain, np.sort(away)),), ((domain, test),)
        return Partition(tuple(clients), held, tests, self.spec.model_dump_json())

    def _places(self, name: str, indices: Indices) -> list[Indices]:
        """Groups of positions in ``indices`` that are divided together: all, or by class."""
        if not self.spec.by_class:
            return [np.arange(len(indices))]
        label = self.labels[name][indices]
        return [np.flatnonzero(label == k) for k in np.unique(label)]

    def _divided(self, name: str, clients: int) -> list[Indices]:
        whole = self.spec.per_client == "all"
        need(whole, "by_class divides whole domains; set per_client to all")
        order = self.orders[name]
        pieces = [np.array_split(order[places], clients) for places in self._places(name, order)]
        return [np.concatenate(own) for own in zip(*pieces, strict=True)]

    def _sizes(self, name: str, clients: int) -> list[int]:
        per, available = self.spec.per_client, len(self.orders[name])
        if isinstance(per, str):  # all, smallest: even parts, the first ones longer by at most one
            return [available // clients + (i < available % clients) for i in range(clients)]
        if isinstance(per, dict):
            need(name in per, f"per_client has no value for {name}; add it")
            per = per[name]
        size = _amount(per, available)
        if self.spec.remainder and size * (clients - 1) < available:
            return [size] * (clients - 1) + [min(size, available - size * (clients - 1))]
        share = isinstance(per, float)
        wanted = f"{clients} client(s) of {per} each" if share else size * clients
        wants = f"allocation wants {wanted} training images of {name}, which has {available}"
        fits = size * clients <= available and not (share and per * clients > 1 + 1e-9)
        need(fits, f"{wants}; lower per_client or the number of clients")
        return [size] * clients

    def _runs(self, name: str, sizes: list[int]) -> list[Indices]:
        order, borders = self.orders[name], np.cumsum(sizes)
        if self.spec.every_class:
            owner = np.searchsorted(borders, np.arange(len(order)), side="right")
            label, rng = self.labels[name][order], self.stream(name, _EVERY_CLASS)
            order = order[every_class(name, label, owner, len(sizes), rng)]
        return np.split(order, borders)[:-1]


def _amount(per: int | float, available: int) -> int:
    """A count unchanged; a fraction rounded down, as in every script of the papers."""
    if isinstance(per, float):
        fits = 0 < per <= 1
        need(fits, f"per_client = {per}: a fraction is above 0 and up to 1; a count has no point")
        return math.floor(per * available + 1e-9)
    need(per >= 1, f"per_client = {per}: give each client at least 1 image")
    return per


def every_class(
    name: str, label: Labels, owner: Indices, clients: int, rng: np.random.Generator
) -> Indices:
    """An order of the images in which every client has each class of the domain.
    label, owner: of the image at each position; an owner >= ``clients`` means no client. A client
    without a class gives an image of a class that it has twice, and gets an image that no client
    has, or whose owner comes later or has another one (RethinkFL's sampler may take any)."""
    said = (
        f"not every client of {name} can have an image of each class; raise per_client, lower the "
        "clients or set every_class to false"
    )
    order, label, classes = np.arange(len(label)), label.copy(), int(label.max()) + 1
    for client in range(clients):
        for k in np.unique(label):
            mine = owner == client
            if (label[mine] == k).any():
                continue
            spare = np.flatnonzero(mine & (np.bincount(label[mine], minlength=classes) >= 2)[label])
            several = np.bincount(owner[label == k], minlength=clients + 1)[owner] >= 2
            offered = np.flatnonzero((label == k) & ((owner > client) | several))
            need(len(spare) and len(offered), said)
            swap = [rng.choice(spare), rng.choice(offered)]
            order[swap], label[swap] = order[swap[::-1]], label[swap[::-1]]
    return order


def _skewed_owners(label: Labels, clients: int, alpha: float, rng: np.random.Generator) -> Indices:
    """The client of each image; each class is divided by its own shares."""
    owners = np.empty(len(label), dtype=np.int64)
    for k in np.unique(label):
        members = rng.permutation(np.flatnonzero(label == k))
        shares = rng.dirichlet(np.full(clients, alpha))
        borders = np.floor(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        owners[members] = np.searchsorted(borders, np.arange(len(members)), side="right")
    return owners
