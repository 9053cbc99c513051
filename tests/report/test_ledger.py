"""The ledger shows what files and records say of text, code and runs, whole and nothing else."""

from __future__ import annotations

import pytest

from fedrepro import methods, papers
from fedrepro.report.ledger import HEAD, fields, ledger, split
from fedrepro.report.results import Results, recorded
from tests.report.test_tables import Reader

PAPERS = [name for name in papers.list() if name != "common"]


def rows(found: Results) -> dict[str, list[str]]:
    reader = Reader(ledger(found).html)
    assert reader.rows[0] == list(HEAD) and reader.open == []
    return {row[0]: row[1:] for row in reader.rows[1:]}


def test_every_clause_of_a_source_stands_in_one_column() -> None:
    sources = {rest[2] for rest in fields(methods.names()).values()}
    for name in PAPERS:
        for dataset in papers.load(name).datasets:
            sources |= set(papers.load(name).sources(dataset).source)
    assert len(sources) > 300
    for source in sources:
        shown = [part for part in split(source) if part]
        assert sorted("; ".join(shown).split("; ")) == sorted(source.split("; "))
    assert split("paper, Sec. 5.1: 8:2; FedBN code: 80/20; the printed sizes agree") == (
        "paper, Sec. 5.1: 8:2", "FedBN code: 80/20", "the printed sizes agree",
    )  # fmt: skip
    argued = "project decision: as Table 2 has it; inferred: FedDAP code's lists fit"
    assert split(argued) == ("", "", argued)


def test_text_code_and_runs_stand_side_by_side() -> None:
    found = rows(recorded("fedpall"))
    assert found["FedPall.mu (digits5-standin)"] == [
        "paper, Sec. 5.1: 0.7, the two weights exchanged", "FedPall code", "0.3 (or 0.7)", "code",
    ]  # fmt: skip
    assert found["data: svhn"][2].startswith("SVHN: first 10,000 official test images only")
    assert found["scale reduced"][2] == papers.load("fedpall").scales["reduced"].reason


@pytest.mark.parametrize("name", PAPERS)
def test_no_setting_that_the_text_leaves_open_is_missing(name: str) -> None:
    found = recorded(name)
    shown = {setting.partition(" (")[0] for setting in rows(found)}
    settings: set[str] = set()
    left_open: set[str] = set()
    for dataset in {study.dataset for study, _ in found.studies}:
        sources = found.paper.sources(dataset)
        sources = sources[sources.setting != "data.dataset"]
        code = sources.source.str.contains("code|authors|PFLlib|FL-bench|MarsFL")
        settings |= set(sources.setting)
        left_open |= set(sources.setting[code | (sources.status != "stated")])
    assert left_open <= shown and settings - left_open and not (settings - left_open) & shown
