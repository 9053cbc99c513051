"""The interactive figures hold the numbers they were given, and the recorded ones."""

from __future__ import annotations

import io
import json
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from fedrepro.pages import VEGA_LITE
from fedrepro.report import figures, images, interactive, results, views
from fedrepro.report.picture import LIVE, Picture
from tests.report.test_figures import curve_frame, points


def data(spec: dict[str, Any]) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(spec["data"]["values"]))


def filed(picture: Picture) -> dict[str, Any]:
    """What a picture's file holds, once Vega-Lite's own compiler has read it."""
    compiler = pytest.importorskip("vl_convert", reason="the extra `book` brings it")
    text = Image.open(io.BytesIO(picture.png())).info[LIVE]
    assert compiler.vegalite_to_vega(text, vl_version=VEGA_LITE)["marks"]
    found: dict[str, Any] = json.loads(text)
    return found


def test_curves_hold_mean_band_and_seeds() -> None:
    frame = curve_frame(seeds=3)
    frame = frame[(frame.label != "ADCOL") | (frame.seed == 0) | (frame["round"] <= 4)]
    rows = data(interactive.curves(interactive.means(frame, "round", "avg"), "accuracy")).set_index(
        ["label", "round"]
    )
    assert rows.loc["FedAvg", 10].to_dict() == {"mean": 11, "low": 10, "high": 12, "seeds": 3}
    assert rows.loc["ADCOL"].index.max() == 4  # where its shortest seed ends


def test_curves_over_traffic_leave_one_row_of_what_sends_nothing() -> None:
    frame = curve_frame(("SOLO", "FedAvg"))
    means = interactive.means(frame, "bytes", "avg")
    rows = data(interactive.curves(means, "accuracy")).groupby("label")
    assert rows.get_group("SOLO")[["round", "MB", "mean"]].to_numpy().tolist() == [[10, 0, 10.5]]
    assert rows.get_group("FedAvg").MB.tolist() == pytest.approx([2.0 * r for r in range(1, 11)])


def test_radar_and_embedding_hold_each_value() -> None:
    values = {(m, d): 60.0 + 7 * i + j for i, m in enumerate("ab") for j, d in enumerate("xyz")}
    cells = [{"method": m, "column": d, "seed": 1, "value": v} for (m, d), v in values.items()]
    radar = filed(figures.radar(cells))
    found = data(radar).set_index(["label", "domain"])
    assert found.value.to_dict() == values and found.spoke.tolist() == [0, 0, 1, 1, 2, 2]
    assert "highest b on z with 69.00, lowest a on x with 60.00" in radar["description"]
    plane = filed(images.embedding(points(), "class"))
    given = points()[["label", "domain", "cls", "x", "y"]].astype({"cls": int})
    pd.testing.assert_frame_equal(data(plane), given.reset_index(drop=True), check_dtype=False)
    assert "12 points in 3 panels: 6 of 0, 6 of 1" in plane["description"]


def test_the_file_holds_the_figure_and_its_words_say_a_number() -> None:
    picture = figures.curves(curve_frame(), printed={"FedAvg": 57.1})
    picture.caption = "A caption < & “quoted”"
    info = Image.open(io.BytesIO(picture.png())).info
    spec = filed(picture)
    assert spec["description"] == info["Description"]
    assert "A caption < &" in spec["description"]
    assert "highest ADCOL with 20.50, lowest FedAvg with 10.50" in spec["description"]
    assert spec["description"].endswith("series: FedAvg, ADCOL")
    rows = data(spec)
    assert len(rows) == 20
    assert rows.groupby("label").printed.max().dropna().to_dict() == {"FedAvg": 57.1}


@pytest.mark.slow
def test_the_diagonal_of_recorded_confusions_is_the_recorded_accuracy() -> None:
    found = results.recorded("fedapc")
    asked = found.of_one_scale("digits4-standin", "table-1-digits")
    cells = pd.DataFrame(asked.cells("table-1-digits")).groupby(["method", "column"]).value.mean()
    picture = views.confusion(found, "table-1-digits", "digits4-standin")
    assert isinstance(picture, Picture)
    rows = data(filed(picture))
    assert rows.method.iloc[0] == "FedAPC" and rows.method.nunique() == 4
    whole = rows.groupby(["method", "domain", "cls"]).percent.sum()
    assert whole.to_numpy() == pytest.approx(100, abs=1e-3)
    for (method, domain), part in rows.groupby(["method", "domain"]):
        right = part.images[part.cls == part.predicted].sum() / part.images.sum()
        assert 100 * right == pytest.approx(cells[method, domain], abs=1e-3)
    some = views.confusion(results.recorded("fedpall"), "table-1-pacs", "pacs")
    assert isinstance(some, Picture) and some.drawn_live
    assert set(data(some.drawn_live).method) == {"ADCOL", "MOON", "RUCR"}  # the rest kept none
