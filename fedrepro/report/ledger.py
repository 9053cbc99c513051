"""A paper's settings and their sources; the ledger: the points where its text, public code and our
runs differ or may differ; the recorded runs, their date, machine and data; and what one setting,
the score rule, changes. All only from its file, the methods' fields and the records."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from operator import attrgetter

import pandas as pd
import torch

from fedrepro import methods as registry, papers
from fedrepro.federated import metrics
from fedrepro.papers.paper import as_text
from fedrepro.quantities.base import Result, Study, domain_weights
from fedrepro.records import Record
from fedrepro.records.record import environment
from fedrepro.report import tables as markup
from fedrepro.report.results import Results, recorded, run_link
from fedrepro.report.tables import Html, folded, link, nothing, prose, spread, styled, whole
from fedrepro.report.text import dataset_name
from fedrepro.report.verdicts import beside

HEAD = ("setting", "the paper’s text", "public code", "what we run", "where it is settled")
STATUSES = ("decided", "inferred", "code", "stated")  # our own decisions first
TRAINING = ("rounds", "local epochs", "learning rate")
_training = attrgetter("rounds", "local_epochs", "optimizer.lr")  # of a protocol
RULES = {
    "last": "last round",
    "last5": "mean of the last five",
    "validation": "chosen on validation images",
    "best-test": "best on the test images (optimistic)",
}
READ = {  # by kind: the columns read under each rule, with their head and unit
    "accuracy": {"avg": ("avg (%)", "percent")},
    "in-out": {"ood": ("out of domain", "fraction"), "ind": ("in domain", "fraction")},
}


def ledger(found: Results, scale: str = "paper") -> Html:
    """For the data sets and methods that were run: the scale, facts about the data, and settings
    that the text does not decide, or of which public code says something. scale: of the values."""
    rows = [*_data(found), *_settings(found, scale)]
    return prose(HEAD, rows, f"ledger of {found.paper.short}", "ledger")


def _data(found: Results) -> Iterator[Sequence[str]]:
    paper = found.paper
    reasons: dict[str, str] = {name: spec.reason for name, spec in paper.scales.items()}
    for scale in dict.fromkeys(study.scale for study, _ in found.studies):
        if scale in reasons:
            yield f"scale {scale}", "–", "–", reasons[scale], "decided"
    for dataset in dict.fromkeys(study.dataset for study, _ in found.studies):
        if caveat := paper.dataset(dataset).caveat:
            yield f"data set {dataset}", "–", "–", caveat, "decided"
    by_hand = dict(pair for study, _ in found.studies for pair in study.changes.items())
    for name, value in by_hand.items():
        yield name, "–", "–", as_text(value), "changed by hand"
    clauses: dict[str, dict[str, None]] = {}  # and the domains they are of
    for *_, result in found.runs():
        for domain, said in result.record.data["deviations"].items():
            for clause in said:
                clauses.setdefault(clause.removeprefix(f"{domain}: "), {})[domain] = None
    for clause, domains in clauses.items():
        yield f"data: {', '.join(domains)}", "–", "–", clause, "recorded with the runs"


def _settings(found: Results, scale: str) -> list[Sequence[str]]:
    paper = found.paper
    specs = [spec for name in found.experiments for spec in paper.arm_specs(name)]
    methods = dict.fromkeys(spec.method for spec in specs)
    datasets = dict.fromkeys(study.dataset for study, _ in found.studies)
    on: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}  # the data sets of each row
    for dataset in datasets:
        given = {row["setting"]: row for row in paper.sources(dataset, scale).to_dict("records")}
        del given["data.dataset"]
        for setting, facts in (given | fields(methods) | given).items():  # the paper's own first
            run = facts["value"] + f" (or {facts['alternatives']})" * bool(facts["alternatives"])
            settled = f"{facts['settled']} ({facts['status']})" if facts["settled"] else ""
            row = facts["text"] or "–", facts["code"] or "–", run, settled or facts["status"]
            if facts["status"] != "stated" or facts["code"]:
                on.setdefault((facts["status"], setting, row), []).append(dataset)
    return [
        (setting + f" ({', '.join(where)})" * (len(where) < len(datasets)), *row)
        for (_, setting, row), where in sorted(on.items(), key=lambda p: STATUSES.index(p[0][0]))
    ]


def protocol_table(sources: pd.DataFrame, methods: Iterable[str] = ()) -> Html:
    """Every setting of `Paper.sources`; then the fields of each method, where the paper's own
    setting goes before the field's default."""
    wanted = ["value", "status", "source", "alternatives"]
    given: dict[str, list[str]] = sources.set_index("setting")[wanted].T.to_dict("list")
    names = {"data": "data", "report": "reporting"}
    rows: dict[tuple[str, str], Sequence[str]] = {}
    for setting, rest in given.items():
        head, _, tail = setting.partition(".")
        if head not in registry.names():
            rows[names.get(head, "training"), tail if head in names else setting] = rest
    groups = ("data", "training", "reporting")
    rows = dict(sorted(rows.items(), key=lambda row: groups.index(row[0][0])))
    for key, own in fields(methods).items():
        name, _, field = key.rpartition(".")
        rows[name, field] = given.get(key) or [own[column] for column in wanted]
    frame = pd.DataFrame([[markup.sentence(text) for text in row] for row in rows.values()])
    frame.index = pd.MultiIndex.from_tuples([(g, markup.sentence(f"`{s}`")) for g, s in rows])
    frame.columns = pd.Index(wanted, name="setting")
    title = (
        "Every setting, where its value comes from (stated: in the paper; code: in public code; "
        "inferred: from other facts; decided: by us), and what else it could have been."
    )
    html = styled(frame, "protocol", "Protocol", title)
    return Html(html, f"protocol: {', '.join(dict.fromkeys(group for group, _ in rows))}")


def fields(methods: Iterable[str]) -> dict[str, dict[str, str]]:
    """By ``method.field``: value, status, source with its sides, and alternatives as text."""
    found = {}
    for name in dict.fromkeys(methods):
        for field in registry.get(name).describe():
            others = ", ".join(as_text(other) for other in field["alternatives"])
            own = {"value": as_text(field["default"]), "alternatives": others}
            found[f"{name}.{field['name']}"] = field | own
    return found


def scales(paper: str, dataset: str) -> pd.DataFrame:
    """The settings that differ between the scales of a protocol."""
    one, names = papers.load(paper), ("paper", "reduced", "smoke")
    found = {scale: one.sources(dataset, scale).set_index("setting").value for scale in names}
    whole = pd.DataFrame(found).fillna("not set")
    return whole[whole.nunique(axis=1) > 1]


def own_training(paper: str, dataset: str) -> pd.DataFrame:
    """The rows that train in another way at scale reduced than `scales` says."""
    one, rows = papers.load(paper), []
    tables = [e.id for e in one.experiments if e.arms and e.can_run]
    for table in (name for name in tables if dataset in one.datasets_for(name)):
        arms, labels = one.arms(table, dataset, "reduced"), defaultdict(list)
        for arm in arms:
            labels[_training(arm.protocol)].append(arm.label)
        labels.pop(_training(one.protocol(dataset, "reduced", table)), None)
        for training, own in labels.items():
            names = "all" if len(own) == len(arms) else ", ".join(own)
            rows.append((table, *map(as_text, training), names))
    return pd.DataFrame(rows, columns=["table", *TRAINING, "rows"]).set_index("table")


# What was run.


def whole_protocol() -> Html:
    """Rows and verdicts of each printed table and data set with a run at scale paper."""
    rows = []
    for paper in papers.names():
        found = recorded(paper).where(scale="paper")
        tables = [n for n in found.experiments if found.paper.experiment(n).table]
        for name in filter(found.runs, tables):
            for dataset in found.datasets(name):
                here = found.where(dataset=dataset)
                ran = {result.label for *_, result in here.runs(name)}
                cells = beside(here, name)
                words = cells[cells.verdict != "not run"].verdict.value_counts()
                asked = [s.label for s in found.paper.arm_specs(name) if not s.alternative]
                run = f"{len(ran.intersection(asked))} of {len(asked)}"
                given = ", ".join(f"{count} {word}" for word, count in words.items())
                place = f"{found.paper.short}, {name}", dataset_name(dataset)
                rows.append((*place, run if asked else "second readings", given))
    head = "table", "data set", "rows trained", "cells by verdict"
    return prose(head, rows, f"{len(rows)} tables have runs at scale paper") if rows else nothing()


def _each_run(found: Results) -> dict[tuple[str, str], tuple[Study, Result]]:
    return {(study.paper.name, r.record.run_id): (study, r) for study, _, r in found.runs()}


def executions(found: Results) -> Html:
    """Date, machine, versions and commit: one row per group of runs that share them."""
    rows = []
    for study, result in _each_run(found).values():
        facts = result.record.environment
        row = {
            **{"paper": study.paper.name, "dataset": study.dataset, "scale": study.scale},
            "date": facts["date"][:10],
            "machine": f"{facts['device']}, {facts['threads']} thread",
            "python": facts["python"],
            **{k: facts["packages"][k] for k in ("torch", "torchvision", "numpy")},
        }
        changed = " (changed files)" if facts["dirty"] else ""
        for one in facts.get("before", ()):
            changed += f"; first rounds: {one['device']}, {(one['commit'] or 'unknown')[:10]}"
        rows.append(row | {"commit": (facts["commit"] or "unknown")[:10] + changed})
    if not rows:
        return nothing()
    frame = pd.DataFrame(rows).fillna("none")
    counts = frame.groupby(list(frame.columns), sort=False).size().rename("runs").reset_index()
    return whole(counts, "when and where runs were made", 3)


def hashes(found: Results) -> Html:
    """The hashes of the runs' data, each with the papers whose runs have it."""
    rows = [
        (study.dataset, study.scale, what, value[:16], study.paper.short)
        for study, result in _each_run(found).values()
        for what, value in result.record.data["hashes"].items()
    ]
    if not rows:
        return nothing()
    names = ["dataset", "scale", "what", "sha256"]
    frame = pd.DataFrame(rows, columns=[*names, "papers"]).drop_duplicates()
    shown = frame.groupby(names, sort=False).papers.agg(", ".join).reset_index()
    return whole(shown, "hashes of the data", 3)


def every_run(found: Results) -> Html:
    """Id with a link, method, seed and mean accuracy under all score rules: one row per run."""
    rows = {
        result.record.run_id: {
            "dataset": study.dataset,
            "scale": study.scale,
            "run": result.label,
            "seed": study.seed,
            "rounds": int(result.record.curve["round"].max()),
            **{rule: f"{value:.2f}" for rule, value in _read(result.record, "avg").items()},
        }
        for study, result in _each_run(found).values()
    }
    if not rows:
        return nothing()
    frame = pd.DataFrame.from_dict(rows, orient="index").fillna("–")
    frame = frame.sort_values(["dataset", "scale", "run", "seed"]).map(lambda v: escape(str(v)))
    links = {run: f'<a href="{run_link(run)}">{run}</a>' for run in rows}
    shown = frame.rename(index=links, columns=RULES).rename_axis(columns="run id")
    html = styled(shown, "dataframe", "Every run")
    return Html(folded(f"The list of {len(rows):,} runs", html), "every run")


def this_build() -> pd.DataFrame:
    """Date, versions and commit of the machine that builds the pages."""
    facts = environment(torch.device("cpu"))
    packages = facts.pop("packages")
    shown = pd.Series(facts | packages, name="", dtype=object).dropna().astype(str)
    return shown.to_frame().rename_axis("fact")


# The same runs under each score rule.


def each_rule(found: Results, experiment: str) -> str:
    """A table in `READ` under each score rule, from the same curves: does the order of the methods
    depend on the round that is read? Folded HTML, for each data set and scale with runs, without
    second readings and methods with a diverged seed."""
    read = READ.get(found.paper.experiment(experiment).kind, {})
    cells, shown = found.cells(experiment) if read else [], ""
    for dataset, scale in dict.fromkeys((row["dataset"], row["scale"]) for row in cells):
        here = found.where(dataset=dataset, scale=scale)
        own = here.cells(experiment)
        unfit = {row["method"] for row in own if row["value"] is None or row["alternative"]}
        if fit := [m for m in dict.fromkeys(row["method"] for row in own) if m not in unfit]:
            title = f"The same runs under each score rule ({experiment}, {dataset} {scale})"
            parts = (_by_rule(here, experiment, fit, title, column) for column in read)
            shown += folded(title, "\n".join(parts))
    return shown


def _by_rule(found: Results, experiment: str, methods: list[str], title: str, column: str) -> str:
    runs = [result for *_, result in found.runs(experiment)]
    frame = pd.DataFrame({"method": one.label, **_read(one.record, column)} for one in runs)
    seeds = frame.groupby("method")
    means, stds = seeds.mean().loc[methods], seeds.std().loc[methods]
    means = means.dropna(axis=1)  # a rule needs its images for every method
    ranks, columns = means.round(9).rank(ascending=False), {}
    head, unit = READ[found.paper.experiment(experiment).kind][column]
    for rule in means:
        name = RULES[str(rule)] + ", as above" * (rule == found.paper.rule)
        pairs = zip(means[rule], stds[rule], strict=True)
        columns[name, head] = [spread(mean, std, unit) for mean, std in pairs]
        columns[name, "rank"] = [f"{rank:g}" for rank in ranks[rule]]
    pages = {method: page for (*_, method, _), page in found.links(experiment).items()}
    names = [link(escape(method), pages.get(method)) for method in methods]
    shown = pd.DataFrame(columns, index=names)
    shown.columns = pd.MultiIndex.from_tuples(columns, names=[None, markup.head_of(methods)])
    caption = "Mean and deviation over the seeds, and rank (1 is best). Small gaps may be chance."
    table = styled(shown, "dataframe rules", f"{title}: {head}", caption)
    return f"<p>{escape(_moved(ranks))}</p>\n{table}"


def _read(record: Record, column: str) -> dict[str, float]:
    """One column of a run, under each score rule."""
    curve, table = record.curve, None
    if column != "avg":
        table = metrics.in_and_out(curve, record.data["clients"], domain_weights(record)) / 100
    found = metrics.all_scores(curve, record.config["protocol"], table)
    return {rule: score[column] for rule, score in found.items()}


def _moved(ranks: pd.DataFrame) -> str:
    """A sentence on how the rules change the order. ranks: methods downwards, rules across."""
    if len(ranks) < 2:
        return "One method has no order."
    firsts: dict[str, list[str]] = {}
    for rule in ranks:
        first = ranks.index[ranks[rule] == ranks[rule].min()]
        firsts.setdefault(" and ".join(map(str, first)), []).append(RULES[str(rule)])
    text = f"The rule does not change who is first: {next(iter(firsts))}."
    if len(firsts) > 1:
        each = "; ".join(f"{who} ({', '.join(rules)})" for who, rules in firsts.items())
        text = f"Who is first depends on the rule: {each}."
    moved = ranks.max(axis=1) - ranks.min(axis=1)
    if not moved.any():
        return f"{text} No rank changes."
    return f"{text} {(moved > 0).sum()} of {len(ranks)} ranks change, by {moved.max():g} at most."
