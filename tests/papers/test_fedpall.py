"""FedPall's protocol, its sources, and the arms of its experiments."""

from __future__ import annotations

import pytest

from fedrepro import methods, papers
from fedrepro.base.errors import FedReproError
from fedrepro.papers.schema import leaves

FEDPALL = papers.load("fedpall")
SCALES = ("smoke", "reduced", "paper")
DATASETS = ("digits5", "digits5-standin", "office10", "pacs", "minidigits")
MAIN = {"digits5": "table-1-digits", "office10": "table-1-office10", "pacs": "table-1-pacs"}
RUNS = [experiment.id for experiment in FEDPALL.experiments if experiment.state == "runs"]
EVERY = [
    (name, dataset, scale)
    for name in RUNS
    for dataset in FEDPALL.datasets_for(name)
    for scale in SCALES
]


def test_only_the_two_drawings_do_not_run() -> None:
    states = {e.id: e.state for e in FEDPALL.experiments}
    assert {name for name, state in states.items() if state != "runs"} == {"figure-1", "figure-2"}
    assert "planned" not in states.values() and tuple(FEDPALL.datasets) == DATASETS
    for name in ("figure-1", "figure-2"):
        assert "drawing" in FEDPALL.experiment(name).reason


@pytest.mark.parametrize("dataset", ["digits5", "digits5-standin"])
def test_digits_at_paper_scale(dataset: str) -> None:
    protocol = FEDPALL.protocol(dataset)
    assert (protocol.data.dataset, protocol.data.size) == (dataset, 28)
    assert (protocol.data.split, protocol.data.normalise) == ("pooled-stratified", "half")
    assert protocol.data.allocation.draw == "first" and protocol.data.test_limit is None
    assert (protocol.rounds, protocol.local_epochs, protocol.batch_size) == (100, 5, 64)


def test_a_tenth_of_digits_however_large_the_sources_are_here() -> None:
    assert FEDPALL.protocol("digits5").data.allocation.per_client == 0.1
    counts = FEDPALL.protocol("digits5-standin").data.allocation.per_client
    assert isinstance(counts, dict) and sum(counts.values()) == 59_002
    for domain, size in {"mnist": 70_000, "svhn": 99_289, "usps": 9_298}.items():
        assert counts[domain] == size * 8 // 10 // 10


@pytest.mark.parametrize("dataset", ["office10", "pacs"])
def test_pictures_at_paper_scale(dataset: str) -> None:
    protocol = FEDPALL.protocol(dataset, "paper")
    assert (protocol.data.size, protocol.data.split) == (64, "class-first")
    assert protocol.data.allocation.per_client == "all" and protocol.data.validation == 0
    assert (protocol.data.flip, protocol.data.rotate) == (True, 30.0)
    assert protocol.data.normalise == "none"
    assert (protocol.rounds, protocol.local_epochs, protocol.batch_size) == (100, 10, 32)


@pytest.mark.parametrize("dataset", DATASETS[:-1])
def test_the_network_and_plain_sgd_at_paper_scale(dataset: str) -> None:
    protocol = FEDPALL.protocol(dataset)
    assert protocol.model == "fedpall-resnet50" and protocol.model_args == {}
    optimizer = protocol.optimizer
    assert (optimizer.lr, optimizer.momentum, optimizer.weight_decay) == (0.01, 0.0, 0.0)
    assert (protocol.weighting, protocol.participation) == ("samples", 1.0)


@pytest.mark.parametrize("dataset", DATASETS)
def test_smoke_is_embedded_and_tiny(dataset: str) -> None:
    protocol = FEDPALL.protocol(dataset, "smoke")
    assert (protocol.data.dataset, protocol.model) == ("minidigits", "tiny-cnn")
    assert protocol.rounds <= 3 and protocol.local_epochs == 1 and protocol.scale == "smoke"


@pytest.mark.parametrize("dataset", DATASETS[:-1])
def test_reduced_keeps_the_preparation_of_the_real_data(dataset: str) -> None:
    reduced, full = FEDPALL.protocol(dataset, "reduced"), FEDPALL.protocol(dataset, "paper")
    cut = {
        "test_limit": None,
        "validation": full.data.validation,
        "allocation": full.data.allocation,
    }
    assert reduced.data.model_copy(update=cut) == full.data
    assert reduced.optimizer == full.optimizer and reduced.model == "narrow-resnet"
    if dataset == "office10":
        assert reduced.data == full.data


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("scale", SCALES)
def test_every_setting_in_effect_has_its_value_and_a_source(dataset: str, scale: str) -> None:
    sources = FEDPALL.sources(dataset, scale)
    assert sources.setting.is_unique and (sources.source.str.len() >= 5).all()
    listed = sources.set_index("setting").value
    for key, value in leaves(FEDPALL.protocol(dataset, scale).model_dump()):
        if value in (None, {}) or key == "scale" or ".per_client" in key:
            continue
        text = {True: "yes", False: "no"}.get(value) if isinstance(value, bool) else None
        assert listed[key] == (text or (f"{value:g}" if isinstance(value, float) else str(value)))
    assert "data.allocation.per_client" in listed.index


@pytest.mark.parametrize(("name", "dataset", "scale"), EVERY)
def test_every_arm_is_a_valid_run(name: str, dataset: str, scale: str) -> None:
    arms = FEDPALL.arms(name, dataset, scale)
    labels = [arm.label for arm in arms]
    assert len(set(labels)) == len(labels) and bool(arms) == (name != "prose-cost")
    for arm in arms:
        assert arm.protocol.scale == scale
        assert arm.protocol.data.dataset == ("minidigits" if scale == "smoke" else dataset)
        assert methods.create(arm.method, **arm.fields).name == arm.method


@pytest.mark.parametrize("name", [*MAIN.values(), "figure-5-best", "prose-privacy"])
def test_arms_are_the_rows_of_the_printed_table(name: str) -> None:
    labels = {arm.label for arm in FEDPALL.arms(name) if not arm.alternative}
    assert labels == set(FEDPALL.table(name).methods)


@pytest.mark.parametrize("name", ["prose-gains", "prose-global-classifier"])
def test_differences_name_printed_rows_and_arms(name: str) -> None:
    experiment = FEDPALL.experiment(name)
    labels = {arm.label for arm in FEDPALL.arms(name)}
    printed = set(FEDPALL.table(name).methods)
    named = {one.row for one in experiment.differences}
    assert named <= printed and len(named) == len(experiment.differences)
    for one in experiment.differences:
        assert one.of in labels and (one.minus is None or one.minus in labels)
        assert one.dataset in experiment.datasets
    left = {row for row in printed - named}
    assert left == ({r for r in printed if "est of the three" in r} if "gains" in name else set())


@pytest.mark.parametrize(
    ("base", "expected"),
    [("digits5", (0.3, 0.7, 1)), ("office10", (0.1, 0.1, 3)), ("pacs", (0.1, 0.1, 3))],
)
def test_weights_and_server_epochs_by_data_set(
    base: str, expected: tuple[float, float, int]
) -> None:
    fedpall = {arm.label: arm for arm in FEDPALL.arms(MAIN[base])}["FedPall"]
    method = methods.create("FedPall", **fedpall.fields)
    assert (method.mu, method.delta, method.server_epochs) == expected  # type: ignore[attr-defined]
    adcol = {arm.label: arm for arm in FEDPALL.arms(MAIN[base])}["ADCOL"]
    assert (adcol.fields["mu"], adcol.fields["discriminator_epochs"]) == (
        (0.3, 1) if base == "digits5" else (0.1, 3)
    )
    listed = FEDPALL.sources(base).set_index("setting")
    assert listed.loc["FedPall.mu", "value"] == f"{expected[0]:g}"
    assert listed.loc["ADCOL.discriminator_epochs", "value"] == str(expected[2])


def test_the_embedded_digits_stand_in_for_each_experiments_own_data() -> None:
    office = {arm.label: arm for arm in FEDPALL.arms("table-1-office10", "minidigits", "smoke")}
    digits = {arm.label: arm for arm in FEDPALL.arms("table-1-digits", "minidigits", "smoke")}
    assert office["FedPall"].fields["mu"] == 0.1 and digits["FedPall"].fields["mu"] == 0.3
    assert office["FedPall"].protocol.data.rotate == 30.0
    assert digits["FedPall"].protocol.data.rotate == 0.0
    ablation = FEDPALL.arms("figure-3", "minidigits", "smoke")[-1]
    assert ablation.fields["mu"] == 0.3  # where Digits is among its data sets, they follow that


def test_experiments_that_share_runs_share_them_exactly() -> None:
    for base, name in MAIN.items():
        main = {arm.label: arm for arm in FEDPALL.arms(name)}["FedPall"]
        for other, label in (("figure-3", "CE + KL + InfoNCE"), ("figure-6", "with")):
            arm = {a.label: a for a in FEDPALL.arms(other, base)}[label]
            assert (arm.method, arm.fields, arm.protocol) == (
                main.method,
                main.fields,
                main.protocol,
            )
    grid = {arm.label: arm for arm in FEDPALL.arms("figure-5")}
    office = {arm.label: arm for arm in FEDPALL.arms("table-1-office10")}["FedPall"]
    assert grid["mu=0.1, delta=0.1"].fields == office.fields and len(grid) == 16
    assert [arm.label for arm in FEDPALL.arms("figure-4")] == [
        arm.label for arm in FEDPALL.arms("figure-3", "office10")
    ]


def test_variants() -> None:
    fields = {arm.label: arm.fields for arm in FEDPALL.arms("figure-3", "digits5")}
    weights = {label: (f["mu"], f["delta"]) for label, f in fields.items()}
    assert weights == {
        "CE": (0.0, 0.0),
        "CE + InfoNCE": (0.0, 0.7),
        "CE + KL": (0.3, 0.0),
        "CE + KL + InfoNCE": (0.3, 0.7),
    }
    grid = {(a.fields["mu"], a.fields["delta"]): a.label for a in FEDPALL.arms("figure-5")}
    assert set(grid) == {(m, d) for m in (0.1, 0.2, 0.5, 1.0) for d in (0.1, 0.2, 0.5, 1.0)}
    assert all(label == f"mu={m}, delta={d}" for (m, d), label in grid.items())
    sent = [arm.fields.get("sent_as", "mixed-masked") for arm in FEDPALL.arms("prose-privacy")]
    assert sent == ["gaussian", "mixed", "masked", "mixed-masked", "raw"]
    printed = FEDPALL.arms("table-1-digits")[-1]
    assert printed.alternative and (printed.fields["mu"], printed.fields["delta"]) == (0.7, 0.3)


def test_reporting_names_the_optimistic_rule_and_its_companion() -> None:
    listed = FEDPALL.sources("office10").set_index("setting")
    assert listed.loc["report.score_rule", "value"] == "best-test"
    assert listed.loc["report.beside", "value"] == "last"


@pytest.mark.parametrize(
    ("domain", "table", "column"),
    [
        ("mnistm", "table-1-digits", "MNIST-M"),
        ("synthdigits-standin", "table-1-digits", "SynthDigits"),
        ("webcam", "table-1-office10", "webcam"),
        ("sketch", "table-1-pacs", "sketch"),
        ("mini-font", "table-1-digits", None),
    ],
)
def test_columns(domain: str, table: str, column: str | None) -> None:
    assert FEDPALL.column(table, domain) == column


def test_mistakes_name_the_choices() -> None:
    with pytest.raises(FedReproError, match="does not run on 'pacs'; choose from digits5"):
        FEDPALL.arms("table-1-digits", "pacs")
    with pytest.raises(FedReproError, match="figure-1 is blocked: a drawing"):
        FEDPALL.arms("figure-1")
