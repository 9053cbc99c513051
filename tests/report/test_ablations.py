"""The figures of ablations hold what they were given."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from fedrepro.base.errors import FedReproError
from fedrepro.report import ablations


def grid(places: dict[tuple[float, float], list[float]]) -> pd.DataFrame:
    rows = [
        {"label": f"mu={mu}, delta={delta}", "seed": seed, "value": value}
        for (mu, delta), values in places.items()
        for seed, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


def texts(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_a_heat_map_has_the_mean_of_the_seeds_in_each_place() -> None:
    places = {(0.1, 0.1): [60.0, 62.0], (0.1, 1.0): [50.0], (1.0, 0.1): [70.0], (0.5, 1.0): [40.0]}
    figure = ablations.heat_map(grid(places), {"mu=1.0, delta=0.1": 68.62})
    ax = figure.axes[0]
    table = ax.collections[0].get_array()  # the largest first setting in the first row
    assert table.shape == (3, 2) and float(table[2, 0]) == 61.0 and float(table[0, 0]) == 70.0
    assert bool(table.mask[1, 0]) and float(table[1, 1]) == 40.0
    assert [t.get_text() for t in ax.get_yticklabels()] == ["1", "0.5", "0.1"]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0.1", "1"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("delta", "mu")
    assert set(texts(figure)) == {"61.0", "50.0", "70.0\n(paper 68.6)", "40.0"}


def test_a_heat_map_needs_labels_of_two_settings() -> None:
    with pytest.raises(FedReproError, match="labels of a grid read"):
        ablations.heat_map(pd.DataFrame([{"label": "mu=0.1", "seed": 0, "value": 1.0}]))
    mixed = pd.concat([grid({(0.1, 0.1): [1.0]}), grid({(0.2, 0.1): [1.0]})])
    mixed["label"] = ["mu=0.1, delta=0.1", "mu=0.2, tau=0.1"]
    with pytest.raises(FedReproError, match="same two names"):
        ablations.heat_map(mixed)
    with pytest.raises(FedReproError, match="is empty"):
        ablations.heat_map(pd.DataFrame(columns=["label", "seed", "value"]))


def test_variants_by_domain_stand_side_by_side() -> None:
    cells = [
        {"method": method, "column": column, "seed": seed, "value": value + seed}
        for method, values in {"without": (30.0, 50.0), "with": (40.0, 60.0)}.items()
        for column, value in zip(("caltech", "avg"), values, strict=True)
        for seed in (0, 1)
    ]
    figure = ablations.by_domain(cells)
    ax = figure.axes[0]
    marks = [line for line in ax.lines if len(line.get_ydata()) == 2 and line.get_marker() in "os"]
    assert [list(line.get_ydata()) for line in marks] == [[30.5, 50.5], [40.5, 60.5]]
    assert marks[0].get_xdata()[0] < 0 < marks[1].get_xdata()[0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["without", "with"]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["caltech", "avg"]
    spans = [list(line.get_ydata()) for line in ax.lines]
    assert [30.0, 31.0] in spans and [50.0, 51.0] in spans


def test_variants_by_domain_need_cells() -> None:
    with pytest.raises(FedReproError, match="is empty"):
        ablations.by_domain([])


def test_a_radar_chart_closes_the_line_of_every_arm() -> None:
    rows = [
        {"method": name, "column": column, "seed": seed, "value": value + seed}
        for name, values in {"A": (60.0, 70.0, 80.0), "B": (41.0, 50.0, 90.0)}.items()
        for column, value in zip(("photo", "cartoon", "sketch"), values, strict=True)
        for seed in (0, 2)
    ] + [{"method": "A", "column": "avg", "seed": 0, "value": 99.0}]
    figure = ablations.radar(rows)
    ax = figure.axes[0]
    lines = {line.get_label(): list(line.get_ydata()) for line in ax.lines}
    assert lines == {"A": [61.0, 71.0, 81.0, 61.0], "B": [42.0, 51.0, 91.0, 42.0]}
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["photo", "cartoon", "sketch"]
    assert ax.get_ylim() == (40.0, 100.0)
    assert figure.png()


def test_a_radar_chart_of_two_domains_is_refused() -> None:
    rows = [{"method": "A", "column": c, "seed": 0, "value": 1.0} for c in "ab"]
    with pytest.raises(FedReproError, match="needs three domains, not 2"):
        ablations.radar(rows)
