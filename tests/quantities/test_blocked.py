"""What ADCOL needs other people's data for: its path, on made archives of their form."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedrepro import papers
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.data.manifest import COLLECTIONS
from fedrepro.quantities import counted
from fedrepro.quantities.paper_run import Study, study
from fedrepro.report.verdicts import beside

NAMES = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
SHORT = {"rounds": 2, "local_epochs": 1, "data.validation": 10, "model": "tiny-cnn"}


@pytest.fixture(scope="module")
def domainnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six folders of the release, ten classes of five pictures of noise, and one class too many."""
    root, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    net = COLLECTIONS["domainnet"]
    for name in NAMES:
        for label in (*net.classes_of(f"{name}-10"), "airplane"):
            folder = root / "DomainNet" / name / label
            folder.mkdir(parents=True)
            for i in range(5):
                pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{name}_{i}.png")
    return root


def asked(dataset: str, root: Path, runs: Path, **changes: object) -> Study:
    where = {"data_root": root, "runs_dir": runs, "progress": Silent()}
    return study("adcol", dataset, "reduced", 0, changes={**SHORT, **changes}, **where)


def test_blocked_experiments_are_no_part_of_all_and_run_where_named() -> None:
    adcol = papers.load("adcol")
    blocked = {e.id for e in adcol.experiments if e.state == "blocked"}
    assert {"table-5", "table-7-size", "table-12-cifar100", "table-3-fid-domainnet"} <= blocked
    assert "domainnet" not in papers.default_datasets(adcol, "all", "paper")
    assert papers.default_datasets(adcol, "table-5", "paper") == ["domainnet"]
    with pytest.raises(FedReproError, match="is blocked: a drawing"):
        papers.default_datasets(adcol, "figure-1", "smoke")


@pytest.mark.slow
def test_domainnet_from_pictures_to_the_table(domainnet: Path, tmp_path: Path) -> None:
    given = asked("domainnet", domainnet, tmp_path, **{"data.allocation.per_client": 20})
    given.only = ["FedAvg", "FedBN", "PartialFed", "FedProx", "ADCOL"]
    table = beside(given, "table-5")
    ours = table[table.method == "ADCOL"].set_index("column")
    assert list(ours.index) == [*map(str.capitalize, NAMES), "avg"]
    assert ours.ours.between(0, 100).all() and (ours.seeds == 1).all()
    assert ours.published.tolist()[:2] == [39.9, 21.9]
    for name in ("table-7-rounds", "table-7-size", "table-7-speedup"):
        assert beside(given, name).ours.notna().any(), name
    sizes = {(r["method"], r["column"]): r["value"] for r in given.cells("table-3-sizes-domainnet")}
    assert sizes["DomainNet / Clipart", "train"] == 40 and sizes["DomainNet / Real", "test"] == 10
    given.only = ["SOLO", "ADCOL"]
    gain = given.cells("prose-relative-gain-domainnet")
    assert [(row["method"], row["column"]) for row in gain] == [("DomainNet", "value")]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six archives of the release: five pictures of one class each, domain i's all of grey 50 i."""
    root = tmp_path_factory.mktemp("data")
    classes = COLLECTIONS["domainnet"].classes_of("clipart-10")
    (root / "DomainNet").mkdir()
    for i, name in enumerate(NAMES):
        buffer = io.BytesIO()
        Image.new("RGB", (8, 8), (50 * i,) * 3).save(buffer, "PNG")
        with zipfile.ZipFile(root / "DomainNet" / f"{name}.zip", "w") as packed:
            for n in range(5):
                packed.writestr(f"{name}/{classes[i]}/{name}_{n}.png", buffer.getvalue())
    return root


def test_label_shares_of_domainnets_clients(plain: Path, tmp_path: Path) -> None:
    given = asked("domainnet", plain, tmp_path, **{"data.allocation.per_client": "all"})
    classes = COLLECTIONS["domainnet"].classes_of("clipart-10")
    rows = given.cells("figure-3-domainnet")
    found = {(row["method"], row["column"]): row["value"] for row in rows}
    owners = list(dict.fromkeys(client for client, _ in found))
    assert len(found) == 6 * 10 and [owner.split("-")[0] for owner in owners] == list(NAMES)
    for i, owner in enumerate(owners):
        assert [found[owner, name] for name in classes] == [100.0 * (k == i) for k in range(10)]


def test_distances_of_domainnets_sources(plain: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """With pixels for features a source is one point of 8 x 8 x 3 equal values, 50 i of 255. Its
    distance is the square of that from the mean, 125, and the trace of all sources' covariance: the
    squares 2 (125^2 + 75^2 + 25^2) five times, over 30 - 1."""
    monkeypatch.setitem(counted.MEASURED, "reduced", ("pixels", None))  # type: ignore[arg-type]
    rows = asked("domainnet", plain, tmp_path).cells("table-3-fid-domainnet")
    found = {row["method"]: row["value"] for row in rows}
    assert all(row["standin"] and "Inception" in row["caveats"][0] for row in rows)  # no verdict
    spread = 5 * 2 * (125**2 + 75**2 + 25**2) / 29
    each = [192 * ((50 * i - 125) ** 2 + spread) / 255**2 for i in range(6)]
    assert [found[f"DomainNet / {name}-10"] for name in NAMES] == pytest.approx(each)
    assert found["DomainNet"] == pytest.approx(sum(each) / 6)
