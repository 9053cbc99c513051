"""Accuracies: by domain, as a mean, in and out of the clients' domains, and gains; from stored
predictions, which classes are confused, and how much an accuracy would change on other test images.
Seeds do not show this, because they share one test set."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedrepro.federated import metrics
from fedrepro.federated.metrics import LAST
from fedrepro.quantities.base import Asked, Values, domain_weights, quantity, tested_images
from fedrepro.records import Record

Hits = npt.NDArray[np.float64]
# Of a run by domain: the share of predictions in which each test image (m,) was right, the score in
# percent, and the number of test images.
Seen = tuple[dict[str, Hits], dict[str, float], dict[str, int]]
IN, OUT = ("ind_acc", "in domain"), ("ood_acc", "out of domain")  # a column in print, and ours


@quantity("accuracy", "sweep", "curves", "features", "terms", "privacy", whole=100.0)
def by_domain(asked: Asked) -> Values:
    """Test accuracy per domain and `avg`; also of experiments that are only drawn."""
    for result in asked.results:
        for column, value in asked.scores(result).items():
            yield result.label, column, value


@quantity("grid", whole=100.0)
def grid(asked: Asked) -> Values:
    """Each arm's mean accuracy, in the arm's row and column."""
    first = asked.table.columns[0]
    for result in asked.results:
        arm = result.arm
        yield arm.row or result.label, arm.column or first, asked.scores(result)["avg"]


@quantity("targets", whole=100.0)
def each_target(asked: Asked) -> Values:
    """Arms whose method has a target share one row: each in the column of its target's domain, and
    their mean if every domain has been a target. Other arms have their own row."""
    turns: dict[str, dict[str, tuple[float, Record]]] = {}
    domains: list[str] = []
    for result in asked.results:
        scores, home = asked.scores(result), target(result.record)
        if home is None:
            yield from ((result.label, column, value) for column, value in scores.items())
            continue
        domains = result.record.data["domains"]
        turns.setdefault(result.arm.row, {})[home] = scores[home], result.record
    for row, found in turns.items():
        parts = {domain: [(100.0, found[domain][1])] for domain in domains if domain in found}
        yield from ((row, one, found[one][0], {"parts": parts[one]}) for one in parts)
        if len(found) == len(domains):
            mean = sum(value for value, _ in found.values()) / len(found)
            yield row, "avg", mean, {"parts": [*chain.from_iterable(parts.values())]}


@quantity("differences", per_arm=False, of_one_set=True)
def differences(asked: Asked) -> Values:
    """Printed rows that are one accuracy, or the difference of two. Rows of other data sets, and of
    domains that a replacing data set does not have, are left out."""
    runs = {result.label: result.record for result in asked.results}
    scores: dict[str | None, dict[str, float]] = {None: {}}  # of nothing that is subtracted
    scores |= {result.label: asked.scores(result) for result in asked.results}
    for one in asked.experiment.differences:
        own = asked.dataset in ("minidigits", one.dataset)
        fits = own or asked.paper.dataset(asked.dataset).protocol == one.dataset
        if not fits or not scores.keys() >= {one.of, one.minus}:
            continue
        less = scores[one.minus]
        gains = {column: value - less.get(column, 0.0) for column, value in scores[one.of].items()}
        largest = max((column for column in gains if column != "avg"), key=gains.__getitem__)
        place = largest if one.column == "largest" else one.column
        parts = [(100.0, runs[one.of])]
        if one.minus is not None:
            parts.append((-100.0, runs[one.minus]))
        if place in gains:
            more = {"parts": parts, "of": place}
            yield one.row, asked.table.columns[0], gains[place], more


@quantity("relative", per_arm=False, of_one_set=True)
def relative(asked: Asked) -> Values:
    """How much the last arm's mean accuracy is above the first's, in percent of the first's."""
    if len(asked.results) < 2:
        return
    ends = asked.results[-1], asked.results[0]
    high, low = (asked.scores(end)["avg"] for end in ends)
    slopes = 100 / low, -100 * high / low**2  # of the gain, by each accuracy in percent
    parts = [(100 * slope, end.record) for slope, end in zip(slopes, ends, strict=True)]
    row = asked.experiment.rows.get(asked.dataset, asked.dataset)
    more = {"parts": parts, "of": "avg"}
    yield row, asked.table.columns[0], 100 * (high / low - 1), more


@quantity("in-out", whole=1.0)
def in_out(asked: Asked) -> Values:
    """Accuracies (0 to 1), and their round (0 if nothing is sent), in printed columns or ours."""
    first = asked.paper.protocol(asked.experiment.datasets[0]).data.dataset
    printed = asked.experiment.table is not None and first == asked.dataset
    names = (OUT[0], IN[0], "rounds") if printed else (OUT[1], IN[1], "best round")
    for result in asked.results:
        curve, data = result.record.curve, result.record.data
        best, weights = metrics.best_round(curve), domain_weights(result.record)
        found = metrics.in_and_out(curve, data["clients"], weights)
        last = best if (curve.measure == "bytes").any() else 0
        values = (found.ood[best] / 100, found.ind[best] / 100, last)
        yield from zip([result.label] * 3, names, map(float, values), strict=True)


# From stored predictions.


def predictions(
    record: Record, rule: str, away: bool = False
) -> dict[str, tuple[Any, list[tuple[str, Any]]]]:
    """By domain with stored predictions: the classes of its test images (m,), and their predicted
    classes (m,) in each of the scored rounds by each network of the domain, with the network's
    name. away: by the networks of the other domains."""
    if not (kept := record.predictions):
        return {}
    curve, rounds = record.curve, metrics.scored(record.curve, rule).index
    tests = curve[(curve.measure == "accuracy") & (curve.split == "test")]
    subject = tests.subject.iloc[0]  # the networks the method is scored by
    found = {}
    for domain in record.data["domains"]:
        clients = (c for c in record.data["clients"] if (c["domain"] == domain) != away)
        nets = ["server", *(client["name"] for client in clients)]
        names = [[(n, f"predicted/{at}/{subject}/{n}/{domain}") for n in nets] for at in rounds]
        scored = [[(net, kept[name]) for net, name in own if name in kept] for own in names]
        labels, every = kept.get(f"labels/{domain}"), list(chain.from_iterable(scored))
        if labels is not None and all(scored) and {len(p) for _, p in every} == {len(labels)}:
            found[domain] = labels, every
    return found


def confusion(runs: Iterable[tuple[str, Record]], rule: str) -> pd.DataFrame:
    """How the test images of each class are classified: method, domain, cls, predicted, images (a
    mean over the `predictions`, summed over seeds) and percent of the class. Pairs of classes that
    do not occur are left out, and methods with a run without stored predictions.
    runs: all seeds of each method, with its name."""
    keys = ["method", "domain", "cls", "predicted"]
    parts, whole = [pd.DataFrame(columns=[*keys, "images"])], dict[str, bool]()
    for method, record in runs:
        kept = predictions(record, rule)
        whole[method] = whole.get(method, True) and len(kept) == len(record.data["domains"])
        names = np.array(record.classes)
        for domain, (labels, by_network) in kept.items():
            predicted = [each for _, each in by_network]
            images = np.zeros((len(names), len(names)))
            np.add.at(images, (np.tile(labels, len(predicted)), np.concatenate(predicted)), 1)
            cls, each = np.nonzero(images)
            counted = images[cls, each] / len(predicted)
            found = {"cls": names[cls], "predicted": names[each], "images": counted}
            parts.append(pd.DataFrame({"method": method, "domain": domain, **found}))
    frame = pd.concat(parts[1:] or parts).groupby(keys, sort=False).images.sum().reset_index()
    frame = frame[frame.method.map(whole).astype(bool)]
    totals = frame.groupby(keys[:3]).images.transform("sum")
    return frame.assign(percent=100 * frame.images / totals)


def counts(record: Record) -> pd.DataFrame:
    """`metrics.client_shares` of a run."""
    return metrics.client_shares(record.data["clients"], domain_weights(record))


def parts(record: Record, column: str) -> dict[str, float]:
    """How much each domain counts in a column: a domain, in or out of the clients' domains, else
    the plain mean."""
    domains = [column] if column in record.data["domains"] else record.data["domains"]
    if column not in (*IN, *OUT):
        return dict.fromkeys(domains, 1 / len(domains))
    own = counts(record).groupby("domain").share.sum().reindex(domains, fill_value=0)
    return dict((1 - own) / (len(own) - 1) if column in OUT else own)


def binomial(accuracy: float, images: int) -> float:
    """Variance of an accuracy (0 to 1) over draws of this many test images."""
    return accuracy * (1 - accuracy) / images


def target(record: Record) -> str | None:
    """The one domain that a run counts for: that of its method's target client, if it has one."""
    number = record.config["method"]["fields"].get("target")
    return None if number is None else record.data["clients"][number]["domain"]


class Noise:
    """Variances over draws of test images, for runs of one score rule."""

    def __init__(self, rule: str) -> None:
        self._rule = rule
        self._seen: dict[tuple[str, bool], Seen] = {}

    def variance(
        self, rows: Sequence[Sequence[Record]], column: str, weights: Sequence[float] = (1.0, -1.0)
    ) -> float:
        """The variance of a row's mean accuracy (0 to 1) over its seeds, or of two rows'
        difference; with weights, of their weighted sum.
        rows: one or two rows, each the runs of its seeds. column: as in `parts`.
        Two rows are paired image by image, by those of their runs that stored predictions. Where a
        row has none they count as separate, which gives no less if they fail on the same images."""
        every = parts(rows[0][0], column).items()
        return sum(n**2 * self._of_domain(rows, d, weights, column in OUT) for d, n in every)

    def _of_domain(
        self, rows: Sequence[Sequence[Record]], domain: str, weights: Sequence[float], away: bool
    ) -> float:
        rows = [[run for run in row if target(run) in (None, domain)] for row in rows]
        seen = [[self._of_run(run, away) for run in row] for row in rows]
        found = [[shares[domain] for shares, _, _ in row if domain in shares] for row in seen]
        stored = [len(shares) for row in found for shares in row]
        if all(found) and len(set(stored)) == 1:
            means = [np.mean(np.stack(row), axis=0) for row in found]
            paired: Hits = sum(w * mean for w, mean in zip(weights, means, strict=False))
            return float(paired.var(ddof=1)) / len(paired)
        shares = [sum(scores[domain] for _, scores, _ in row) / len(row) / 100 for row in seen]
        separate = [binomial(s, row[0][2][domain]) for s, row in zip(shares, seen, strict=True)]
        return sum(w**2 * variance for w, variance in zip(weights, separate, strict=False))

    def _of_run(self, run: Record, away: bool) -> Seen:
        """away: each domain by the networks of the others."""
        if (run.run_id, away) not in self._seen:
            clients, curve, right = counts(run), run.curve, dict[str, Hits]()
            for domain, (labels, predicted) in predictions(run, self._rule, away).items():
                hits = [each == labels for _, each in predicted]
                shares = [clients.share.get(network, 1) for network, _ in predicted]
                right[domain] = np.average(hits, axis=0, weights=shares)
            scores = metrics.scores(curve, self._rule)
            scored = metrics.scored(curve, self._rule).index
            if away:
                crossed = curve[(curve.measure == "cross-accuracy") & curve["round"].isin(scored)]
                table = crossed.pivot_table("value", "subject", "domain")
                for domain in table:
                    others = clients.share[clients.domain != domain]
                    scores[domain] = np.average(table.loc[others.index, domain], weights=others)
            images = tested_images(run)
            if (most := run.protocol.tested_at) and scored[0] <= run.protocol.rounds - LAST:
                images = {domain: min(n, most) for domain, n in images.items()}
            self._seen[run.run_id, away] = right, scores, images
        return self._seen[run.run_id, away]


def combined(*parts: tuple[float, float]) -> tuple[float, float]:
    """Standard error and degrees of freedom of a sum of independent parts, each a variance of a
    mean with its degrees of freedom (inf if it is known); Welch and Satterthwaite."""
    total = sum(variance for variance, _ in parts)
    shares: list[Any] = [variance**2 / freedom for variance, freedom in parts if freedom]
    below = sum(shares)
    return total**0.5, total**2 / below if below else float("inf")
