"""What ADCOL needs other people's data for: its path, on made archives of their form."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedrepro import papers
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.data.manifest import COLLECTIONS
from fedrepro.quantities.paper_run import study
from fedrepro.report.verdicts import beside

NAMES = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
SHORT = {"rounds": 2, "local_epochs": 1, "data.validation": 10, "model": "tiny-cnn"}
SHORT["data.allocation.per_client"] = 20


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
    where = {"data_root": domainnet, "runs_dir": tmp_path, "progress": Silent()}
    given = study("adcol", "domainnet", "reduced", 0, changes=SHORT, **where)
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
    shares = pd.DataFrame(given.cells("figure-3-domainnet"))
    assert shares.column.nunique() == 10 and set(shares.groupby("method").value.sum()) == {100.0}
