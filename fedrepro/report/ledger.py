"""A paper's settings and their sources, and the ledger: the points where its text, public code and
our runs differ or may differ. Both only from its file, the methods' fields and the records."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from html import escape

import pandas as pd

from fedrepro import methods as registry
from fedrepro import papers
from fedrepro.base.protocol import Protocol
from fedrepro.papers.paper import as_text
from fedrepro.report.results import Results
from fedrepro.report.tables import Html, prose, styled

HEAD = ("setting", "the paper’s text", "public code", "what we run", "where it is settled")
STATUSES = ("decided", "inferred", "code", "stated")  # our own decisions first
TRAINING = ("rounds", "local epochs", "learning rate")
Row = tuple[str, str, str, str, str]
Cells = tuple[str, str, str, str]  # of a row, without the setting


def ledger(found: Results) -> Html:
    """For the data sets and methods that were run: the scale, facts about the data, and settings
    that the text does not decide, or of which public code says something."""
    rows = [*_data(found), *_settings(found)]
    return prose(HEAD, rows, f"ledger of {found.paper.short}", "ledger")


def _data(found: Results) -> Iterator[Row]:
    paper = found.paper
    for scale in dict.fromkeys(study.scale for study, _ in found.studies):
        if spec := {str(name): spec for name, spec in paper.scales.items()}.get(scale):
            yield f"scale {scale}", "–", "–", spec.reason, "decided"
    for dataset in dict.fromkeys(study.dataset for study, _ in found.studies):
        if caveat := paper.dataset(dataset).caveat:
            yield f"data set {dataset}", "–", "–", caveat, "decided"
    clauses: dict[str, dict[str, None]] = {}  # and the domains they are of
    for *_, result in found.runs():
        for domain, said in result.record.data["deviations"].items():
            for clause in said:
                clauses.setdefault(clause.removeprefix(f"{domain}: "), {})[domain] = None
    for clause, domains in clauses.items():
        yield f"data: {', '.join(domains)}", "–", "–", clause, "recorded with the runs"


def _settings(found: Results) -> list[Row]:
    paper = found.paper
    specs = [spec for name in found.experiments for spec in paper.arm_specs(name)]
    methods = dict.fromkeys(spec.method for spec in specs)
    datasets = dict.fromkeys(study.dataset for study, _ in found.studies)
    on: dict[tuple[str, str, Cells], list[str]] = {}  # the data sets of each row
    for dataset in datasets:
        given = {row["setting"]: row for row in paper.sources(dataset).to_dict("records")}
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
    """Every setting with its source; then the fields of each method, where the paper's own setting
    goes before the field's default. sources: from `Paper.sources`."""
    wanted = ["setting", "value", "status", "source", "alternatives"]
    given = {row[0]: row[1:] for row in sources[wanted].astype(str).itertuples(index=False)}
    known = tuple(f"{name}." for name in registry.names())
    names = {"data": "data", "report": "reporting"}
    rows: dict[tuple[str, str], tuple[str, ...]] = {}
    for setting, rest in given.items():
        head, _, tail = setting.partition(".")
        if not setting.startswith(known):
            rows[names.get(head, "training"), tail if head in names else setting] = rest
    groups = ("data", "training", "reporting")
    rows = dict(sorted(rows.items(), key=lambda row: groups.index(row[0][0])))
    for key, own in fields(methods).items():
        name, _, field = key.rpartition(".")
        rows[name, field] = given.get(key) or tuple(own[column] for column in wanted[1:])
    frame = pd.DataFrame([[escape(text) for text in row] for row in rows.values()])
    frame.index = pd.MultiIndex.from_tuples([(g, f"<code>{escape(s)}</code>") for g, s in rows])
    frame.columns = pd.Index(wanted[1:], name="setting")
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
    whole = pd.DataFrame(found)
    return whole[whole.nunique(axis=1) > 1]


def own_training(paper: str, dataset: str) -> pd.DataFrame:
    """The rows that train in another way at scale reduced than `scales` says."""
    one, own = papers.load(paper), defaultdict(list)
    tables = [e for e in one.experiments if e.arms and e.can_run]
    for table in (e for e in tables if dataset in one.datasets_for(e.id)):
        usual = _training(one.protocol(dataset, "reduced", table.id))
        for arm in one.arms(table.id, dataset, "reduced"):
            if (training := _training(arm.protocol)) != usual:
                own[table.id, *training].append(arm.label)
    every = {e.id: len(e.arms) for e in tables}
    rows = [
        (*key, "all" if len(labels) == every[key[0]] else ", ".join(labels))
        for key, labels in own.items()
    ]
    return pd.DataFrame(rows, columns=["table", *TRAINING, "rows"]).set_index("table")


def _training(protocol: Protocol) -> tuple[str, ...]:
    return (*map(as_text, (protocol.rounds, protocol.local_epochs, protocol.optimizer.lr)),)
