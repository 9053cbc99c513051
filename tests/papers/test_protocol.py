"""ADCOL's protocol, its sources, and the arms of its experiments."""

from __future__ import annotations

import pytest

from fedrepro import methods, papers
from fedrepro.errors import FedReproError
from fedrepro.papers.schema import leaves

ADCOL = papers.load("adcol")
SCALES = ("smoke", "reduced", "paper")
RUNS = [experiment.id for experiment in ADCOL.experiments if experiment.state == "runs"]
EVERY = [
    (name, dataset, scale)
    for name in RUNS
    for dataset in ADCOL.datasets_for(name)
    for scale in SCALES
]


def test_what_runs() -> None:
    assert set(RUNS) == {
        *("table-1", "table-4", "table-13", "table-15", "table-19", "table-20"),
        *("table-2-rounds", "table-2-size", "table-2-speedup"),
        *("table-6-rounds", "table-6-size", "table-6-speedup"),
        *("figure-2c", "figure-4", "figure-5"),
    }


@pytest.mark.parametrize("dataset", ["digits5", "digits5-standin"])
def test_digits_at_paper_scale(dataset: str) -> None:
    protocol = ADCOL.protocol(dataset)
    assert (protocol.data.dataset, protocol.data.size) == (dataset, 28)
    assert (protocol.data.split, protocol.data.normalise) == ("pooled-stratified", "half")
    assert protocol.data.allocation.per_client == 743 and protocol.data.test_limit is None
    assert protocol.model == "adcol-resnet50" and protocol.model_args == {"representation": 2048}
    assert (protocol.rounds, protocol.local_epochs, protocol.batch_size) == (100, 10, 64)
    optimizer = protocol.optimizer
    assert (optimizer.lr, optimizer.momentum, optimizer.weight_decay) == (0.01, 0.9, 1e-5)
    assert (protocol.weighting, protocol.scale) == ("samples", "paper")


def test_office_at_paper_scale() -> None:
    protocol = ADCOL.protocol("office10", "paper")
    assert (protocol.data.size, protocol.data.split) == (64, "random-fifth")
    assert protocol.data.allocation.per_client == 62 and protocol.data.normalise == "none"
    assert (protocol.data.flip, protocol.data.rotate) == (True, 30.0)
    assert (protocol.rounds, protocol.local_epochs, protocol.batch_size) == (100, 10, 32)


@pytest.mark.parametrize("dataset", ["digits5", "digits5-standin", "office10", "minidigits"])
def test_smoke_is_embedded_and_tiny(dataset: str) -> None:
    protocol = ADCOL.protocol(dataset, "smoke")
    assert (protocol.data.dataset, protocol.model) == ("minidigits", "tiny-cnn")
    assert protocol.rounds <= 3 and protocol.local_epochs == 1 and protocol.scale == "smoke"


@pytest.mark.parametrize("dataset", ["digits5-standin", "office10"])
def test_reduced_keeps_the_real_data_and_its_preparation(dataset: str) -> None:
    reduced, full = ADCOL.protocol(dataset, "reduced"), ADCOL.protocol(dataset, "paper")
    tested = {"test_limit": None, "validation": full.data.validation}
    assert reduced.data.model_copy(update=tested) == full.data
    assert reduced.optimizer == full.optimizer and reduced.model == "small-cnn"


@pytest.mark.parametrize("dataset", ["digits5", "digits5-standin", "office10", "minidigits"])
@pytest.mark.parametrize("scale", SCALES)
def test_every_setting_in_effect_has_its_value_and_a_source(dataset: str, scale: str) -> None:
    sources = ADCOL.sources(dataset, scale)
    assert list(sources.columns) == ["setting", "value", "source", "alternatives"]
    assert sources.setting.is_unique and (sources.source.str.len() >= 5).all()
    listed = sources.set_index("setting").value
    for key, value in leaves(ADCOL.protocol(dataset, scale).model_dump()):
        if value in (None, {}) or key == "scale" or key.startswith("model_args."):
            continue
        text = {True: "yes", False: "no"}.get(value) if isinstance(value, bool) else None
        expected = text or (f"{value:g}" if isinstance(value, float) else str(value))
        assert listed[key] == expected


def test_a_departure_names_the_papers_value() -> None:
    sources = ADCOL.sources("digits5", "reduced").set_index("setting")
    assert sources.loc["model", "alternatives"] == "adcol-resnet50"
    assert sources.loc["rounds", "alternatives"].startswith("100")
    assert sources.loc["report.score_rule", "value"] == "last"
    assert "not stated" in sources.loc["report.score_rule", "source"]


@pytest.mark.parametrize(("name", "dataset", "scale"), EVERY)
def test_every_arm_is_a_valid_run(name: str, dataset: str, scale: str) -> None:
    arms = ADCOL.arms(name, dataset, scale)
    labels = [arm.label for arm in arms]
    assert arms and len(set(labels)) == len(labels)
    for arm in arms:
        assert arm.protocol.scale == scale
        assert arm.protocol.data.dataset == ("minidigits" if scale == "smoke" else dataset)
        assert methods.create(arm.method, **arm.fields).name == arm.method


@pytest.mark.parametrize("name", RUNS)
def test_arms_are_the_rows_of_the_printed_table(name: str) -> None:
    experiment = ADCOL.experiment(name)
    if experiment.table is None or experiment.kind == "speedup":
        assert experiment.kind in {"sweep", "features", "curves", "speedup"}
        return
    labels = {arm.label for arm in ADCOL.arms(name) if not arm.alternative}
    printed = set(ADCOL.table(experiment.table).methods)
    # The text at hand lost ADCOL's rows of Table 2.
    assert labels - printed <= ({"ADCOL"} if name.startswith("table-2") else set())
    assert printed <= labels


@pytest.mark.parametrize(
    ("dataset", "scale", "rounds"), [("digits5", "paper", 30), ("digits5", "reduced", 6)]
)
def test_solo_trains_three_tenths_of_the_epochs(dataset: str, scale: str, rounds: int) -> None:
    solo, fedavg = ADCOL.arms("table-1", dataset, scale)[:2]
    assert solo.label == "SOLO" and solo.protocol.rounds == rounds
    assert solo.protocol.rounds / fedavg.protocol.rounds == pytest.approx(0.3)
    if scale == "paper":
        assert solo.protocol.rounds * solo.protocol.local_epochs == 300


def test_experiments_that_share_runs_share_them_exactly() -> None:
    main = {arm.label: arm for arm in ADCOL.arms("table-1", "digits5", "paper")}
    for name in ("table-2-rounds", "table-2-size", "table-2-speedup", "figure-5", "table-13"):
        arms = ADCOL.arms(name, "digits5", "paper")
        assert {arm.label for arm in arms} == set(main) - {"SOLO"}
        assert all(arm == main[arm.label] for arm in arms)
    assert [arm.label for arm in ADCOL.arms("figure-4")] == ["SOLO", "FedAvg", "ADCOL"]
    at_one = ADCOL.arms("table-15")[-1]
    assert at_one.fields == {"mu": 1.0, "sampling": 1.0}


def test_variants() -> None:
    assert [arm.fields["mu"] for arm in ADCOL.arms("figure-2c")] == [0.0, 0.1, 1.0, 10.0]
    linear, single = ADCOL.arms("table-19")
    assert linear.fields["discriminator_activation"] is False and not linear.alternative
    assert single.fields["discriminator_hidden"] == () and single.alternative
    for arm in ADCOL.arms("table-20"):
        assert (arm.protocol.model, arm.protocol.model_args) == ("digit-cnn", {})
    for arm in ADCOL.arms("table-20", "digits5", "reduced"):
        assert arm.protocol.model == "small-cnn"


@pytest.mark.parametrize(
    ("domain", "table", "column"),
    [
        ("mnistm", "table-1", "MNIST_M"),
        ("mnistm", "table-19", "MNIST-M"),
        ("synthdigits-standin", "table-1", "SynthDigit"),
        ("webcam", "table-4", "WebCam"),
        ("avg", "table-4", "avg"),
        ("SVHN", "table-1", "SVHN"),
        ("mini-font", "table-1", None),
        ("amazon", "table-1", None),
    ],
)
def test_columns(domain: str, table: str, column: str | None) -> None:
    assert ADCOL.column(table, domain) == column


def test_mistakes_name_the_choices() -> None:
    with pytest.raises(FedReproError, match="choose from digits5, digits5-standin, office10"):
        ADCOL.protocol("domainnet")
    with pytest.raises(FedReproError, match="choose from smoke, reduced, paper"):
        ADCOL.protocol("digits5", "full")
    with pytest.raises(FedReproError, match="is planned: not yet implemented: needs"):
        ADCOL.arms("table-5")
    with pytest.raises(FedReproError, match="does not run on 'office10'; choose from digits5"):
        ADCOL.arms("table-1", "office10")
    with pytest.raises(FedReproError, match="no experiment of ADCOL 'table-99'"):
        ADCOL.arms("table-99")
    with pytest.raises(FedReproError, match="no printed table"):
        ADCOL.table("figure-5")
    with pytest.raises(FedReproError, match="choose from none yet"):
        papers.load("mpft").protocol("pacs")
