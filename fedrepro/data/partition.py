"""How training images become clients' images: the rules of ``AllocationSpec``, with a hash."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedrepro.base.errors import FedReproError, need
from fedrepro.base.protocol import AllocationSpec, DataSpec
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

    def leaks(self, domain: str) -> tuple[str, ...]:
        """How many test images clients train on, or validate with: only with the leaky rules."""
        every = [c.train for c in self.clients], self.validation.values(), self.tests.values()
        train, held, test = (np.unique(taken(given, domain)) for given in every)
        trained, chosen = (len(np.intersect1d(part, test)) for part in (train, held))
        said = f"{domain}: clients train on {trained:,} of {len(test):,} test images"
        said += f" and validate on {chosen:,}" * bool(chosen)
        return (said,) if trained or chosen else ()


def taken(given: Iterable[Pieces], domain: str) -> Indices:
    """The images of a source domain in some pieces, in order."""
    found = [indices for pieces in given for source, indices in pieces if source == domain]
    return np.concatenate([np.empty(0, dtype=np.int64), *found])


def make_partition(
    splits: Mapping[str, Split],
    labels: Mapping[str, Labels],
    spec: DataSpec,
    shared: Mapping[str, Indices] | None = None,
) -> Partition:
    """Divide all splits' training images among clients, none twice except with ``cut_tests``.
    labels: per domain, of all its images. shared: for ``disjoint``, by domain the number of each
    image's original. FedReproError: an impossible specification."""
    rule, share = spec.allocation, spec.validation
    said = f"validation = {share}: a share is between 0 and 1; write a count as 3, not 3.0"
    need(isinstance(share, int) or share < 1, said)
    if rule.disjoint and shared:
        tested = np.concatenate([numbers[splits[name].test] for name, numbers in shared.items()])
        for name, numbers in shared.items():
            train = splits[name].train
            train = train[~np.isin(numbers[train], tested)]
            splits = {**splits, name: replace(splits[name], train=train)}
    if rule.rule == "table":
        for name, count in rule.clients.items():
            known = f"allocation table names {name!r}; the domains are {', '.join(splits)}"
            need(name in splits, known)
            need(count >= 0, f"allocation table: {name} = {count}; a number of clients is >= 0")
        said = "allocation rule table has no client; set allocation.clients"
        need(any(rule.clients.values()), said)
    domains = [_Domain(n, s, labels[n], spec, rule) for n, s in splits.items()]
    if rule.cut_tests:
        return _cut(domains, spec)
    clients = _skewed(domains, spec) if rule.rule == "dirichlet" else _apart(domains, rule)
    mend = f"every client needs {_SMALLEST_CLIENT} or more: raise per_client or lower the clients"
    for client in clients:
        left = f"allocation leaves client {client.name} {len(client)} image(s)"
        need(len(client) >= _SMALLEST_CLIENT, f"{left}; {mend}")
    held = _spread(domains, [domain.held(clients) for domain in domains], _MIX_VALIDATION)
    held = {name: pieces for name, pieces in held.items() if any(len(i) for _, i in pieces)}
    tests = _spread(domains, [domain.split.test for domain in domains], _MIX_TEST)
    return Partition(tuple(clients), held, tests, rule.model_dump_json())


@dataclass(frozen=True, eq=False)
class _Domain:
    """A domain's split and labels, and what is specified for all."""

    name: str
    split: Split
    labels: Labels
    data: DataSpec
    spec: AllocationSpec

    def stream(self, round: int) -> np.random.Generator:
        """The domain's own random stream for one kind of draw."""
        return numpy_stream(self.data.split_seed, "allocation", domain_key(self.name), round)

    @cached_property
    def aside(self) -> Indices:
        """The share of the training images kept for validation; none if it is a count."""
        if not isinstance(share := self.data.validation, float) or share == 0:
            return np.empty(0, dtype=np.int64)
        seed = self.data.split_seed
        return np.sort(divide(self.name, self.split.train, self.labels, share, seed)[1])

    @cached_property
    def order(self) -> Indices:
        """The training images for clients, in the order in which they are distributed."""
        order = self.split.train[~np.isin(self.split.train, self.aside)]
        return self.stream(_ORDER).permutation(order) if self.spec.draw == "random" else order

    def held(self, clients: Iterable[ClientShare]) -> Indices:
        """The validation images: those set aside, or up to a number of those that no client has."""
        if isinstance(self.data.validation, float):
            return self.aside
        free = np.setdiff1d(self.split.train, taken((c.train for c in clients), self.name))
        return np.sort(self.stream(_VALIDATION).permutation(free)[: self.data.validation])

    def places(self, indices: Indices) -> list[Indices]:
        """Groups of positions in some images that are divided together: all, or by class."""
        if not self.spec.by_class:
            return [np.arange(len(indices))]
        label = self.labels[indices]
        return [np.flatnonzero(label == k) for k in np.unique(label)]

    def exchanged(self, part: Indices, round: int) -> tuple[Indices, Indices]:
        """Some images without a random share ``ratio``, and that share."""
        rng, chosen = self.stream(round), np.zeros(len(part), dtype=bool)
        for places in self.places(part):
            count = math.floor((self.spec.ratio or 0.0) * len(places) + 1e-9)
            chosen[rng.permutation(places)[:count]] = True
        return part[~chosen], part[chosen]

    def sizes(self, clients: int, smallest: int) -> list[int]:
        """How many images each client gets. smallest: what any domain has for each of its own."""
        per, available = self.spec.per_client, len(self.order)
        if per == "all":  # even parts, the first ones longer by at most one
            return [available // clients + (i < available % clients) for i in range(clients)]
        if isinstance(per, dict):
            need(self.name in per, f"per_client has no value for {self.name}; add it")
            per = per[self.name]
        size = _amount(per, available, smallest)
        if self.spec.remainder and size * (clients - 1) < available:
            return [size] * (clients - 1) + [min(size, available - size * (clients - 1))]
        share = per if isinstance(per, float) else 0.0
        wanted = f"{clients} client(s) of {per} each" if share else size * clients
        wants = f"allocation wants {wanted} training images of {self.name}, which has {available}"
        fits = size * clients <= available and share * clients <= 1 + 1e-9
        need(fits, f"{wants}; lower per_client or the number of clients")
        return [size] * clients

    def divided(self, clients: int, smallest: int) -> list[Indices]:
        order = self.order
        if self.spec.by_class:
            whole = self.spec.per_client == "all"
            need(whole, "by_class divides whole domains; set per_client to all")
            need(not self.spec.every_class, "by_class has no every_class; leave one of them out")
            pieces = [np.array_split(order[places], clients) for places in self.places(order)]
            return [np.concatenate(own) for own in zip(*pieces, strict=True)]
        borders = np.cumsum(self.sizes(clients, smallest))
        if self.spec.every_class:
            owner = np.searchsorted(borders, np.arange(len(order)), side="right")
            label, rng = self.labels[order], self.stream(_EVERY_CLASS)
            order = order[every_class(self.name, label, owner, clients, rng)]
        return np.split(order, borders)[:-1]


def _apart(domains: list[_Domain], spec: AllocationSpec) -> list[ClientShare]:
    """Rule domain: one client per domain. Rule table: the specified numbers. Rule mixed: client i
    gives a random share of its images to client i - 1 and gets one from i + 1."""
    names, clients = [domain.name for domain in domains], spec.clients
    if spec.rule != "table":
        clients = dict.fromkeys(names, 1)
    if spec.rule == "mixed":
        rule = "allocation rule mixed needs"
        need(spec.ratio is not None, f"{rule} a share; set allocation.ratio")
        need(len(names) > 1, f"{rule} two domains or more; use rule domain")
        need(not spec.every_class, f"{rule} every_class off: the exchange comes after it")
    own = [(domain, clients[domain.name]) for domain in domains if clients.get(domain.name)]
    smallest = min(len(domain.order) // count for domain, count in own)
    parts = [(domain.name, domain.divided(count, smallest)) for domain, count in own]
    if spec.rule == "mixed":
        mixed = _spread(domains, [part for _, (part,) in parts], _MIX)
        return [ClientShare(name, name, train) for name, train in mixed.items()]
    shares = [
        ClientShare(name if len(chunks) == 1 else f"{name}-{i}", name, ((name, chunk),))
        for name, chunks in parts
        for i, chunk in enumerate(chunks, start=1)
    ]
    for name, count in Counter(share.name for share in shares).items():
        need(count == 1, f"two clients would have the name {name}; rename a domain")
    return shares


def _spread(domains: list[_Domain], parts: list[Indices], round: int) -> dict[str, Pieces]:
    """Each domain's images; under rule mixed some of the next domain's in place of its own."""
    names = [domain.name for domain in domains]
    if domains[0].spec.rule != "mixed":
        return {name: ((name, part),) for name, part in zip(names, parts, strict=True)}
    halves = [d.exchanged(part, round) for d, part in zip(domains, parts, strict=True)]
    away = [(name, given) for name, (_, given) in zip(names, halves, strict=True)]
    following = zip(names, halves, away[1:] + away[:1], strict=True)
    return {name: ((name, kept), other) for name, (kept, _), other in following}


def _skewed(domains: list[_Domain], data: DataSpec) -> list[ClientShare]:
    """Label skew (ADCOL B.8), all domains pooled: for each class k, p_k ~ Dir_N(alpha), client j
    gets the share p_kj. A draw that leaves a client fewer than two images is repeated."""
    spec, seed, rule = data.allocation, data.split_seed, "allocation rule dirichlet"
    alpha, count = spec.alpha or 0.0, spec.count or 0
    need(alpha > 0 and count > 0, f"{rule} needs allocation.alpha and allocation.count")
    for name in ("by_class", "every_class", "remainder"):
        need(not getattr(spec, name), f"{rule} assigns images itself; remove {name}")
    source = np.repeat(np.arange(len(domains)), [len(d.order) for d in domains])
    index = np.concatenate([d.order for d in domains])
    label = np.concatenate([d.labels[d.order] for d in domains])
    rng = numpy_stream(seed, "allocation", round=_SKEW)
    for _ in range(_DIRICHLET_TRIES):
        owners = _skewed_owners(label, count, alpha, rng)
        if enough := np.bincount(owners, minlength=count).min() >= _SMALLEST_CLIENT:
            break
    said = f"dirichlet alpha = {alpha} leaves one of {count} clients without images in "
    need(enough, f"{said}{_DIRICHLET_TRIES} draws; raise alpha or lower count")
    members = [np.flatnonzero(owners == j) for j in range(count)]
    if isinstance(per := spec.per_client, dict):
        raise FedReproError("allocation rule dirichlet pools the domains; give one per_client")
    smallest, shares = min(len(own) for own in members), []
    domain = domains[0].name if len(domains) == 1 else POOLED
    for j, drawn in enumerate(members):
        size = _amount(per, len(drawn), smallest)
        wants = f"allocation wants {size} images per client; client {j + 1} drew {len(drawn)}"
        need(size <= len(drawn), f"{wants}: lower per_client or raise alpha")
        own = np.sort(numpy_stream(seed, "allocation", j, _CUT).permutation(drawn)[:size])
        pieces = ((domains[i].name, index[own[source[own] == i]]) for i in np.unique(source[own]))
        shares.append(ClientShare(f"{domain}-{j + 1}", domain, tuple(pieces)))
    return shares


def _cut(domains: list[_Domain], data: DataSpec) -> Partition:
    """Training and test images of each domain in parts; each part is a client and a domain."""
    clients: list[ClientShare] = []
    held: dict[str, Pieces] = {}
    tests: dict[str, Pieces] = {}
    spec, share, seed = data.allocation, data.validation, data.split_seed
    fits = spec.rule == "table" and spec.per_client == "all" and (share == 0 or share % 1)
    said = "cut_tests needs rule table, per_client all, a share of images for validation or 0, and "
    need(fits and not (spec.every_class or spec.remainder), f"{said}no every_class or remainder")
    for domain in (one for one in domains if spec.clients.get(one.name)):
        label, count = domain.labels, spec.clients[domain.name]
        both = (parts(side, label, count) for side in (domain.split.train, domain.split.test))
        for number, (train, test) in enumerate(zip(*both, strict=True), start=1):
            name = f"{domain.name}-{number}"
            kept, away = divide(name, train, label, share, seed) if share else (train, train[:0])
            few = f"{domain.name} has too few images for {count} clients; give it fewer"
            need(len(test) and len(kept), few)
            clients.append(ClientShare(name, name, ((domain.name, kept),)))
            held |= {name: ((domain.name, np.sort(away)),)} if share else {}
            tests[name] = ((domain.name, test),)
    return Partition(tuple(clients), held, tests, spec.model_dump_json())


def _amount(per: float | str, available: int, smallest: int) -> int:
    """A count unchanged; a fraction rounded down, as in every script of the papers."""
    if isinstance(per, str):
        return available if per == "all" else smallest
    if isinstance(per, float):
        fits = 0 < per <= 1
        need(fits, f"per_client = {per}: a fraction is above 0 and up to 1; write a count as 3")
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
