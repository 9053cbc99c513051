"""Numbers that need no training: sizes, distances, messages."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import linalg

from fedrepro.quantities import base, counted
from fedrepro.quantities.counted import frechet
from fedrepro.quantities.paper_run import study


def gaussian(n: int, d: int, seed: int, shift: float = 0.0, scale: float = 1.0) -> np.ndarray:
    return shift + scale * np.random.default_rng(seed).normal(size=(n, d))


def test_one_feature_in_closed_form() -> None:
    """|difference of means|^2 + (difference of deviations)^2."""
    assert frechet(gaussian(50, 4, 0), gaussian(50, 4, 0)) == pytest.approx(0, abs=1e-9)
    x, y = gaussian(80, 1, 0), gaussian(70, 1, 1, shift=3.0, scale=2.5)
    means, deviations = x.mean() - y.mean(), x.std(ddof=1) - y.std(ddof=1)
    assert frechet(x, y) == pytest.approx(means**2 + deviations**2)


def test_as_with_the_square_root_of_the_product() -> None:
    mix = np.random.default_rng(3).normal(size=(5, 5))
    x, y = gaussian(60, 5, 0) @ mix, gaussian(90, 5, 1, shift=0.4)
    s, t = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    difference = x.mean(0) - y.mean(0)
    expected = difference @ difference + np.trace(s + t - 2 * linalg.sqrtm(s @ t).real)
    assert frechet(x, y) == pytest.approx(expected)
    few = frechet(gaussian(4, 30, 0), gaussian(5, 30, 1))  # fewer images than features
    assert np.isfinite(few) and few > 0


def found(experiment, dataset="minidigits", scale="smoke", paper="adcol", **more):
    rows = study(paper, dataset, scale, **more).cells(experiment)
    return {(row["method"], row["column"]): row for row in rows}


def test_the_example_of_message_sizes() -> None:
    rows = found("prose-communication-example")
    value = {method: row["value"] for (method, _), row in rows.items()}
    assert value["MLP parameters"] == 199_210
    assert value["FedAvg MB per round"] == pytest.approx(159.4, abs=0.05)
    assert value["discriminator bytes"] == 4 * (128 * 128 + 128 + 100 * 129)
    assert value["discriminator bytes, 5 outputs"] == 68_628  # what the paper prints
    assert value["ADCOL MB per round, 5 outputs"] == pytest.approx(37.6, abs=0.05)
    assert rows["ADCOL MB per round, 5 outputs", "value"]["alternative"]


def test_distances_of_sources_have_their_mean_and_no_verdict() -> None:
    whole, *each = found("table-3-fid").values()
    assert whole["value"] == pytest.approx(np.mean([row["value"] for row in each]))
    assert whole["standin"] and "Inception" in whole["caveats"][0]


def test_sizes_of_sources_are_those_before_clients_get_theirs() -> None:
    rows = found("table-3-sizes")
    assert rows["minidigits / mini-scanned", "train"]["value"] == 1437
    assert rows["minidigits / mini-scanned", "test"]["value"] == 360


def test_what_counts_a_subset_says_so_and_the_size_of_a_network_does_not(monkeypatch) -> None:
    whole, federation_of = counted.sources, base.federation_of

    def cut(asked):
        return {k: replace(v, subset=k == "mini-font") for k, v in whole(asked).items()}

    def lesser(*where):
        return replace(federation_of(*where), subsets=("mini-font",))

    monkeypatch.setattr(counted, "sources", cut)
    monkeypatch.setattr(base, "federation_of", lesser)
    sizes = found("table-3-sizes")
    assert {m for (m, _), row in sizes.items() if row["subset"]} == {"minidigits / mini-font"}
    messages = found("prose-cost", paper="fedpall")
    lesser_rows = {method for (method, _), row in messages.items() if row["subset"]}
    up = "bytes up in a round, relative to FedAvg (percent)"
    assert lesser_rows == {"images per client, minidigits", up}


def test_the_clients_of_each_domain_are_the_printed_ones(real_data, tmp_path) -> None:
    given = {"data_root": real_data, "runs_dir": tmp_path, "paper": "i2pfl"}
    rows = found("table-2-pacs", "pacs", "paper", **given)
    printed = {"photo": 3, "art_painting": 2, "cartoon": 1, "sketch": 4}
    assert {domain: row["value"] for (_, domain), row in rows.items()} == printed
    assert {method for method, _ in rows} == {"clients"} and not list(tmp_path.iterdir())
    rows = found("table-2", "digits4-standin", "paper", **given)
    assert [domain for (_, domain), row in rows.items() if row["standin"]] == ["syn-standin"]
