"""I2PFL's and FedAPC's protocols, their sources, and the arms of their experiments."""

from __future__ import annotations

import pytest

from fedrepro import methods, papers
from fedrepro.base.progress import Silent
from fedrepro.quantities.paper_run import study

I2PFL, FEDAPC = papers.load("i2pfl"), papers.load("fedapc")
SCALES = ("smoke", "reduced", "paper")
EVERY = [
    (paper.name, experiment.id, dataset, scale)
    for paper in (I2PFL, FEDAPC)
    for experiment in paper.experiments
    if experiment.state == "runs" and experiment.kind not in papers.UNTRAINED
    for dataset in paper.datasets_for(experiment.id)
    for scale in SCALES
]


@pytest.mark.parametrize(
    ("name", "left"),
    [("i2pfl", {"figure-1", "figure-2", "table-1"}), ("fedapc", {"figure-1", "figure-2"})],
)
def test_all_runs_but_drawings_and_words(name: str, left: set[str]) -> None:
    states = {e.id: e.state for e in papers.load(name).experiments}
    assert {key for key, state in states.items() if state != "runs"} == left
    assert {states[key] for key in left} == {"blocked"}


@pytest.mark.parametrize(("name", "experiment", "dataset", "scale"), EVERY)
def test_every_arm_is_a_valid_run(name: str, experiment: str, dataset: str, scale: str) -> None:
    arms = papers.load(name).arms(experiment, dataset, scale)
    assert arms and len({arm.label for arm in arms}) == len(arms)
    for arm in arms:
        assert arm.protocol.scale == scale
        assert methods.create(arm.method, **arm.fields).name == arm.method


def test_arms_are_the_rows_of_the_printed_tables() -> None:
    for paper in (I2PFL, FEDAPC):
        for experiment in paper.experiments:
            if experiment.state == "runs" and experiment.kind == "accuracy":
                labels = [arm.label for arm in paper.arms(experiment.id) if not arm.alternative]
                assert labels == list(paper.table(experiment.id).methods)


def test_protocols_at_paper_scale() -> None:
    digits, pacs = I2PFL.protocol("digits4"), I2PFL.protocol("pacs-leaky")
    assert (digits.model, digits.rounds, digits.local_epochs) == ("resnet10", 100, 10)
    assert sum(digits.data.allocation.clients.values()) == 20
    assert (pacs.model, pacs.batch_size, pacs.data.size) == ("resnet18", 16, 32)
    assert sum(FEDAPC.protocol("office10").data.allocation.clients.values()) == 8


def test_the_two_versions_of_pacs_differ_in_what_is_tested_alone() -> None:
    clean, leaky = I2PFL.protocol("pacs"), I2PFL.protocol("pacs-leaky")
    assert (clean.data.split, leaky.data.split) == ("official", "official-leaky")
    assert clean.changed(**{"data.split": "official-leaky"}) == leaky


def test_equal_clients_replace_the_table_at_every_scale() -> None:
    for name, dataset, each in (("table-8-digits", "digits4-standin", 5), ("table-9", "pacs", 3)):
        for scale, wanted in (("paper", each), ("reduced", each), ("smoke", 2)):
            for arm in I2PFL.arms(name, dataset, scale):
                assert set(arm.protocol.data.allocation.clients.values()) == {wanted}


def test_baselines_are_those_of_the_code_family() -> None:
    fields = {arm.label: arm.fields for arm in I2PFL.arms("table-4")}
    assert fields["FedProx"]["mu"] == 1e-4 and fields["FedDyn"]["form"] == "inert"
    assert fields["MOON"]["mu"] == 5 and fields["MOON"]["references_in_training_mode"]
    assert fields["FedProto"]["averages_networks"] and fields["FPL"]["temperature"] == 0.02


@pytest.mark.parametrize("paper", [I2PFL, FEDAPC], ids=lambda paper: paper.name)
def test_smoke_runs_are_shared_by_all_tasks(paper: papers.Paper) -> None:
    smoke = [paper.protocol(name, "smoke") for name in paper.datasets]
    assert all(protocol == smoke[0] for protocol in smoke)
    assert smoke[0].data.dataset == "minidigits"


def test_the_clean_split_of_pacs_marks_every_number(tmp_path) -> None:
    for dataset, marked in (("pacs", True), ("pacs-leaky", False)):
        one = study(
            "i2pfl", dataset, "smoke", only=["FedAvg"], runs_dir=tmp_path, progress=Silent()
        )
        marks = [mark for row in one.cells("table-4") for mark in row["marks"]]
        assert any("hold-out" in mark for mark in marks) == marked
