"""The performance page's views: slopes, figures and tables hold what the stored files hold."""

import json
from typing import Any

import numpy as np
import pytest

from tests.benchmarks.conftest import script

report, growth = script("report"), script("report_growth")

ENVIRONMENT = {
    "date": "2026-01-02T03:04:05+00:00", "device": "a <processor>", "threads": 2,
    "python": "3.11.1", "packages": {"torch": "2.13.0"}, "commit": "abc" * 10, "dirty": True,
}  # fmt: skip
FACTS = {"environment": ENVIRONMENT, "load_average": {"before": 0.1, "after": 1.0}}


def growth_file(power: float = 1.0, work: float = 1.0, memory: float = 1.0) -> dict[str, Any]:
    """Seconds, operations and MiB are powers of the clients, the seconds with a little noise."""
    noise = np.random.default_rng(0)

    def process(x: int, counted: bool) -> dict[str, Any]:
        seconds = [9.0, *(0.01 * x**power * noise.normal(1, 0.01, 3))]
        phases = {"train": [0.5 * s for s in seconds], "server": [0.1 * s for s in seconds]}
        memories = {"before": 100.0, "peak": 100.0 + x**memory}
        operations = x**work if counted else None
        return {"seconds": seconds, "phases": phases, "operations": operations, **memories}

    point = {"model": "tiny-cnn", "size": 16, "method": "FedAvg"}
    points = [
        {
            "x": x,
            "point": {**point, "clients": x},
            "processes": [process(x, c) for c in (True, False)],
        }
        for x in (5, 10, 30, 100, 300, 1000)
    ]
    asked = {"warm_up": 1, "repeat": 2, "rounds": 3, "images": 20, "batch": 20}
    return {
        "command": "python benchmarks/growth.py", "axis": "clients",
        "settings": {**asked, "engine": "reference"}, "results": {"FedAvg": points}, **FACTS,
    }  # fmt: skip


def test_a_slope_is_the_power_of_the_larger_half():
    x = [1, 2, 3, 10, 20, 40]
    y = [7.0, 7.0, 7.0, *(3 * v**1.5 for v in x[3:])]
    found = growth.slope(x, y)
    assert found is not None
    assert found.value == pytest.approx(1.5) and (found.start, found.end) == (10, 40)
    assert found.low == pytest.approx(found.high) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("power", "work", "verdict"),
    [
        (0.8, 1.0, "linear or better"),
        (1.0, 1.0, "linear or better"),
        (1.3, 1.4, "more than linear, as the method's operations"),
        (1.3, 1.0, "more than linear"),
    ],
)
def test_a_slope_is_judged_by_its_interval(power, work, verdict):
    frame = growth.slopes([growth_file(power, work, memory=1.2)]).set_index("of")
    row = frame.loc["seconds a round"]
    assert row["slope [95 % interval]"].startswith(f"{power:.2f}"[:3])
    assert row["growth"] == verdict and row["slope of operations"] == f"{work:.2f}"
    assert row["fitted over"] == "100 to 1,000"
    assert frame.loc["memory (MiB)", "growth"] == "more than linear"  # operations excuse no memory


def test_a_narrow_precision_beside_float32(tmp_path):
    """Differences 1, 2, 3: mean 2, standard error 1 / sqrt(3), t of two degrees 4.303."""
    asked = {"precision": "bf16", "paper": "adcol", "experiment": "table-1", "rule": "last5"}
    asked |= {"dataset": "digits5", "scale": "reduced", "seeds": [0, 1, 2]}
    one = {"float32": [80.0, 80.0, 83.0], "bf16": [81.0, 82.0, 86.0]}
    file = {"settings": asked, "results": {"FedAvg": one}, **FACTS}
    (tmp_path / "precision-x.json").write_text(json.dumps(file))
    html = report.precision(tmp_path).html
    shown = "81.00", "83.00", "+2.00 (-0.48 to +4.48)", "1.73", "<td>no</td>", "digits5"
    assert all(part in html for part in shown)


def test_every_view_shows_the_measurements_that_are_stored(tmp_path):
    """The project's own files, not made ones; where there is none a view says so."""
    for view in (report.rounds, report.phase_table, report.cross_device):
        assert report.NOTHING not in view().html and report.NOTHING in view(tmp_path).html
    assert "pfl-torchrun (float32)" in report.cross_device().html
    assert report.NOTHING in growth.growth("clients", tmp_path).html
