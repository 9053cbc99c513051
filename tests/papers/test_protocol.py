"""ADCOL's protocol, its sources, and the arms of its experiments."""

from __future__ import annotations

import pytest

from fedrepro import methods, papers
from fedrepro.base.errors import FedReproError
from fedrepro.papers.schema import leaves

ADCOL = papers.load("adcol")
SCALES = ("smoke", "reduced", "paper")
RUNS = [experiment.id for experiment in ADCOL.experiments if experiment.can_run]
TRAINED = [name for name in RUNS if ADCOL.experiment(name).kind not in papers.UNTRAINED]
EVERY = [
    (name, dataset, scale)
    for name in TRAINED
    for dataset in ADCOL.datasets_for(name)
    for scale in SCALES
]


def test_what_runs() -> None:
    states = {e.id: e.state for e in ADCOL.experiments}
    assert "planned" not in states.values()
    blocked = {name for name, state in states.items() if state == "blocked"}
    domainnet = {name for name in states if "domainnet" in ADCOL.experiment(name).datasets}
    assert blocked == domainnet | {"figure-1", "table-12-cifar100"}
    assert set(states) - set(RUNS) == {"figure-1"}


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
    assert protocol.data.allocation.per_client == 125 and protocol.data.normalise == "none"
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
    if dataset == "office10":  # half the paper's images, so that earlier runs stay
        assert reduced.data.allocation.per_client == 62
        tested["allocation"] = full.data.allocation
    assert reduced.data.model_copy(update=tested) == full.data
    assert reduced.optimizer == full.optimizer and reduced.model == "small-cnn"


@pytest.mark.parametrize("dataset", ["digits5", "digits5-standin", "office10", "minidigits"])
@pytest.mark.parametrize("scale", SCALES)
def test_every_setting_in_effect_has_its_value_and_a_source(dataset: str, scale: str) -> None:
    sources = ADCOL.sources(dataset, scale)
    assert list(sources.columns) == ["setting", "value", "status", "source", "alternatives"]
    assert set(sources.status) <= {"stated", "code", "inferred", "decided"}
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
    assert sources.loc["optimizer.lr", "status"] == "stated"
    assert sources.loc["rounds", "status"] == "decided"  # the scale's own
    assert "Tables 8 and 15" in sources.loc["report.score_rule", "source"]


@pytest.mark.parametrize(("name", "dataset", "scale"), EVERY)
def test_every_arm_is_a_valid_run(name: str, dataset: str, scale: str) -> None:
    arms = ADCOL.arms(name, dataset, scale)
    labels = [arm.label for arm in arms]
    assert arms and len(set(labels)) == len(labels)
    for arm in arms:
        assert arm.protocol.scale == scale
        assert arm.protocol.data.dataset == ("minidigits" if scale == "smoke" else dataset)
        assert methods.create(arm.method, **arm.fields).name == arm.method


@pytest.mark.parametrize("name", TRAINED)
def test_arms_are_the_rows_of_the_printed_table(name: str) -> None:
    experiment = ADCOL.experiment(name)
    if experiment.table is None or experiment.kind in ("speedup", "relative"):
        assert experiment.kind in {"sweep", "features", "curves", "speedup", "terms", "relative"}
        return
    arms = [arm for arm in ADCOL.arms(name) if not arm.alternative]
    if not arms:  # other readings, beside a table that is another experiment's
        assert experiment.table != experiment.id and "paper" in experiment.named_only
        return
    labels = {arm.row for arm in arms}
    if experiment.kind == "grid":
        columns = set(ADCOL.table(experiment.table).columns)
        assert {arm.column or min(columns) for arm in arms} == columns
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
    assert at_one.fields == {"mu": 1.0, "discriminator_epochs": 1, "sampling": 1.0}


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
        ADCOL.protocol("pacs")
    with pytest.raises(FedReproError, match="choose from smoke, reduced, paper"):
        ADCOL.protocol("digits5", "full")
    with pytest.raises(FedReproError, match="is blocked: a drawing of the method"):
        ADCOL.arms("figure-1")
    with pytest.raises(FedReproError, match="does not run on 'office10'; choose from digits5"):
        ADCOL.arms("table-1", "office10")
    with pytest.raises(FedReproError, match="no experiment of ADCOL 'table-99'"):
        ADCOL.arms("table-99")
    with pytest.raises(FedReproError, match="no printed table"):
        ADCOL.table("figure-5")
    with pytest.raises(FedReproError, match="no protocol for data set 'imagenet'"):
        papers.load("mpft").protocol("imagenet")


def changed(name: str, scale: str = "paper", dataset: str | None = None) -> dict[str, object]:
    """Each arm's protocol by label."""
    return {arm.label: arm.protocol for arm in ADCOL.arms(name, dataset, scale)}


def test_clients_of_figure_2a_and_tables_8_and_18() -> None:
    for label, protocol in changed("figure-2a").items():
        number = int(label.rpartition("=")[2])
        clients = protocol.data.allocation.clients
        assert set(clients) == {"mnist", "svhn", "usps", "synthdigits", "mnistm"}
        assert sum(clients.values()) == number and protocol.data.allocation.rule == "table"
        assert protocol.data.allocation.per_client == 743
    mini = changed("figure-2a", "smoke")["ADCOL, N=50"].data.allocation
    assert set(mini.clients) == {"mini-scanned", "mini-font", "mini-photo", "mini-street"}
    rates = changed("table-8")
    assert {p.participation for p in rates.values()} == {0.1, 0.2, 0.5, 1.0}
    for protocol in rates.values():
        assert sum(protocol.data.allocation.clients.values()) == 100 and protocol.rounds == 200
        assert 20 * protocol.data.allocation.per_client <= 7438
    staged = changed("table-18")
    assert [p.rounds for p in staged.values()] == [100, 100, 200]
    assert [p.stay for p in staged.values()] == [1, 1, 2]
    assert {round(50 * p.participation) for p in staged.values()} == {5}


def test_shares_epochs_and_sizes() -> None:
    shares = {p.data.allocation.per_client for p in changed("figure-2b").values()}
    assert shares == {1486, 2972, 4458, 5944, 7430}
    assert {p.local_epochs for p in changed("figure-7").values()} == {1, 2, 5, 10, 20}
    sizes = [p.model_args["representation"] for p in changed("table-11").values()]
    assert sizes == [512, 1024, 2048]
    assert {p.participation for p in changed("figure-6").values()} == {0.4}
    cifar = changed("table-12")["ADCOL"]
    assert (cifar.data.allocation.rule, cifar.data.allocation.alpha) == ("dirichlet", 0.5)
    for label, protocol in changed("table-17").items():
        assert protocol.turns == ("w sampling" in label)
        assert protocol.participation == (0.2 if "w sampling" in label else 1.0)


def test_variants_at_their_defaults_are_table_1s_run() -> None:
    main = {arm.label: arm for arm in ADCOL.arms("table-1", "digits5", "paper")}["ADCOL"]
    for name, label in (
        *(("table-9", "MLP"), ("table-14", "ADCOL w/o sharing"), ("table-16", "non-private")),
        *(("table-17", "non-private ADCOL"), ("figure-8", "MLP"), ("figure-7", "ADCOL, E=10")),
        *(("table-10", "discriminators=1"), ("table-11", "dimension=2048")),
    ):
        arm = next(arm for arm in ADCOL.arms(name, "digits5", "paper") if arm.label == label)
        method = methods.create(arm.method, **arm.fields)
        assert method.fields() == methods.create("ADCOL", **main.fields).fields(), name
        assert arm.protocol == main.protocol, name
