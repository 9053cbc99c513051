"""Results from stored predictions: which classes are confused, and how much an accuracy would
change on other test images. Seeds do not show this, because they share one test set."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedrepro.federated import metrics
from fedrepro.records import Record

Hits = npt.NDArray[np.float64]


def predictions(record: Record, rule: str) -> dict[str, tuple[Any, list[Any]]]:
    """By domain with stored predictions: the classes of its test images (m,), and their predicted
    classes (m,) in each of the scored rounds by each network of the domain."""
    kept = record.predictions
    if not kept:
        return {}
    homes = {client["name"]: client["domain"] for client in record.data["clients"]}
    curve, rounds = record.curve, metrics.scored(record.curve, rule).index
    tests = curve[(curve.measure == "accuracy") & (curve.split == "test")]
    subject = tests.subject.iloc[0]  # the networks the method is scored by
    nets: dict[tuple[str, str], list[Any]] = defaultdict(list)  # by domain and round
    for name, predicted in kept.items():
        kind, *place = name.split("/")
        if kind == "predicted" and place[1] == subject:
            number, _, network, domain = place
            if homes.get(network, domain) == domain:
                nets[domain, number].append(predicted)
    found = {}
    for domain in record.data["domains"]:
        scored, labels = [nets[domain, str(n)] for n in rounds], kept.get(f"labels/{domain}")
        every = [predicted for one in scored for predicted in one]
        if labels is not None and all(scored) and {len(p) for p in every} == {len(labels)}:
            found[domain] = labels, every
    return found


def hits(record: Record, rule: str) -> dict[str, Hits]:
    """By domain: the share of `predictions` in which each test image (m,) was right."""
    return {
        domain: np.mean([each == labels for each in predicted], axis=0)
        for domain, (labels, predicted) in predictions(record, rule).items()
    }


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
        for domain, (labels, predicted) in kept.items():
            pairs = np.stack([np.tile(labels, len(predicted)), np.concatenate(predicted)])
            (cls, each), images = np.unique(pairs, axis=1, return_counts=True)
            found = {"cls": names[cls], "predicted": names[each], "images": images / len(predicted)}
            parts.append(pd.DataFrame({"method": method, "domain": domain, **found}))
    frame = pd.concat(parts[1:] or parts).groupby(keys, sort=False).images.sum().reset_index()
    frame = frame[frame.method.map(whole).astype(bool)]
    totals = frame.groupby(keys[:3]).images.transform("sum")
    return frame.assign(percent=100 * frame.images / totals)


def binomial(accuracy: float, images: int) -> float:
    """Variance of an accuracy (0 to 1) over draws of this many test images."""
    return accuracy * (1 - accuracy) / images


def tested_images(record: Record) -> dict[str, int]:
    """Number of test images by domain."""
    counts = pd.DataFrame(record.data["counts"])
    found: dict[str, int] = counts[counts.split == "test"].groupby("domain").images.sum().to_dict()
    return found


def target(record: Record) -> str | None:
    """The one domain that a run counts for: that of its method's target client, if it has one."""
    number = record.config["method"]["fields"].get("target")
    return None if number is None else record.data["clients"][number]["domain"]


class Noise:
    """Variances over draws of test images, for runs of one score rule."""

    def __init__(self, rule: str) -> None:
        self._rule = rule
        # By run: hits, scores in percent and test images, each by domain.
        self._seen: dict[str, tuple[dict[str, Hits], dict[str, float], dict[str, int]]] = {}

    def variance(
        self, rows: Sequence[Sequence[Record]], column: str, weights: Sequence[float] = (1.0, -1.0)
    ) -> float:
        """The variance of a row's mean accuracy (0 to 1) over its seeds, or of two rows'
        difference; with weights, of their weighted sum.
        rows: one or two rows, each the runs of its seeds. column: a domain, else their plain mean.
        Two rows are paired image by image, by those of their runs that stored predictions; the
        variance of a mean is the limit of a bootstrap over images. Where a row has none, the rows
        count as having separate images, which does not give less if both tend to fail on the same
        images."""
        data = rows[0][0].data
        domains = [column] if column in data["domains"] else data["domains"]
        parts = (self._of_domain(rows, domain, weights) for domain in domains)
        return sum(parts) / len(domains) ** 2

    def _of_domain(
        self, rows: Sequence[Sequence[Record]], domain: str, weights: Sequence[float]
    ) -> float:
        rows = [[run for run in row if target(run) in (None, domain)] for row in rows]
        seen = [[self._of_run(run) for run in row] for row in rows]
        found = [[shares[domain] for shares, _, _ in row if domain in shares] for row in seen]
        stored = [len(shares) for row in found for shares in row]
        if all(found) and len(set(stored)) == 1:
            means = [np.mean(np.stack(row), axis=0) for row in found]
            paired: Hits = sum(w * mean for w, mean in zip(weights, means, strict=False))
            return float(paired.var(ddof=1)) / len(paired)
        return sum(
            w**2
            * binomial(
                sum(scores[domain] for _, scores, _ in row) / len(row) / 100, row[0][2][domain]
            )
            for w, row in zip(weights, seen, strict=False)
        )

    def _of_run(self, run: Record) -> tuple[dict[str, Hits], dict[str, float], dict[str, int]]:
        if run.run_id not in self._seen:
            scores = metrics.scores(run.curve, self._rule)
            self._seen[run.run_id] = hits(run, self._rule), scores, tested_images(run)
        return self._seen[run.run_id]


def combined(*parts: tuple[float, float]) -> tuple[float, float]:
    """Standard error and degrees of freedom of a sum of independent parts, each a variance of a
    mean with its degrees of freedom (inf if it is known); Welch and Satterthwaite."""
    total = sum(variance for variance, _ in parts)
    shares: list[Any] = [variance**2 / freedom for variance, freedom in parts if freedom]
    below = sum(shares)
    return total**0.5, total**2 / below if below else float("inf")
