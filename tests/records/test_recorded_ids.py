"""Recorded runs are still found: settings and fields that came later leave their ids alone."""

from pathlib import Path

import pytest

from fedrepro import methods
from fedrepro.base.protocol import Protocol
from fedrepro.records import RunSpec
from fedrepro.records.packed import Pack, check
from fedrepro.records.record import run_id

RECORDED = Pack(Path(__file__).resolve().parents[2] / "book" / "records")


def test_the_packed_records_are_whole():
    assert len(RECORDED.runs) > 1000
    assert check(RECORDED.root) == []


@pytest.mark.parametrize("file", sorted({line["file"] for line in RECORDED.runs.values()}))
def test_recorded_runs_have_their_ids(file):
    """Worked out anew from the method and the protocol as they are defined today."""
    moved = []
    for run, line in RECORDED.runs.items():
        if line["file"] == file:
            config = RECORDED.config(run)
            method = methods.create(config["method"]["name"], **config["method"]["fields"])
            protocol = Protocol.model_validate(config["protocol"])
            spec = RunSpec(method, protocol, config["seed"], config["engine"])
            if run_id(spec.config(), RECORDED.facts(run, "data")["hashes"]) != run:
                moved.append(run)
    assert moved == []
