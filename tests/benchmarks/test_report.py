"""The performance page's views: slopes, figures and tables hold what the stored files hold."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrepro.base.errors import FedReproError
from fedrepro.report.picture import Picture

with pytest.MonkeyPatch.context() as patched:
    patched.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import report
    import report_growth as growth

FACTS = {
    "environment": {
        "date": "2026-01-02T03:04:05+00:00", "device": "a <processor>", "threads": 2,
        "python": "3.11.1", "packages": {"torch": "2.13.0"}, "commit": "abc" * 10, "dirty": True,
    },
    "load_average": {"before": 0.1, "after": 1.0},
}  # fmt: skip
PLACES = (5, 10, 30, 100, 300, 1000)


def growth_file(power: float = 1.0, work: float = 1.0, memory: float = 1.0) -> dict[str, Any]:
    """Seconds, operations and MiB are powers of the clients, the seconds with a little noise."""
    noise = np.random.default_rng(0)
    point = {"model": "tiny-cnn", "size": 16, "method": "FedAvg"}

    def process(x: int, counted: bool) -> dict[str, Any]:
        seconds = [9.0, *(0.01 * x**power * noise.normal(1, 0.01, 3))]
        return {
            "seconds": seconds,
            "phases": {"train": [0.5 * s for s in seconds], "server": [0.1 * s for s in seconds]},
            "before": 100.0,
            "peak": 100.0 + x**memory,
            "operations": x**work if counted else None,
        }

    points = [
        {
            "x": x,
            "point": {**point, "clients": x},
            "processes": [process(x, counted) for counted in (True, False)],
        }
        for x in PLACES
    ]
    asked = {"warm_up": 1, "repeat": 2, "rounds": 3, "images": 20, "batch": 20}
    return {
        "command": "python benchmarks/growth.py", "axis": "clients",
        "settings": {**asked, "engine": "reference"}, "results": {"FedAvg": points}, **FACTS,
    }  # fmt: skip


def phases_file() -> dict[str, Any]:
    row = {part: float(i + 1) for i, part in enumerate(report.PARTS)}
    found = {"watched": [row, {k: 3 * v for k, v in row.items()}], "plain": [70.0, 74.0]}
    asked = {"clients": 5, "images": 192, "size": 28, "batch": 64, "epochs": 1, "repeat": 2}
    return {
        "command": "python benchmarks/phases.py", "settings": {**asked, "device": "cpu"},
        "results": {"digit-cnn": {"FedAvg": found, "ADCOL": found}}, **FACTS,
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {"growth-clients-reference-cpu": growth_file(), "phases-cpu": phases_file()}
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def test_a_slope_is_the_power_of_the_larger_half() -> None:
    x = [1, 2, 3, 10, 20, 40]
    y = [7.0, 7.0, 7.0, *(3 * v**1.5 for v in x[3:])]
    found = growth.slope(x, y)
    assert found is not None
    assert found.value == pytest.approx(1.5) and (found.start, found.end) == (10, 40)
    assert found.low == pytest.approx(found.high) == pytest.approx(1.5)


def test_the_interval_holds_the_slope_nineteen_times_of_twenty() -> None:
    generator = np.random.default_rng(1)
    x = [10, 10, 20, 20, 40, 40, 80, 80]
    held = 0
    for _ in range(400):
        found = growth.slope(x, [v * math.exp(generator.normal(0, 0.2)) for v in x])
        assert found is not None
        held += found.low <= 1 <= found.high
    assert 0.92 <= held / 400 <= 0.98


def test_what_has_no_slope() -> None:
    assert growth.slope([1, 2, 3, 4], [1.0, 1.0, 0.0, 2.0]) is None
    with pytest.raises(FedReproError, match="single place"):
        growth.slope([3, 3], [1.0, 2.0])


@pytest.mark.parametrize(
    ("power", "work", "verdict"),
    [
        (0.8, 1.0, "linear or better"),
        (1.0, 1.0, "linear or better"),
        (1.3, 1.4, "more than linear, as the method's operations"),
        (1.3, 1.0, "more than linear"),
    ],
)
def test_a_slope_is_judged_by_its_interval(power: float, work: float, verdict: str) -> None:
    frame = growth.slopes([growth_file(power, work, memory=1.2)]).set_index("of")
    row = frame.loc["seconds a round"]
    assert row["slope [95 % interval]"].startswith(f"{power:.2f}"[:3])
    assert row["growth"] == verdict and row["slope of operations"] == f"{work:.2f}"
    assert row["fitted over"] == "100 to 1,000"
    assert frame.loc["memory (MiB)", "growth"] == "more than linear"  # operations excuse no memory


def test_memory_counts_once_a_process_and_the_warming_round_not_at_all() -> None:
    frame = growth.growth_frame(growth_file())
    assert frame.seconds.max() < 11 and len(frame) == len(PLACES) * 2 * 3
    assert len(growth.observed(frame, "mib")) == len(PLACES) * 2
    assert len(growth.observed(frame, "seconds")) == len(frame)


def test_the_growth_figure_draws_medians_and_fit() -> None:
    figure = growth.growth_picture(growth_file(memory=0.5))
    time, memory = figure.axes
    assert "FedAvg, slope 1.00" in time.get_legend().get_texts()[0].get_text()
    assert "FedAvg, slope 0.50" in memory.get_legend().get_texts()[0].get_text()
    marks, fit, linear = memory.lines[0], memory.lines[-2], memory.lines[-1]
    assert list(marks.get_xdata()) == list(PLACES)
    assert marks.get_ydata() == pytest.approx([x**0.5 for x in PLACES])
    assert list(fit.get_xdata()) == [100, 1000]
    assert fit.get_ydata() == pytest.approx([10, 1000**0.5])
    assert linear.get_ydata()[0] / linear.get_ydata()[1] == pytest.approx(5 / 1000)
    assert time.get_yscale() == memory.get_xscale() == "log"


def test_phases_of_growth(folder: Path) -> None:
    html = growth.phase_slopes("clients", folder).html
    assert "FedAvg: training" in html and "50 %" in html and "10 %" in html
    assert "FedAvg: tests" not in html  # this file has none


def test_shares_of_a_round_sum_to_all_of_it(folder: Path) -> None:
    figure = report.phases_picture(phases_file())
    bars = figure.axes[0].patches
    assert len(bars) == 2 * len(report.PARTS)
    assert sum(bar.get_width() for bar in bars) == pytest.approx(200)
    (legend,) = figure.legends
    assert [t.get_text() for t in legend.get_texts()] == list(report.PARTS.values())
    html = report.phase_table(folder).html
    assert "2.000 s, 2.8 %" in html  # 1 and 3 of 36 and 108
    assert "72.000 (36.000 to 108.000)" in html and "72.000 (70.000 to 74.000)" in html


def test_pictures_stand_over_their_protocol(folder: Path) -> None:
    last = growth.growth("clients", folder)
    assert not isinstance(last, Picture)
    assert "of 20 images each" in last.html and "benchmarks/growth.py" in last.html
    assert "a &lt;processor&gt;, threads: 2" in last.html


def test_nothing_stored_says_so(tmp_path: Path) -> None:
    views = (
        growth.growth("clients", tmp_path), growth.slope_table(tmp_path),
        growth.phase_slopes("clients", tmp_path), report.rounds(tmp_path),
        report.phases(tmp_path), report.phase_table(tmp_path),
        report.cross_device(tmp_path), report.gpu(tmp_path),
        report.precision(tmp_path),
        report.measurements(tmp_path),
    )  # fmt: skip
    assert all(report.NOTHING in view.html for view in views)


@pytest.mark.parametrize("text", ["{", "3"])
def test_a_file_that_is_no_measurement_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "rounds-x.json").write_text(text)
    with pytest.raises(FedReproError, match=r"rounds-x\.json cannot be read"):
        report.rounds(tmp_path)


def test_rounds_beside_the_field(tmp_path: Path) -> None:
    memory = {"library": {"peak": 1100.0}, "field": {"peak": 1300.0}}
    found = {
        "seconds": {"library": [1.0, 3.0, 2.0], "field": [4.0, 4.0, 5.0]},
        "seconds_ratio": {"median": 0.4, "min": 0.25, "max": 0.75},
        "memory_mib": memory, "memory_ratio": 0.85,
    }  # fmt: skip
    asked = {"model": "digit-cnn", "device": "cpu", "clients": 5, "images": 743, "size": 28}
    asked |= {"batch": 64, "epochs": 1, "repeat": 3}
    file = {"settings": asked, "results": {"FedAvg": found}, **FACTS}
    (tmp_path / "rounds-x.json").write_text(json.dumps(file))
    html = report.rounds(tmp_path).html
    for part in (
        "2.00 (1.00 to 3.00)",
        "0.40 (0.25 to 0.75)",
        "1,100",
        "0.85",
        "743 images",
        "digit-cnn, float32",
    ):
        assert part in html


def test_other_scripts_files(tmp_path: Path) -> None:
    sides = {
        "library": {"repeats": [{"seconds": [1.0, 1.0]}, {"seconds": [2.0, 2.0]}]},
        "pfl": {"repeats": [{"seconds": [2.0, 2.0]}, {"seconds": [3.0, 3.0]}]},
        "flower": {"repeats": [], "error": "not measured"},
    }
    asked = {"users": 1000, "images": 50, "size": 32, "cohort": 50, "batch": 10, "rounds": 2}
    asked |= {"precision": "bf16"}
    ratio = {"pfl": {"median": 1.75, "min": 1.5, "max": 2.0}}
    file = {"settings": asked, "engine": "reference", "sides": sides, "ratios": ratio}
    one = {"calls": [{"command": "one", **FACTS}]}
    (tmp_path / "cross-device-cpu.json").write_text(json.dumps({**one, **file}))
    html = report.cross_device(tmp_path).html
    assert (
        "library (reference, bf16)" in html
        and "pfl (float32)" in html
        and "1.500 (1.000 to 2.000)" in html
    )
    assert "1.75 (1.50 to 2.00)" in html and "not measured" in html
    seconds = {"median": 0.5, "min": 0.4, "max": 0.6, "all": [0.5, 0.4, 0.6]}
    timing = {"digit-cnn/FedAvg/fused": {"seconds": seconds}, "digit-cnn/x": {"error": "no"}}
    calls = [{"command": "two", **FACTS}]
    gpu = {"tiny": False, "timing": timing}
    (tmp_path / "gpu-x.json").write_text(json.dumps({"calls": calls, **gpu}))
    html = report.gpu(tmp_path).html
    assert "0.500 (0.400 to 0.600)" in html and "<td>3</td>" in html and "digit-cnn/x" not in html
    (tmp_path / "gpu-tiny.json").write_text(json.dumps({"calls": calls, **gpu, "tiny": True}))
    assert report.gpu(tmp_path).html == html
    listed = report.measurements(tmp_path).html
    assert listed.count("(changed files)") == 3 and "two" in listed and "gpu-x.json" in listed


def test_a_narrow_precision_beside_float32(tmp_path: Path) -> None:
    """Differences 1, 2, 3: mean 2, standard error 1 / sqrt(3), t of two degrees 4.303."""
    asked = {"precision": "bf16", "paper": "adcol", "experiment": "table-1", "rule": "last5"}
    asked |= {"dataset": "digits5", "scale": "reduced", "seeds": [0, 1, 2]}
    one = {"float32": [80.0, 80.0, 83.0], "bf16": [81.0, 82.0, 86.0]}
    file = {"settings": asked, "results": {"FedAvg": one}, **FACTS}
    (tmp_path / "precision-x.json").write_text(json.dumps(file))
    html = report.precision(tmp_path).html
    for part in ("81.00", "83.00", "+2.00 (-0.48 to +4.48)", "1.73", "<td>no</td>", "digits5"):
        assert part in html


def test_every_view_shows_the_measurements_that_are_stored() -> None:
    """The project's own files, not made ones."""
    views = (report.rounds, report.phase_table, report.cross_device)
    for view in views:
        assert report.NOTHING not in view().html, view.__name__
    assert "pfl-torchrun (float32)" in report.cross_device().html
