"""A run's curve, and what is read off it: accuracies under a named score rule, rounds and bytes to
a target. A curve is tidy, with the columns `CURVE_COLUMNS`; accuracies are in percent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit  # scipy.stats takes a second to import

from fedrepro.base.errors import FedReproError, choices
from fedrepro.base.protocol import EarlyStop

ScoreRule = Literal["last", "last5", "validation", "best-test"]
SCORE_RULES: tuple[str, ...] = get_args(ScoreRule)
CONFIDENCE = 0.95
ROUNDING = 1e-9  # means and differences of decimals are not exact in binary


def accuracies(
    curve: pd.DataFrame, split: str = "test", subject: str | None = None
) -> pd.DataFrame:
    """Test accuracy by round: one column a domain and `avg`, their plain mean."""
    return _by_round(curve, "accuracy", split, subject)


def _by_round(
    curve: pd.DataFrame, measure: str, split: str, subject: str | None = None
) -> pd.DataFrame:
    # In numpy, whose comparisons take a tenth of the time: the book asks for thousands of these.
    columns = {name: curve[name].to_numpy() for name in CURVE_COLUMNS}
    kept = (columns["measure"] == measure) & (columns["split"] == split)
    if subject is None and kept.any():
        subject = columns["subject"][kept.argmax()]
    kept &= columns["subject"] == subject
    rounds, at = np.unique(columns["round"][kept], return_inverse=True)
    of, domains = pd.factorize(columns["domain"][kept])
    values = np.full((len(rounds), len(domains)), np.nan)
    values[at, of] = columns["value"][kept]
    wide = pd.DataFrame(values, pd.Index(rounds, name="round"), list(domains))
    wide["avg"] = wide.mean(axis=1)
    return wide


def first_subject(curve: pd.DataFrame) -> str | None:
    """Whose accuracy comes first in a curve: the networks that the method is judged by."""
    rows = curve[(curve.measure == "accuracy") & (curve.split == "test")]
    return str(rows.subject.iloc[0]) if len(rows) else None


def late_gain(curve: pd.DataFrame) -> float:
    """Points of mean accuracy that the last quarter of the rounds adds: under one, a curve counts
    as flat. Read off a straight line through the last half, so that no few rounds decide it. 0 of
    fewer than four rounds."""
    means = accuracies(curve)["avg"]
    late = means[len(means) // 2 :]
    if len(means) < 4:
        return 0.0
    return float(np.polyfit(late.index, late, 1)[0]) * len(means) / 4


def scores(curve: pd.DataFrame, rule: str, subject: str | None = None) -> dict[str, float]:
    """Accuracy of every domain and `avg` under one score rule."""
    return _means(scored(curve, rule, subject))


def all_scores(curve: pd.DataFrame) -> dict[str, dict[str, float]]:
    """The same under every score rule there are images for."""
    table, seen = accuracies(curve), (curve.split == "validation").any()
    rules = (rule for rule in SCORE_RULES if rule != "validation" or seen)
    return {rule: _means(_scored(table, curve, rule)) for rule in rules}


def _means(table: pd.DataFrame) -> dict[str, float]:
    return {str(key): float(value) for key, value in table.mean().items()}


def scored(curve: pd.DataFrame, rule: str, subject: str | None = None) -> pd.DataFrame:
    """The rounds of `accuracies` whose mean a score rule takes."""
    if rule not in SCORE_RULES:
        raise FedReproError(f"no score rule {rule!r}; choose from {choices(rule, SCORE_RULES)}")
    return _scored(accuracies(curve, subject=subject), curve, rule, subject)


def _scored(
    table: pd.DataFrame, curve: pd.DataFrame, rule: str, subject: str | None = None
) -> pd.DataFrame:
    if rule in ("last", "last5"):
        return table.tail(1 if rule == "last" else 5)
    if rule == "best-test":
        return table.loc[[best_tested(table["avg"])]]
    losses = _by_round(curve, "loss", "validation", subject)
    if losses.empty:
        raise FedReproError(
            "the run has no validation images; set data.validation or use another score rule"
        )
    return table.loc[[losses["avg"].idxmin()]]


@dataclass(frozen=True)
class Estimate:
    """A mean, its standard error and the degrees of freedom of that, by which Student's t reads it:
    infinitely many where the error is known, none where it is not."""

    mean: float
    error: float
    freedom: float

    def between(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """The two-sided interval of the mean."""
        half = float(stdtrit(self.freedom, (1 + confidence) / 2)) * self.error
        return self.mean - half, self.mean + half

    def below(self, t: float) -> float:
        """How likely a draw of Student's t is below t."""
        return float(stdtr(self.freedom, t))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of their mean; NaN where there are fewer than two."""
    series = pd.Series(values, dtype=float)
    return Estimate(series.mean(), series.sem(), len(series) - 1).between()


def best_tested(mean: pd.Series[float]) -> int:
    """The round of the highest mean accuracy, the latest of equals."""
    return int(mean.index[mean >= mean.max() - ROUNDING][-1])


def best_value(tries: Mapping[str, float]) -> str:
    """The tried value of the highest mean accuracy, the first of equals."""
    return next(v for v, mean in tries.items() if mean >= max(tries.values()) - ROUNDING)


def validated(curve: pd.DataFrame) -> float:
    """Mean validation accuracy of the last five rounds and all domains, in percent: what a setting
    is chosen by."""
    table = accuracies(curve, split="validation")
    if table.empty:
        raise FedReproError("the run has no validation images to tune by; set data.validation")
    return float(table["avg"].tail(5).mean())


def best_round(curve: pd.DataFrame) -> int:
    """The round of lowest mean validation loss; the last one where nothing was held out."""
    losses = _by_round(curve, "loss", "validation")
    return int(curve["round"].max() if losses.empty else losses["avg"].idxmin())


def in_and_out(
    curve: pd.DataFrame, clients: Sequence[Mapping[str, str]], tested: Mapping[str, int]
) -> pd.DataFrame:
    """Accuracy in and out of the clients' domains by round, in percent: columns ind and ood.

    clients: name and domain of each; tested: test images of a domain, or another weight. A client's
    network is taken on its own domain (ind) and in plain mean over the others (ood); both are
    averaged over clients by their share of their domain's test images. MPFT, Eq. 3, whose exact
    form is lost in the text at hand; the authors' own result files confirm this one.
    """
    sharing = pd.Series([client["domain"] for client in clients]).value_counts()
    common = accuracies(curve)
    crossed = curve[curve.measure == "cross-accuracy"]
    ind, ood, total = 0.0, 0.0, 0.0
    for client in clients:
        table = _by_round(crossed, "cross-accuracy", "test", client["name"])
        table = (common if table.empty else table).drop(columns="avg")
        home, weight = client["domain"], tested[client["domain"]] / sharing[client["domain"]]
        ind = ind + weight * table[home]
        ood = ood + weight * table.drop(columns=home).mean(axis=1)
        total += weight
    return pd.DataFrame({"ind": ind / total, "ood": ood / total})


def rounds_to_target(curve: pd.DataFrame, column: str, target: float) -> int | None:
    """First round whose test accuracy of a domain (or `avg`) reaches the target; None if none."""
    series = accuracies(curve)[column]
    reached = series[series >= target - ROUNDING]
    return None if reached.empty else int(reached.index[0])


def traffic(curve: pd.DataFrame) -> pd.DataFrame:
    """Bytes by round and kind, both directions, summed over clients."""
    rows = curve[curve.measure == "bytes"]
    wide = rows.pivot(index="round", columns="subject", values="value").fillna(0.0)
    wide.columns.name = None
    return wide


def bytes_to_round(curve: pd.DataFrame, round: int, clients: int) -> float:
    """Bytes one client has sent and received up to and including a round."""
    return float(traffic(curve).loc[:round].to_numpy().sum()) / clients


def seconds(curve: pd.DataFrame) -> pd.Series[float]:
    """Seconds by phase of the round, summed over rounds."""
    rows = curve[curve.measure == "seconds"]
    return rows.groupby("subject", sort=False)["value"].sum()


CURVE_COLUMNS = ("round", "measure", "subject", "domain", "split", "value")
LAST = 5  # rounds at a run's end that the rule `last5` reads
Row = tuple[int, str, str, str, str, float]


def logged(number: int, measure: str, values: Mapping[str, float]) -> list[Row]:
    """Rows of what belongs to no domain, by subject."""
    return [(number, measure, name, "", "", float(value)) for name, value in values.items()]


def term_rows(number: int, terms: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """Rows of the loss terms, by client."""
    return [
        (number, "term", term, client, "train", value)
        for client, own in terms.items()
        for term, value in own.items()
    ]


class Curve:
    """The rows of a run. subject: the network whose accuracy counts; watched: whose validation loss
    does, where it is another."""

    def __init__(self, subject: str, stop: EarlyStop | None, watched: str = "") -> None:
        self.rows: list[Row] = []
        self.accuracy = float("nan")  # mean of the last tests
        self._stop = stop
        self._read = {
            (watched or subject, "loss", "validation"): "losses",
            (subject, "accuracy", "test"): "accuracies",
        }
        # Means over domains by round.
        self._means: dict[str, dict[int, float]] = {"losses": {}, "accuracies": {}}

    def add(self, rows: Iterable[Row]) -> None:
        """Rows of further rounds."""
        found: dict[tuple[str, int], list[float]] = {}
        for row in rows:
            self.rows.append(row)
            number, measure, subject, _, split, value = row
            if kind := self._read.get((subject, measure, split)):
                found.setdefault((kind, number), []).append(value)
        for (kind, number), values in found.items():
            self._means[kind][number] = float(np.mean(values))
            if kind == "accuracies":
                self.accuracy = self._means[kind][number]

    def scored(self) -> set[int]:
        """The rounds that a score rule may read (`metrics.scores`), as far as the run has come."""
        accuracies, losses = self._means["accuracies"], self._means["losses"]
        rounds = set(sorted(accuracies)[-LAST:])
        if accuracies:
            highest = max(accuracies.values()) - ROUNDING
            rounds.add(max(r for r, value in accuracies.items() if value >= highest))
        return rounds | ({min(losses, key=losses.__getitem__)} if losses else set())

    def stopped(self, round: int) -> bool:
        """Whether the early stop has come by the end of a round."""
        losses = self._means["losses"]
        if self._stop is None or not losses:
            return False
        return round - min(losses, key=losses.__getitem__) >= self._stop.patience

    def frame(self) -> pd.DataFrame:
        """Everything, tidy."""
        return pd.DataFrame(self.rows, columns=list(CURVE_COLUMNS))
