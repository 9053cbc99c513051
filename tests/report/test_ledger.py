"""The ledger shows what files and records say of text, code and runs, whole and nothing else."""

import pytest

from fedrepro import papers
from fedrepro.base.protocol import sides
from fedrepro.papers.schema import Setting
from fedrepro.report.ledger import HEAD, ledger, own_training
from fedrepro.report.results import Results, recorded
from tests.report.test_tables import rows_of

WORDS = "paper, Sec. 5.1, not stated; FedPall code: 9; inferred: it fits; project decision"


def rows(found: Results) -> dict[str, list[str]]:
    head, *rest = rows_of(ledger(found).html)
    assert head == list(HEAD)
    return {row[0]: row[1:] for row in rest}


def test_a_source_stands_on_the_side_of_its_status():
    said = {"text": "Sec. 5.1: 8:2", "code": "FedBN code: 80/20", "settled": ""}
    found = sides("code", said["code"], text=said["text"])
    assert found == {"source": "Sec. 5.1: 8:2; FedBN code: 80/20", **said}
    assert sides("stated", "Sec. 5.1", code="128")["text"] == "Sec. 5.1"
    assert sides("inferred", "it fits", text="T", code="C")["source"] == "T; it fits; C"


@pytest.mark.parametrize(
    ("fields", "row"),
    [
        ({"status": "stated"}, None),
        ({"status": "stated", "code": "64"}, [WORDS, "64", "9", "stated"]),
        ({"status": "code", "text": "T"}, ["T", WORDS, "9", "code"]),
        ({"status": "decided", "text": "T"}, ["T", "–", "9", f"{WORDS} (decided)"]),
        ({"status": "inferred"}, ["–", "–", "9", f"{WORDS} (inferred)"]),
    ],
)
def test_fields_decide_and_no_words_of_a_source(fields, row, monkeypatch):
    found = recorded("fedpall").where(dataset="office10")
    made = Setting(value=9, source=WORDS, **fields)
    base = {**found.paper.protocols["office10"], "batch_size": made}
    paper = found.paper.model_copy(update={"protocols": {"office10": base}})
    monkeypatch.setattr(Results, "paper", property(lambda self: paper))
    assert rows(found).get("batch_size") == row


def test_text_code_and_runs_stand_side_by_side():
    found = rows(recorded("fedpall"))
    assert found["FedPall.mu (digits5-standin)"] == [
        "paper, Sec. 5.1: 0.7, the two weights exchanged", "FedPall code", "0.3 (or 0.7)", "code",
    ]  # fmt: skip
    assert found["data: svhn"][2].startswith("SVHN: first 10,000 official test images only")
    assert found["scale reduced"][2] == papers.load("fedpall").scales["reduced"].reason


@pytest.mark.parametrize("name", papers.names())
def test_no_setting_that_the_text_leaves_open_is_missing(name):
    found = recorded(name)
    shown = {setting.partition(" (")[0] for setting in rows(found)}
    settings, left_open = set[str](), set[str]()
    for dataset in {study.dataset for study, _ in found.studies}:
        sources = found.paper.sources(dataset)
        sources = sources[sources.setting != "data.dataset"]
        code = sources.source.str.contains("code|authors|PFLlib|FL-bench|MarsFL")
        settings |= set(sources.setting)
        left_open |= set(sources.setting[code | (sources.status != "stated")])
    assert left_open <= shown and settings - left_open and not (settings - left_open) & shown


def test_rows_that_train_in_another_way_are_listed():
    listed = own_training("fedapc", "office10").loc["table-1-office10"]
    assert listed.rounds.tolist() == ["100", "150", "240"]
    assert set(listed["local epochs"]) == {"10"}
    assert listed.rows.tolist() == ["FedAvg, MOON", "FedProto", "FedAPC"]
    assert own_training("i2pfl", "office10").empty
