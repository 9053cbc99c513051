"""The points where a paper's text, public code and our runs differ or may differ: one table per
paper, made only from its file, the methods' fields and the records of its runs."""

import re
from collections.abc import Iterator

from fedrepro.report.results import Results
from fedrepro.report.tables import Html, fields, prose

HEAD = ("setting", "the paper’s text", "public code", "what we run", "where it is settled")
STATUSES = ("decided", "inferred", "code", "stated")  # our own decisions first
# A source has clauses, "paper, Sec. 5.1: 8:2; FedBN code: 80/20". The column of each clause:
ARGUED = re.compile(r"(project decision|inferred:|inferred (?!.*\bcode\b))")
CODE = re.compile(r"\b(codes?|authors|PFLlib|FL-bench|MarsFL)\b")
TEXT = re.compile(
    r"^paper\b|\bnot (stated|given|said|in the text)\b|\btext says\b|\bet al\b"
    r"|\b(Sec|App|Alg|Eqs?|Tables?|Fig|Figures?)\b"
)
Row = tuple[str, str, str, str, str]


def ledger(found: Results) -> Html:
    """A table for the data sets and methods that were run: the scale, facts about the data, and
    each setting that the text does not decide, or whose source names code."""
    rows = [*_data(found), *_settings(found)]
    return prose(HEAD, rows, f"ledger of {found.paper.short}", "ledger")


def split(source: str) -> tuple[str, str, str]:
    """A source's clauses on the paper's text, on public code, and the rest, in their order."""
    parts: dict[str, list[str]] = {"text": [], "code": [], "rest": []}
    for clause in source.split("; "):
        kind = "code" if CODE.search(clause) else "text" if TEXT.search(clause) else "rest"
        parts["rest" if ARGUED.match(clause) else kind].append(clause)
    text, code, rest = ("; ".join(clauses) for clauses in parts.values())
    return text, code, rest


def _data(found: Results) -> Iterator[Row]:
    paper = found.paper
    for scale in dict.fromkeys(study.scale for study, _ in found.studies):
        if spec := {str(name): spec for name, spec in paper.scales.items()}.get(scale):
            yield f"scale {scale}", "–", "–", spec.reason, "decided"
    for dataset in dict.fromkeys(study.dataset for study, _ in found.studies):
        if caveat := paper.dataset(dataset).caveat:
            yield f"data set {dataset}", "–", "–", caveat, "decided"
    clauses: dict[str, dict[str, None]] = {}  # and the domains they are of
    for _, result in found.runs():
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
    on: dict[tuple[str, ...], list[str]] = {}  # the data sets of each row
    for dataset in datasets:
        given = {str(name): tuple(rest) for name, *rest in paper.sources(dataset).to_numpy()}
        del given["data.dataset"]
        for setting, facts in (given | fields(methods) | given).items():  # the paper's own first
            on.setdefault((setting, *facts), []).append(dataset)
    rows = []
    for (setting, value, status, source, others), where in on.items():
        text, code, rest = split(source)
        if status == "stated" and not code:
            continue
        name = setting if len(where) == len(datasets) else f"{setting} ({', '.join(where)})"
        run = f"{value} (or {others})" if others else value
        settled = rest if ARGUED.match(rest) else f"{status}: {rest}" if rest else status
        rows.append((STATUSES.index(status), (name, text or "–", code or "–", run, settled)))
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])]
