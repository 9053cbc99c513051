"""The common protocol's page: the methods of all papers in one order, its intervals, its agreement
with the papers' printed orders, and what was tuned."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from html import escape
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from fedrepro import papers
from fedrepro.base.errors import need
from fedrepro.federated import metrics
from fedrepro.papers import Experiment, Paper, Tuning
from fedrepro.quantities.accuracy import combined
from fedrepro.quantities.base import Study, wide
from fedrepro.report.picture import COLOURS, Picture, label_axes, single
from fedrepro.report.results import Results, run_link
from fedrepro.report.tables import Html, link, linked_table, nothing, styled
from fedrepro.report.text import dataset_name
from fedrepro.report.views import show, undecided

MEAN = "mean"


def ranks(scores: pd.DataFrame) -> pd.DataFrame:
    """Methods, best mean accuracy first: columns mean, rank (ties share the mean rank), low, high,
    lowest, highest. scores: one row per method, seed and column (a domain), with value in percent.

    low, high: what the ranks of all methods lie in at once, with 95 % confidence, were other seeds
    drawn on these domains; lowest, highest: were the domains drawn, too. A method's rank is as low
    as the methods that are surely better allow, and as high as those surely worse do.
    FedReproError: a method has no value for a seed or a domain of another.
    """
    table = scores.pivot(index="method", columns=["seed", "column"], values="value")
    full = pd.MultiIndex.from_product([scores.seed.unique(), scores.column.unique()])
    lost = ", ".join(table.index[table.reindex(columns=full).isna().any(axis=1)])
    mend = "run them with the same seeds"
    need(not lost, f"{lost} have no value for a seed or a domain of others; {mend}")
    seeds, domains = (len(level) for level in full.levels)
    values = table[full].to_numpy(float).reshape(len(table), seeds, domains)
    means = values.mean(axis=(1, 2)).round(9)
    found = {"mean": means, "rank": pd.Series(-means).rank().to_numpy()}
    blocks, lead = [values.mean(axis=2), values.mean(axis=1)], means[:, None] - means
    for low, high, drawn in (("low", "high", 1), ("lowest", "highest", 2)):
        sure = apart(*blocks[:drawn]) + 1e-9
        found[low] = 1 + (lead < -sure).sum(axis=1)
        found[high] = len(means) - (lead > sure).sum(axis=1)
    return pd.DataFrame(found, index=table.index).sort_values("rank", kind="stable")


def apart(*blocks: Any) -> float:
    """How far two methods' means must lie apart to differ, for all pairs at once with 95 %
    confidence: Tukey's range of the differences paired over blocks, their spread pooled over the
    methods. blocks: arrays (methods, seeds) or (methods, domains); of two the variances add, with
    Satterthwaite's degrees of freedom, rounded down. Infinite where a method has one block only."""
    parts, methods = [], len(blocks[0])
    for values in blocks:
        drawn = values.shape[1]
        if not (freedom := (methods - 1) * (drawn - 1)):
            return np.inf if methods > 1 else 0.0
        rest = values - values.mean(axis=0) - values.mean(axis=1, keepdims=True) + values.mean()
        parts.append((float((rest**2).sum()) / freedom / drawn, freedom))
    error, known = combined(*parts)
    return 0.0 if error < 1e-9 else _tukey(methods, int(known + 1e-9)) * error


@cache
def _tukey(methods: int, freedom: int) -> float:
    from scipy.stats import studentized_range  # a second's import, which other pages do not need

    return float(studentized_range.ppf(metrics.CONFIDENCE, methods, freedom))


def printed(paper: Paper, table: str, column: str = "avg") -> dict[str, float]:
    """A printed column by method, for the rows that are one method."""
    experiment = next(e for e in paper.experiments if e.table == table)
    arms = [arm for arm in paper.arm_specs(experiment.id) if not arm.alternative]
    rows, values = Counter(arm.method for arm in arms), paper.table(table).values(column)
    return {a.method: values[a.label] for a in arms if rows[a.method] == 1 and a.label in values}


def compared(experiment: Experiment, dataset: str, ours: Mapping[str, float]) -> pd.DataFrame:
    """Kendall's tau-b and its two-sided p of our order and each paper's, for the methods in both:
    one row per table in `experiment.compared`. ours: mean accuracy by method."""
    from scipy.stats import kendalltau

    rows = []
    for name, table, column in experiment.compared.get(dataset, ()):
        paper = papers.load(name)
        theirs = printed(paper, table, column)
        both = [method for method in ours if method in theirs]
        mine, other = ([source[m] for m in both] for source in (ours, theirs))
        tau, p = kendalltau(mine, other) if len(both) > 1 else (np.nan, np.nan)
        rows.append(
            {"paper": paper.short, "table": table, "methods": len(both), "tau": tau, "p": p}
            | {"best here": max(both, key=ours.__getitem__, default="")}
            | {"best there": max(both, key=theirs.__getitem__, default="")}
        )
    return pd.DataFrame(rows)


def datasets(found: Results, experiment: str) -> list[str]:
    """The data sets with runs of an experiment, in the protocol's order."""
    shown = found.datasets(experiment)
    return [name for name in found.paper.datasets if name in shown]


def scores(found: Results, experiment: str, dataset: str) -> tuple[pd.DataFrame, list[str]]:
    """Accuracy in percent: method, seed, column (a domain), value, standin. Second: the methods
    with a diverged seed, which are left out."""
    frame = pd.DataFrame(found.of_one_scale(dataset, experiment).cells(experiment))
    frame = frame[frame.column != "avg"][["method", "seed", "column", "value", "standin"]]
    diverged = list(frame[frame.value.isna()].method.unique())
    return frame[~frame.method.isin(diverged)], diverged


def table(found: Results, experiment: str, dataset: str) -> pd.DataFrame:
    """One row per method, best first: rank with its intervals, mean, spread over seeds, mean and
    rank without a stand-in, if there is one, each domain. Diverged methods come last, unranked."""
    frame, diverged = scores(found, experiment, dataset)
    order = ranks(frame)
    domains = frame.pivot_table(index="method", columns="column", values="value", sort=False)
    seeds = frame.groupby(["method", "seed"]).value.mean().groupby("method").std()
    shown = order[["rank"]].copy()
    shown["other seeds"] = [f"{a:g} to {b:g}" for a, b in order[["low", "high"]].values]
    wider = order[["lowest", "highest"]].values
    shown["other domains too"] = [f"{a:g} to {b:g}" for a, b in wider]
    shown[MEAN], shown["std over seeds"] = order["mean"].round(1), seeds.round(1)
    standins = frame.standin.astype(bool)
    if standins.any():
        rest = ranks(frame[~standins])
        shown["mean without stand-in"], shown["its rank"] = rest["mean"].round(1), rest["rank"]
    shown = shown.join(domains.round(1)).reindex([*order.index, *diverged])
    shown = shown.rename_axis(index="method", columns=dataset_name(dataset))
    shown.loc[diverged, "other seeds"] = "diverged"
    return shown


def linked(found: Results, experiment: str, dataset: str) -> Html:
    """The same as a page shows it: each accuracy leads to the runs it is the mean of."""
    here, label = found.of_one_scale(dataset, experiment), f"{experiment} on {dataset}"
    pages = {
        (method, MEAN if column == "avg" else column): page
        for (*_, method, column), page in here.links(experiment).items()
    }
    shown = linked_table(table(found, experiment, dataset), pages, label)
    return Html(undecided(here, experiment) + shown.html, label)


def overall(found: Results, experiment: str) -> pd.DataFrame | Html:
    """Mean rank over the data sets, best first, and the rank on each."""
    if not (names := datasets(found, experiment)):
        return nothing()
    frame = pd.DataFrame(
        {dataset_name(d): ranks(scores(found, experiment, d)[0])["rank"] for d in names}
    )
    frame.insert(0, "mean rank", frame.mean(axis=1, skipna=False).round(2))
    return frame.sort_values("mean rank", kind="stable").rename_axis("method")


def in_short(found: Results, experiment: str, page: str) -> str:
    """The order over all data sets in Markdown: the three best, then the five papers' own methods
    and FedAvg. Nothing without runs. page: the address of the common protocol's page, which ranks
    the methods that are not in this order."""
    order = overall(found, experiment)
    if isinstance(order, Html):
        return ""
    place = order["mean rank"].dropna()
    own = [*(papers.load(name).short for name in papers.names()), "FedAvg"]
    scale = "` and `".join({study.scale for study in found.holding(experiment)})
    first, rest = (
        ", ".join(f"{name} {rank:.1f}" for name, rank in some.items())
        for some in (place.head(3), place[place.index.isin(own)])
    )
    others = [name for name in own if name not in order.index]
    apart = f" ({', '.join(others)}: not in this order)" * bool(others)
    return (
        f'**<a href="{page}">One protocol for {len(place)} methods</a>**, scale `{scale}`: the '
        f"mean rank over {len(order.columns) - 1} data sets, where 1 is best. First are {first}; "
        f"on a data set with other domains nearly every rank is possible. "
        f"The papers' own methods and FedAvg: {rest}{apart}. {_unready(found, experiment)}\n"
    )


def cautioned(found: Results, experiment: str) -> Html:
    """How many rows decide nothing, in two sentences."""
    said = f"{_unready(found, experiment)} Each data set's table below names its own."
    return Html(f"<p>{said}</p>", said) if datasets(found, experiment) else nothing()


def _unready(found: Results, experiment: str) -> str:
    every, unready = 0, 0
    for dataset in datasets(found, experiment):
        here = found.of_one_scale(dataset, experiment)
        every += len({one.label for *_, one in here.runs(experiment)})
        rows = (by.get(dataset, ()) for by in (here.rising(experiment), here.past(experiment)))
        unready += len(set().union(*rows))
    said = f"{unready} of {every} rows still rise when their runs end, or have earlier settings. "
    return said + "A rank that rests on them decides nothing."


def agreement(found: Results, experiment: str) -> pd.DataFrame | Html:
    """Kendall's tau of our order and each paper's own: one row per printed table."""
    rows = {}
    for dataset in datasets(found, experiment):
        mean = ranks(scores(found, experiment, dataset)[0])["mean"].to_dict()
        frame = compared(found.paper.experiment(experiment), dataset, mean)
        if not frame.empty:
            rows[dataset_name(dataset)] = frame
    if not rows:
        return nothing()
    frame = pd.concat(rows, names=["data set", None]).reset_index("data set")
    return frame.round({"tau": 2, "p": 2}).set_index(["data set", "paper", "table"])


# Tuning. A trial's name is its rate, as in "0.1", or its rate and own constant: "0.1, mu 10.0".

OWN = "own constant"


def budget(found: Results) -> Html:
    """What the protocol asks on each data set with runs, and how these runs differ from it."""
    rows: dict[str, dict[str, object]] = {}
    for name, tuning in [(e.id, e.tuning) for e in found.paper.experiments if e.tuning]:
        for dataset in datasets(found, name):
            rows.setdefault(dataset_name(dataset), _asked(found, name, tuning, dataset))
    if not rows:
        return nothing()
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis(columns="data set")
    label = "what the protocol asks, and what these runs differ in"
    return Html(styled(frame.map(lambda v: escape(str(v))), "dataframe wrapped", label), label)


def _asked(found: Results, name: str, tuning: Tuning, dataset: str) -> dict[str, object]:
    here = found.of_one_scale(dataset, name)
    protocol = found.paper.protocol(dataset, here.studies[0][0].scale)
    arms = found.paper.arms(name, dataset, protocol.scale)
    values = [str(value) for value in tuning.values[protocol.scale]]
    own = sum(any(arm.constants("")) for arm in arms)
    tries = {value: 0.0 for one in _tried(found, name, dataset).values() for value in one}
    past = here.past(name).get(dataset, [])
    differs = [
        f"rates: only {', '.join(_rates(tries))}" * (not set(values) <= set(tries)),
        "no own constant" * (own > 0 and len(_rates(tries)) == len(tries)),
        f"earlier settings: {len(past)} of {len(arms)} rows" * bool(past),
    ]
    return {
        "these runs": "; ".join(filter(None, differs)) or "as asked",
        "rounds": protocol.rounds,
        "local epochs": protocol.local_epochs,
        "images per client": protocol.data.allocation.per_client,
        "learning rates": ", ".join(values),
        "rounds of a trial": tuning.rounds.get(protocol.scale, protocol.rounds),
        "rows with an own constant": f"{own} of {len(arms)}",
    }


def _tried(found: Results, experiment: str, dataset: str) -> dict[str, dict[str, float]]:
    """By row: the validation accuracy of each trial, in percent."""
    rows: dict[str, dict[str, float]] = {}
    for *_, result in found.of_one_scale(dataset, experiment).runs(experiment):
        if result.label not in rows and (tries := result.tries):
            rows[result.label] = tries
    return rows


def chosen(found: Results, experiment: str, dataset: str) -> pd.DataFrame | Html:
    """Each row's learning rate and own constant, and its trials' validation accuracy in percent."""
    rows: dict[str, dict[str, object]] = {}
    for label, tries in _tried(found, experiment, dataset).items():
        best = metrics.best_value(tries)
        edge = f" ({word})" if (word := _edge(tries)) else ""
        rows[label] = {"chosen": best.partition(", ")[0] + edge}
        rows[label] |= {rate: round(tries[rate], 1) for rate in _rates(tries)}
        if own := _constants(tries):
            constant = own[best].partition(": ")[0] if best in own else "the paper's"
            rows[label] |= {OWN: "; ".join(own.values()), "chosen constant": constant}
    if not rows:
        return nothing()
    frame = pd.DataFrame.from_dict(rows, orient="index").astype(object)
    frame = frame.where(frame.notna(), "")
    return frame.rename_axis(index="method", columns=dataset_name(dataset))


def tuned(found: Results, experiment: str, dataset: str) -> Html:
    """The same as a page shows it: an accuracy leads to its trial, the choice to the row's runs."""
    shown, here = chosen(found, experiment, dataset), found.of_one_scale(dataset, experiment)
    if isinstance(shown, Html):
        return shown
    ran = here.links(experiment).items()
    pages = {(row, "chosen"): page for (*_, row, column), page in ran if column == "avg"}
    for *_, result in here.runs(experiment):
        trials = {value: run_link(trial.run_id) for value, trial in result.trials.items()}
        pages |= {(result.label, value): page for value, page in trials.items()}
        if own := _constants(result.tries):
            texts = [link(text, trials[name]) for name, text in own.items()]
            shown.loc[result.label, OWN] = Html("; ".join(texts), "")
    said = f"Trials of {experiment} on {dataset_name(dataset)}: validation accuracy (%)"
    return linked_table(shown, pages, said, said)


def _rates(tries: Mapping[str, float]) -> list[str]:
    return [name for name in tries if ", " not in name]


def _constants(tries: Mapping[str, float]) -> dict[str, str]:
    """The trials of an own constant, each as a text: ``mu 10: 61.2``."""
    found = {}
    for name in (name for name in tries if ", " in name):  # in their order
        constant, _, value = name.partition(", ")[2].rpartition(" ")
        found[name] = f"{constant} {float(value):g}: {tries[name]:.1f}"
    return found


def _edge(tries: Mapping[str, float]) -> str:
    """``smallest`` or ``largest``, if the chosen rate is that of several."""
    best, rates = metrics.best_value(tries).partition(", ")[0], sorted(_rates(tries), key=float)
    return {rates[-1]: "largest", rates[0]: "smallest"}.get(best, "") if len(rates) > 1 else ""


def edges(found: Results) -> Html:
    """How many of the chosen rates are the smallest or largest tried, in one sentence."""
    every = {
        (dataset, label, *tries.items()): tries  # two tables may have the same trials
        for experiment in found.paper.experiments
        for dataset in datasets(found, experiment.id)
        for label, tries in _tried(found, experiment.id, dataset).items()
    }
    if not every:
        return nothing()
    on_edge = [tries for tries in every.values() if _edge(tries)]
    forced = sum(len(_rates(tries)) == 2 for tries in on_edge)
    said = f"{len(on_edge)} of {len(every)} choices are the smallest or largest rate tried"
    said += f"; {forced} of these had only two rates, so that no other was possible" * bool(forced)
    return Html(f"<p>{said}.</p>", said)


def figure(found: Results, experiment: str, dataset: str) -> Picture:
    """Ranks with their intervals, methods downwards."""
    order = ranks(scores(found, experiment, dataset)[0])
    figure, ax = single(0.9 + 0.27 * len(order))
    places = range(len(order))
    ax.hlines(places, order.lowest, order.highest, color=COLOURS[0], linewidth=2, alpha=0.3)
    ax.hlines(places, order.low, order.high, color=COLOURS[0], linewidth=5, alpha=0.5)
    ax.plot(order["rank"], places, "o", color=COLOURS[0])
    ax.set_yticks(places, order.index)
    ax.set_ylim(len(order) - 0.5, -0.5)
    ax.set_xlim(0.5, len(order) + 0.5)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    name = dataset_name(dataset)
    label_axes(ax, "rank (1 is best)", "", name, grid="both")
    said = "Thick bars: if only the seeds were others; thin bars: if the domains were others, too"
    figure.caption = f"Ranks ({experiment}), with 95 % intervals for all at once. {said}"
    return figure


def show_each(found: Results, experiment: str, view: Callable[..., Any]) -> None:
    """A view for every data set with runs; one line if none has any."""
    names = datasets(found, experiment)
    show([view(found, experiment, name) for name in names] or [nothing()])


def one_seed(study: Study, experiment: str) -> pd.DataFrame:
    """Accuracy in percent: one row per method, best mean first."""
    rows = wide(study.cells(experiment)).rename_axis("method")
    return rows.sort_values("avg", ascending=False, kind="stable").round(1)
