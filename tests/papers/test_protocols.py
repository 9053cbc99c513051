"""The papers' protocols, the sources of their values, and the arms of their experiments."""

from collections.abc import Iterator
from itertools import product
from typing import Any, get_args

import pytest

from fedrepro import methods, papers
from fedrepro.base.errors import FedReproError
from fedrepro.base.protocol import Scale
from fedrepro.papers import Arm, Paper, Question, known_methods, written
from fedrepro.quantities.base import get

SCALES = get_args(Scale)
NAMES = [*papers.names(), papers.COMMON]
ADCOL, FEDAPC, FEDPALL, I2PFL, MPFT = map(papers.load, papers.names())


def leaves(raw: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of a nested mapping; an empty mapping is a leaf."""
    for key, value in raw.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def by_label(paper: Paper, *args: str) -> dict[str, Arm]:
    return {arm.label: arm for arm in paper.arms(*args)}


@pytest.mark.parametrize("name", NAMES)
def test_every_arm_is_a_valid_run_and_a_row_of_its_printed_table(name):
    paper = papers.load(name)
    for experiment in (one for one in paper.experiments if one.can_run):
        for dataset, scale in product(paper.datasets_for(experiment.id), SCALES):
            arms = paper.arms(experiment.id, dataset, scale)
            assert len({arm.label for arm in arms}) == len(arms)
            for arm in arms:
                assert arm.protocol.scale == scale
                assert methods.create(arm.method, **arm.fields).name == arm.method
        assert get(experiment.kind).values
        rows = {arm.row for arm in paper.arms(experiment.id) if not arm.alternative}
        if not (rows and experiment.table and get(experiment.kind).per_arm):
            continue
        printed = set(paper.table(experiment.table).rows)
        assert printed <= rows, experiment.id
        # The text at hand lost ADCOL's rows of Table 2.
        lost = {"ADCOL"} if name == "adcol" and experiment.id.startswith("table-2") else set()
        assert rows - printed <= lost, experiment.id


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_in_effect_has_its_value_and_a_source_and_smoke_is_tiny(name):
    paper = papers.load(name)
    for dataset, scale in product(paper.datasets, SCALES):
        protocol = paper.protocol(dataset, scale)
        if scale == "smoke":
            own = dataset.startswith("folder")  # for which nothing stands in
            assert protocol.data.dataset == ("folder" if own else "minidigits")
            assert protocol.rounds <= 5
        sources = paper.sources(dataset, scale).set_index("setting")
        assert sources.index.is_unique and (sources.source.str.len() >= 5).all()
        for key, value in leaves(protocol.model_dump()):
            inside = [s for s in sources.index if key.startswith(f"{s}.")]
            if value in (None, {}) or key == "scale" or inside:
                continue
            text = ("yes" if value else "no") if isinstance(value, bool) else str(value)
            if isinstance(value, float):
                text = f"{value:g}"
            assert sources.value[key] == text, (dataset, scale, key)


def test_method_settings_by_data_set():
    for base, name, weights, epochs in (
        ("digits5", "table-1-digits", (0.3, 0.7), 1),
        ("office10", "table-1-office10", (0.1, 0.1), 3),
        ("pacs", "table-1-pacs", (0.1, 0.1), 3),
    ):
        arms = by_label(FEDPALL, name)
        fields = arms["FedPall"].fields
        assert (fields["mu"], fields["delta"]) == weights and fields["server_epochs"] == epochs
        other = arms["ADCOL"].fields
        assert (other["mu"], other["discriminator_epochs"]) == (weights[0], epochs)
        listed = FEDPALL.sources(base).set_index("setting").value
        assert listed["FedPall.mu"] == f"{weights[0]:g}"
    # The embedded digits stand in for each experiment's own data.
    for name, mu, rotate in (("table-1-office10", 0.1, 30.0), ("table-1-digits", 0.3, 0.0)):
        arm = by_label(FEDPALL, name, "minidigits", "smoke")["FedPall"]
        assert (arm.fields["mu"], arm.protocol.data.rotate) == (mu, rotate)
    family = {label: arm.fields for label, arm in by_label(I2PFL, "table-4").items()}
    assert family["FedProx"]["mu"] == 1e-4 and family["FedDyn"]["form"] == "inert"
    assert family["MOON"]["mu"] == 5 and family["FPL"]["temperature"] == 0.02


def test_experiments_that_share_runs_share_them_exactly():
    main = by_label(ADCOL, "table-1", "digits5")
    for name in ("table-2-rounds", "table-2-size", "table-2-speedup", "figure-5", "table-13"):
        arms = by_label(ADCOL, name, "digits5")
        assert arms == {label: arm for label, arm in main.items() if label != "SOLO"}
    for name, label in (
        *(("table-9", "MLP"), ("table-14", "ADCOL w/o sharing"), ("table-16", "non-private")),
        *(("table-17", "non-private ADCOL"), ("figure-8", "MLP"), ("figure-7", "ADCOL, E=10")),
        *(("table-10", "discriminators=1"), ("table-11", "dimension=2048")),
    ):
        arm = by_label(ADCOL, name, "digits5")[label]
        method = methods.create(arm.method, **arm.fields)
        assert method.fields() == methods.create("ADCOL", **main["ADCOL"].fields).fields(), name
        assert arm.protocol == main["ADCOL"].protocol, name
    one = by_label(FEDPALL, "table-1-office10")["FedPall"]
    for other, label in (("figure-3", "CE + KL + InfoNCE"), ("figure-6", "with")):
        arm = by_label(FEDPALL, other, "office10")[label]
        assert (arm.fields, arm.protocol) == (one.fields, one.protocol)


def test_arms_of_the_common_protocol_differ_in_their_method_alone():
    common = papers.load(papers.COMMON)
    listed = {arm.method for e in common.experiments for arm in common.arm_specs(e.id)}
    assert set(methods.names()) == listed and papers.COMMON not in papers.names()
    for scale, dataset in product(SCALES, ("digits5", "office10", "pacs")):
        arms = common.arms("methods", dataset, scale)
        assert len({arm.protocol.model_dump_json() for arm in arms}) == 1
        own = papers.load("i2pfl").settings_of("I2PFL", dataset.replace("digits5", "digits4"))
        ours, given = {a.method: a.fields for a in arms}, {k: s.value for k, s in own.items()}
        assert ours.pop("FedRep") == {"final_head_epochs": 0}
        assert ours.pop("I2PFL").items() <= given.items() and not any(ours.values())
        assert arms[0].protocol.optimizer.lr in arms[0].tuning.values[scale]
        large = scale == "paper" and dataset == "digits5"  # the stand-in has 97,791 test images
        assert arms[0].protocol.tested_at == (10_000 if large else None)


def test_blocked_experiments_are_no_part_of_all_and_run_where_named():
    blocked = {e.id for e in ADCOL.experiments if e.state == "blocked"}
    assert {"table-5", "table-7-size", "table-12-cifar100", "table-3-fid-domainnet"} <= blocked
    assert "domainnet" not in papers.default_datasets(ADCOL, "all", "paper")
    assert papers.default_datasets(ADCOL, "table-5", "paper") == ["domainnet"]
    with pytest.raises(FedReproError, match="is blocked: a drawing of the method"):
        papers.default_datasets(ADCOL, "figure-1", "smoke")


def test_a_name_stands_for_its_row_or_else_for_all_rows_of_the_method():
    for paper, experiment, dataset, name, rows in (
        ("i2pfl", "table-3-office10", "office10", "I2PFL", ["I2PFL"]),
        ("adcol", "figure-7", "digits5", "FedBN", [f"FedBN, E={n}" for n in (1, 2, 5, 10, 20)]),
    ):
        asked = Question(papers.load(paper), dataset, "reduced", only=[name])
        assert [arm.label for arm in asked.arms(experiment)] == rows


def test_an_added_row_trains_as_fedavg_and_a_changed_rate_leaves_the_rest_tuned():
    fedapc, common, mpft = map(papers.load, ("fedapc", "common", "mpft"))
    asked = Question(fedapc, "office10", "reduced", only=["FedAvg", "DBE"])
    average, added = (arm.protocol for arm in asked.arms("table-1-office10"))
    assert added == average and average.rounds == 100  # the paper's file alone says 20
    with pytest.raises(FedReproError, match="table-2-rounds has no row for DBE"):
        Question(ADCOL, "digits5", "reduced", only=["FedAvg", "DBE"]).chosen("table-2-rounds")
    asked = Question(common, "office10", "reduced", changes={"optimizer.lr": 0.03})
    arms = {arm.label: arm for arm in asked.arms("methods")}
    assert not list(arms["FedAvg"].trials()) and len(list(arms["Per-FedAvg"].trials())) > 2
    assert [value for value, *_ in arms["FedProx"].trials()] == ["0.03"]
    assert list(arms["FedProx"].constants("0.03"))
    assert "folder" in mpft.datasets_for("table-1-pacs")
    assert "folder" not in mpft.datasets_for("table-2-mixed-0.3")


def test_the_names_of_methods_are_read_without_their_classes():
    own = {name for name in methods.names() if methods.get(name).__module__.startswith("fedrepro.")}
    assert written() == own and known_methods(["FedAvg"]) >= own
