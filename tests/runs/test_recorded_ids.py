"""Recorded runs are still found: settings and fields that came later leave their ids alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrepro import files, methods
from fedrepro.protocol import Protocol
from fedrepro.runs import RunSpec
from fedrepro.runs.store import run_id

RECORDED = sorted((Path(__file__).resolve().parents[2] / "book" / "runs").glob("*/config.json"))


def test_there_are_recorded_runs() -> None:
    assert len(RECORDED) > 20


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.name)
def test_a_recorded_run_has_its_id(path: Path) -> None:
    """The id is worked out anew from the method and the protocol as they are defined today."""
    config = files.read_json(path)
    hashes = files.read_json(path.with_name("data.json"))["hashes"]
    method = methods.from_config(config["method"])
    protocol = Protocol.model_validate(config["protocol"])
    spec = RunSpec(method, protocol, config["seed"], config["engine"])
    assert run_id(spec.config(), hashes) == path.parent.name
