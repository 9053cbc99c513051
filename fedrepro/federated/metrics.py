"""A run's curve, and metrics computed from it: accuracies under a named score rule, rounds and
bytes to a target. A curve is tidy, with the columns `CURVE_COLUMNS`; accuracies are in percent."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from weakref import finalize

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit  # scipy.stats takes a second to import
from torch import Tensor

from fedrepro.base.errors import FedReproError, need, one_of
from fedrepro.base.protocol import EarlyStop

CURVE_COLUMNS = ("round", "measure", "subject", "domain", "split", "value")
Row = tuple[int, str, str, str, str, float]
Made = TypeVar("Made")
SCORE_RULES = "last", "last5", "validation", "best-test"
LAST = 5  # rounds at a run's end that the rule `last5` reads
CONFIDENCE = 0.95
ROUNDING = 1e-9  # means and differences of decimals are not exact in binary


def accuracies(curve: pd.DataFrame, split: str = "test", measure: str = "accuracy") -> pd.DataFrame:
    """Accuracy, or another measure, by round: a column per domain and `avg`, their plain mean. Of
    several subjects, the first. A curve is not to be changed afterwards: tables are kept."""
    return _kept(_by_round, curve, split, measure).copy(deep=False)


_tables: dict[tuple[Any, ...], Any] = {}


def _kept(make: Callable[..., Made], curve: pd.DataFrame, *how: str) -> Made:
    """What `make` makes of a curve, as long as the curve is there: the book asks for each of some
    thousand tables many times."""
    key = make, id(curve), how
    if key not in _tables:
        _tables[key] = make(curve, *how)
        finalize(curve, _tables.pop, key, None)
    made: Made = _tables[key]
    return made


def _by_round(curve: pd.DataFrame, split: str, measure: str) -> pd.DataFrame:
    # In numpy, which takes a tenth of the time.
    columns = {name: curve[name].to_numpy() for name in CURVE_COLUMNS}
    kept = (columns["measure"] == measure) & (columns["split"] == split)
    if kept.any():
        kept &= columns["subject"] == columns["subject"][kept.argmax()]
    rounds, at = np.unique(columns["round"][kept], return_inverse=True)
    of, domains = pd.factorize(columns["domain"][kept])
    values = np.full((len(rounds), len(domains)), np.nan)
    values[at, of] = columns["value"][kept]
    wide = pd.DataFrame(values, pd.Index(rounds, name="round"), list(domains))
    wide["avg"] = wide.mean(axis=1)
    return wide


def late_gain(curve: pd.DataFrame) -> float:
    """Points of mean accuracy that the last quarter of the rounds adds, by a straight line through
    the last half. Below one, a curve counts as flat. 0 for fewer than four rounds."""
    means = accuracies(curve)["avg"]
    late = means[len(means) // 2 :]
    if len(means) < 4:
        return 0.0
    return float(np.polyfit(late.index, late, 1)[0]) * len(means) / 4


def scores(curve: pd.DataFrame, rule: str, table: pd.DataFrame | None = None) -> dict[str, float]:
    """Accuracy of every domain and `avg` under one score rule; or other numbers, as in `scored`."""
    return {str(key): float(value) for key, value in scored(curve, rule, table).mean().items()}


def all_scores(
    curve: pd.DataFrame, protocol: Mapping[str, Any], table: pd.DataFrame | None = None
) -> dict[str, dict[str, float]]:
    """The same under every score rule that has images; by validation only with an early stop or one
    round: packed records keep other runs' losses to three digits, too few to find the best."""
    exact = protocol["early_stop"] or protocol["rounds"] == 1
    has = exact and not accuracies(curve, "validation", "loss").empty
    return {rule: scores(curve, rule, table) for rule in SCORE_RULES if has or rule != "validation"}


def scored(curve: pd.DataFrame, rule: str, table: pd.DataFrame | None = None) -> pd.DataFrame:
    """The rounds of `accuracies`, or of other numbers by round, whose mean is a rule's score."""
    one_of(rule, SCORE_RULES, "score rule")
    tested = accuracies(curve)
    rounds = list(tested.index[-(1 if rule == "last" else LAST) :])
    if rule == "best-test":
        rounds = [best_tested(tested["avg"])]
    elif rule == "validation":
        need(
            not accuracies(curve, "validation", "loss").empty,
            "the run has no validation images; set data.validation or use another score rule",
        )
        rounds = [best_round(curve)]
    return (tested if table is None else table).loc[rounds]


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
    """The 95 % interval of the mean of accuracies in percent (Student's t), within 0 and 100; NaN
    for fewer than two, and for two that are equal."""
    series = pd.Series(values, dtype=float)
    if len(series) == 2 and series.nunique() == 1:  # it would have no width
        return np.nan, np.nan
    low, high = Estimate(series.mean(), series.sem(), len(series) - 1).between()
    return np.clip(low, 0.0, 100.0), np.clip(high, 0.0, 100.0)


def best_tested(mean: "pd.Series[float]") -> int:
    """The round with the highest mean accuracy, the latest of equals."""
    return int(mean.index[mean >= mean.max() - ROUNDING][-1])


def best_value(tries: Mapping[str, float]) -> str:
    """The tried value with the highest mean accuracy, the first of equals."""
    return next(v for v, mean in tries.items() if mean >= max(tries.values()) - ROUNDING)


def validated(curve: pd.DataFrame) -> float:
    """Mean validation accuracy of the last five rounds in percent; settings are chosen by it."""
    table = accuracies(curve, split="validation")
    mend = "set data.validation to a share (0.2); a count is of images that no client has"
    need(not table.empty, f"the run has no validation images to tune by; {mend}")
    return float(table["avg"].tail(5).mean())


def best_round(curve: pd.DataFrame) -> int:
    """The round with the lowest mean validation loss; the last one without validation images."""
    losses = accuracies(curve, "validation", "loss")
    return int(curve["round"].max() if losses.empty else losses["avg"].idxmin())


def client_shares(clients: Sequence[Mapping[str, str]], tested: Mapping[str, int]) -> pd.DataFrame:
    """By client: its domain, and its share of the accuracies of `in_and_out`."""
    domains = [client["domain"] for client in clients]
    size = np.array([tested[domain] / domains.count(domain) for domain in domains])
    names = pd.Index([client["name"] for client in clients], name="name")
    return pd.DataFrame({"domain": domains, "share": size / size.sum()}, names)


def in_and_out(
    curve: pd.DataFrame, clients: Sequence[Mapping[str, str]], tested: Mapping[str, int]
) -> pd.DataFrame:
    """Accuracy of the clients' networks on their own domain (ind) and, as a plain mean, on the
    others (ood), by round, in percent. Both are averaged over clients by their share of their
    domain's test images (tested, or another weight). clients: name and domain of each. MPFT, Eq. 3,
    which the text does not give exactly; the authors' own result files confirm this form."""
    common, own = _kept(_crossed, curve)
    server = common.to_numpy()
    ind, ood = np.zeros(len(common)), np.zeros(len(common))
    for name, domain, share in client_shares(clients, tested)[["domain", "share"]].itertuples():
        values, home = own.get(name, server), common.columns.get_loc(domain)
        ind += share * values[:, home]
        ood += share * np.delete(values, home, axis=1).mean(axis=1)
    return pd.DataFrame({"ind": ind, "ood": ood}, common.index)


def _crossed(curve: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Accuracies by round and domain, and the same of each client's network that was tested."""
    common = accuracies(curve).drop(columns="avg")
    kept = curve[(curve.measure == "cross-accuracy") & (curve.split == "test")]
    tables = kept.pivot(index=["subject", "round"], columns="domain", values="value")
    own = tables.reindex(columns=common.columns).groupby(level="subject")
    return common, {str(n): t.droplevel(0).reindex(common.index).to_numpy() for n, t in own}


def rounds_to_target(accuracy: "pd.Series[float]", target: float) -> int | None:
    """First round whose test accuracy (a column of `accuracies`) reaches the target, else None."""
    reached = accuracy[accuracy >= target - ROUNDING]
    return None if reached.empty else int(reached.index[0])


def traffic(curve: pd.DataFrame) -> pd.DataFrame:
    """Bytes by round and kind, both directions, summed over clients."""
    rows = curve[curve.measure == "bytes"]
    wide = rows.pivot(index="round", columns="subject", values="value").fillna(0.0)
    wide.columns.name = None
    return wide


def seconds(curve: pd.DataFrame) -> "pd.Series[float]":
    """Seconds by phase of the round, summed over rounds."""
    rows = curve[curve.measure == "seconds"]
    return rows.groupby("subject", sort=False)["value"].sum()


def logged(
    number: int, measure: str, values: Mapping[str, float], domain: str = "", split: str = ""
) -> list[Row]:
    """Rows of values by subject. FedReproError: one is not a number."""
    try:
        return [(number, measure, n, domain, split, float(value)) for n, value in values.items()]
    except (TypeError, ValueError, RuntimeError):
        named = ", ".join(values)
        raise FedReproError(f"logged {measure} values must be numbers: {named}") from None


class Test(NamedTuple):
    """One network on one split of a domain. network: ``server`` or a client's name. accuracy: in
    percent. loss: mean cross-entropy. predicted (m,): the class of each image."""

    network: str
    domain: str
    split: str
    accuracy: float
    loss: float
    predicted: Tensor


def test_rows(number: int, subject: str, tests: Iterable[Test]) -> Iterator[Row]:
    """Rows of tests; a domain with several clients' networks has their mean."""
    results: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for test in tests:
        results.setdefault((test.domain, test.split), []).append((test.accuracy, test.loss))
    for place, pairs in results.items():
        accuracy, loss = np.mean(pairs, axis=0)
        yield number, "accuracy", subject, *place, float(accuracy)
        yield number, "loss", subject, *place, float(loss)


class Curve:
    def __init__(self, stop: EarlyStop | None) -> None:
        self.rows: list[Row] = []
        self._stop = stop

    def _means(self, measure: str, split: str) -> "pd.Series[float]":
        read = [row for row in self.rows if row[1] == measure and row[4] == split]
        return _by_round(framed(read), split, measure)["avg"]  # nobody asks again: not kept

    def accuracy(self) -> float:
        """The mean of the last tests."""
        return float(self._means("accuracy", "test").iloc[-1])

    def scored(self) -> set[int]:
        """The rounds that a score rule may read (`scores`), among those done so far."""
        tested, losses = self._means("accuracy", "test"), self._means("loss", "validation")
        best = [] if losses.empty else [int(losses.idxmin())]
        return {*tested.index[-LAST:], best_tested(tested), *best}

    def stopped(self, round: int) -> bool:
        """Whether the early stop ends the run at a round."""
        if self._stop is None or not round:
            return False
        losses = self._means("loss", "validation")
        need(len(losses), "early_stop reads validation images, which no client has; leave it out")
        return bool(round - losses.idxmin() >= self._stop.patience)


def framed(rows: Iterable[Row]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(CURVE_COLUMNS))
