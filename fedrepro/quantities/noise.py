"""How far an accuracy would move on other test images: the part of its error that no seed shows,
since all seeds share one test set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedrepro.federated import metrics
from fedrepro.records import Record

Hits = npt.NDArray[np.float64]


def hits(record: Record, rule: str, domain: str) -> Hits | None:
    """How often each test image of a domain (m,) was classified right, as a share of the scored
    rounds and of the networks that count for the domain; None where that was not kept."""
    kept, homes = record.predictions, {c["name"]: c["domain"] for c in record.data["clients"]}
    labels, subject = kept.get(f"labels/{domain}"), metrics.first_subject(record.curve)
    if labels is None:
        return None
    found = []
    for number in metrics.scored(record.curve, rule).index:
        start, end = f"predicted/{number}/{subject}/", f"/{domain}"
        named = [name for name in kept if name.startswith(start) and name.endswith(end)]
        nets = [name for name in named if homes.get(name.split("/")[3], domain) == domain]
        if not nets or any(len(kept[name]) != len(labels) for name in nets):
            return None
        found += [kept[name] == labels for name in nets]
    return np.asarray(np.mean(found, axis=0), dtype=np.float64)


def binomial(accuracy: float, images: int) -> float:
    """Variance of an accuracy (0 to 1) over draws of so many test images."""
    return accuracy * (1 - accuracy) / images


def test_images(record: Record) -> dict[str, int]:
    """Number of test images by domain."""
    counts = pd.DataFrame(record.data["counts"])
    found: dict[str, int] = counts[counts.split == "test"].groupby("domain").images.sum().to_dict()
    return found


class Noise:
    """Variances over draws of test images, for runs of one score rule."""

    def __init__(self, rule: str) -> None:
        self._rule = rule
        self._hits: dict[tuple[str, str], Hits | None] = {}
        self._seen: dict[str, tuple[dict[str, float], dict[str, int]]] = {}  # scores, test images

    def variance(self, rows: Sequence[Sequence[Record]], column: str) -> float:
        """Of a row's mean accuracy (0 to 1) over its seeds, or of the difference of two rows'.

        rows: one or two rows, each the runs of its seeds. column: a domain, else their plain mean.
        Two rows are paired image by image where all their runs kept predictions; the variance of a
        mean is what a bootstrap over images tends to. Else the images count as drawn anew for each
        row, which is no smaller where both rows tend to miss the same images.
        """
        data = rows[0][0].data
        domains = [column] if column in data["domains"] else data["domains"]
        return sum(self._of_domain(rows, domain) for domain in domains) / len(domains) ** 2

    def _of_domain(self, rows: Sequence[Sequence[Record]], domain: str) -> float:
        found = [[self._of_run(run, domain) for run in row] for row in rows]
        flat = [shares for row in found for shares in row if shares is not None]
        if len(flat) == sum(map(len, rows)) and len({len(shares) for shares in flat}) == 1:
            means = [np.mean(np.stack([s for s in row if s is not None]), axis=0) for row in found]
            paired = means[0] - means[1] if len(means) > 1 else means[0]
            return float(paired.var(ddof=1)) / len(paired)
        return sum(self._independent(row, domain) for row in rows)

    def _of_run(self, run: Record, domain: str) -> Hits | None:
        key = run.run_id, domain
        if key not in self._hits:
            self._hits[key] = hits(run, self._rule, domain)
        return self._hits[key]

    def _independent(self, row: Sequence[Record], domain: str) -> float:
        for run in row:
            if run.run_id not in self._seen:
                seen = metrics.scores(run.curve, self._rule), test_images(run)
                self._seen[run.run_id] = seen
        scores, images = zip(*(self._seen[run.run_id] for run in row), strict=True)
        return binomial(sum(s[domain] for s in scores) / len(row) / 100, images[0][domain])


def combined(*parts: tuple[float, float]) -> tuple[float, float]:
    """Standard error and degrees of freedom of a sum of independent parts, each a variance of a
    mean with its degrees of freedom (inf where it is known); Welch and Satterthwaite."""
    total = sum(variance for variance, _ in parts)
    shares: list[Any] = [variance**2 / freedom for variance, freedom in parts if freedom]
    below = sum(shares)
    return total**0.5, total**2 / below if below else float("inf")
