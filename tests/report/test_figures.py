"""The figures and their interactive forms hold what they were given: series, ticks, numbers."""

import io
import json
from dataclasses import replace
from itertools import product
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from IPython.core.formatters import DisplayFormatter
from PIL import Image

from fedrepro import papers
from fedrepro.data.federation import Samples
from fedrepro.pages import VEGA_LITE
from fedrepro.quantities import accuracy
from fedrepro.report import figures, images, results, views
from fedrepro.report.picture import LIVE, Picture, looks
from tests import toys
from tests.report.made import Made
from tests.report.test_tables import table

ADCOL = papers.load("adcol")


def curve_frame(labels: tuple[str, ...] = ("FedAvg", "ADCOL"), seeds: int = 2) -> pd.DataFrame:
    """Ten rounds; a label's accuracy is its number times ten plus the seed plus the round."""
    rows = [
        (label, seed, number, 10.0 * index + seed + number, 2e6 * number * (label != "SOLO"))
        for index, label in enumerate(labels)
        for seed in range(seeds)
        for number in range(1, 11)
    ]
    frame = pd.DataFrame(rows, columns=["label", "seed", "round", "avg", "bytes"])
    return frame.assign(dataset="digits5", mnist=50.0)


def seeded(values: dict[Any, list[float]], *keys: str) -> list[dict[str, Any]]:
    """A row for each seed of each value; a key of `values` holds what stands under `keys`."""
    return [
        {**dict(zip(keys, key, strict=True)), "seed": seed, "value": value}
        for key, seeds in values.items()
        for seed, value in enumerate(seeds)
    ]


def words(texts: Any) -> list[str]:
    return [text.get_text() for text in texts]


def legend(figure: Picture) -> list[str]:
    (found,) = figure.legends
    return words(found.get_texts())


def lines(figure: Picture) -> dict[str, Any]:
    return {str(line.get_label()): line for line in figure.axes[0].lines}


def ticks(axis: Any) -> list[str]:
    return words(axis.get_ticklabels())


def data(picture: Picture) -> pd.DataFrame:
    assert picture.drawn_live
    return pd.read_csv(io.StringIO(picture.drawn_live["data"]["values"]))


def filed(picture: Picture) -> dict[str, Any]:
    """What a picture's file holds, once Vega-Lite's own compiler has read it."""
    compiler = pytest.importorskip("vl_convert", reason="the extra `book` brings it")
    text = Image.open(io.BytesIO(picture.png())).info[LIVE]
    assert compiler.vegalite_to_vega(text, vl_version=VEGA_LITE)["marks"]
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_legend_lies_within_its_picture():
    labels = [f"GPCL={a}, APA={b}, number {n}" for n, (a, b) in enumerate(product("xw", "xw"))]
    frame = pd.concat(curve_frame().assign(label=label) for label in labels)
    figure = figures.curves(frame)
    figure.draw_without_rendering()
    (found,) = figure.legends
    box = found.get_window_extent()
    assert legend(figure) == labels and 0 <= box.x0 < box.x1 <= figure.bbox.x1


def test_curves_are_means_in_a_band_over_seeds():
    figure = figures.curves(curve_frame())
    shown, _ = DisplayFormatter().format(figure)  # once, and small enough for a phone
    assert set(shown) == {"text/plain", "image/png"} and len(shown["image/png"]) < 60_000
    assert Image.open(io.BytesIO(shown["image/png"])).width == 600 and plt.get_fignums() == []
    assert legend(figure) == ["FedAvg", "ADCOL"]
    found = lines(figure)
    assert list(found["FedAvg"].get_xdata()) == list(range(1, 11))
    assert found["ADCOL"].get_ydata() == pytest.approx(np.arange(1, 11) + 10.5)
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (1.0, 11.0)
    frame = curve_frame(seeds=3)  # a mean ends with its shortest seed
    figure = figures.curves(frame.query("label != 'ADCOL' or seed == 0 or round < 5"))
    assert list(lines(figure)["ADCOL"].get_xdata()) == [1, 2, 3, 4]
    rows = data(figure).set_index(["label", "round"])
    assert rows.loc["FedAvg", 10].to_dict() == {"mean": 11, "low": 10, "high": 12, "seeds": 3}
    assert rows.loc["ADCOL"].index.max() == 4


def test_a_method_has_one_look_in_all_figures_and_none_of_its_table_has_its_colour():
    for name, which in (("adcol", "1"), ("fedpall", "1-pacs"), ("i2pfl", "4"), ("mpft", "1-pacs")):
        found = looks(rows := [*papers.load(name).table(f"table-{which}").rows, "own"])
        assert all(looks([row]).items() <= found.items() for row in rows[:-1])
        many = [len({str(o[k]) + o["color"] for o in found.values()}) for k in found["own"]]
        assert many == [min(len(rows), 11), len(rows), len(rows)]
    assert looks(["SingleSet"])["SingleSet"] == looks(["own", "SOLO"])["SOLO"]


def test_sweep_keeps_the_order_given():
    values = {"mu=10": [50.0, 54.0], "mu=0": [70.0, 70.0], "mu=1": [80.0, np.nan]}
    rows = seeded({(label,): seeds for label, seeds in values.items()}, "label")
    ax = figures.sweep(pd.DataFrame(rows), "weight").axes[0]
    assert ticks(ax.xaxis) == ["10", "0", "1"]
    mean, *bars = ax.lines
    assert list(mean.get_ydata()) == [52.0, 70.0, 80.0]
    assert {min(bars[0].get_ydata()), max(bars[0].get_ydata())} == {52 - 8**0.5, 52 + 8**0.5}


def points() -> pd.DataFrame:
    base = pd.DataFrame({"x": [0.0, 1, 2, 3], "y": [0.0, 1, 0, 1]})
    base = base.assign(domain=list("aabb"), cls=list("0101"))
    return pd.concat([base.assign(label=name) for name in ("SOLO", "FedAvg", "ADCOL")])


@pytest.mark.parametrize(("by", "groups"), [("domain", ["a", "b"]), ("class", ["0", "1"])])
def test_embedding_has_a_panel_an_arm(by, groups):
    figure = images.embedding(points(), by)
    shown = [ax for ax in figure.axes if ax.get_title()]
    assert [ax.get_title() for ax in shown] == ["SOLO", "FedAvg", "ADCOL"]
    assert [str(c.get_label()) for c in shown[0].collections] == groups
    assert [len(c.get_offsets()) for c in shown[0].collections] == [2, 2]
    assert words(figure.axes[-1].get_legend().get_texts()) == groups
    given = points()[["label", "domain", "cls", "x", "y"]].astype({"cls": int})
    pd.testing.assert_frame_equal(data(figure), given.reset_index(drop=True), check_dtype=False)
    assert "3 panels: 6 of {}, 6 of {}".format(*groups) in filed(figure)["description"]


def test_sample_grid_draws_each_class_of_each_client():
    federation = toys.federation()
    first = federation.clients[0]
    only = first.train.labels != 1  # the first client has no image of the second class
    cut = Samples(first.train.images[only], first.train.labels[only])
    federation = replace(federation, clients=(replace(first, train=cut), *federation.clients[1:]))
    ax = images.sample_grid(federation, per_class=2).axes[0]
    assert (ticks(ax.xaxis), ticks(ax.yaxis)) == ([*"abc"], ["domain0", "domain1", "domain2"])
    sheet, step = np.asarray(ax.images[0].get_array()), toys.SIZE + 2
    assert sheet.shape == (6 * step - 2, 3 * step - 2, 3)
    assert (sheet[: toys.SIZE, step : step + toys.SIZE] == 255).all()


def test_counts_are_written_with_their_sums():
    train, _, test = axes = images.counts_chart(toys.federation((21, 13, 9))).axes
    assert [ax.get_title().split()[0] for ax in axes] == ["train", "validation", "test"]
    assert words(train.texts) == [*"777544333", "21", "13", "9"]
    assert ticks(train.yaxis) == ["domain0", "domain1", "domain2"]
    assert words(test.texts)[-3:] == ["12", "12", "12"]


def test_beside_draws_both_sides_of_every_cell():
    values = {("ADCOL", "mnist"): [94.0, 95, 96], ("ADCOL", "synthdigits-standin"): [70.0] * 3}
    figure = figures.beside(table(values))
    ax, methods = figure.axes[0], list(ADCOL.table("table-1").rows)
    assert figure.axes[1].get_title() == "SynthDigit (stand-in)" and ticks(ax.yaxis) == methods
    printed, mine = ax.containers
    row = methods.index("ADCOL")
    assert printed.lines[0].get_xdata()[row] == 94.7 and mine.lines[0].get_xdata()[row] == 95.0
    assert printed.lines[2][0].get_segments()[row][:, 0] == pytest.approx([94.1, 95.3])
    assert mine.lines[2][0].get_segments()[row][:, 0] == pytest.approx([94.0, 96.0])
    assert np.isnan(mine.lines[0].get_xdata()[0])
    assert legend(figure) == ["paper, mean ± std", "ours, mean ± std"]


def test_a_radar_chart_closes_the_line_of_every_arm():
    domains = "photo", "cartoon", "sketch"
    means = {"A": (61.0, 71.0, 81.0), "B": (42.0, 51.0, 91.0)}
    values = {(m, d): [v - 1, v + 1] for m in means for d, v in zip(domains, means[m], strict=True)}
    figure = figures.radar(seeded(values | {("A", "avg"): [99.0]}, "method", "column"))
    ax = figure.axes[0]
    found = {name: list(line.get_ydata()) for name, line in lines(figure).items()}
    assert found == {name: [*three, three[0]] for name, three in means.items()}
    assert ticks(ax.xaxis) == list(domains) and ax.get_ylim() == (40.0, 100.0)
    rows = data(figure).set_index(["label", "domain"])
    assert rows.value.to_dict() == {key: sum(pair) / 2 for key, pair in values.items()}
    two = {place: pair for place, pair in values.items() if place[1] in domains[:2]}
    assert ticks(figures.radar(seeded(two, "method", "column")).axes[0].xaxis) == [*domains[:2]]


def test_the_file_holds_the_figure_and_its_words_say_a_number():
    picture = figures.curves(curve_frame(), printed={"FedAvg": 57.1})
    picture.caption = "A caption < & “quoted”"
    info = Image.open(io.BytesIO(picture.png())).info
    said = filed(picture)["description"]
    assert said == info["Description"] and info["Caption"] == picture.caption in said
    assert "highest ADCOL with 20.50, lowest FedAvg with 10.50" in said
    assert len(rows := data(picture)) == 20
    assert rows.groupby("label").printed.max().dropna().to_dict() == {"FedAvg": 57.1}


@pytest.mark.slow
def test_the_diagonal_of_recorded_confusions_is_the_recorded_accuracy(monkeypatch):
    found = results.recorded("fedapc")
    asked = found.of_one_scale("digits4-standin", "table-1-digits")
    cells = pd.DataFrame(asked.cells("table-1-digits")).groupby(["method", "column"]).value.mean()
    picture = views.confusions(found.where(dataset="digits4-standin"), "table-1-digits")
    assert isinstance(picture, Picture)
    rows = data(picture)
    assert filed(picture) and list(rows.method.unique()[:2]) == ["FedAPC", "FedAvg"]
    others = [cells[name, "avg"] for name in rows.method.unique()[2:]]
    assert len(others) == 2 and others == sorted(others, reverse=True)
    whole = rows.groupby(["method", "domain", "cls"]).percent.sum()
    assert whole.to_numpy() == pytest.approx(100, abs=1e-3)
    for (method, domain), part in rows.groupby(["method", "domain"]):
        right = part.images[part.cls == part.predicted].sum() / part.images.sum()
        assert 100 * right == pytest.approx(cells[method, domain], abs=1e-3)
    shown: list[Any] = []
    monkeypatch.setattr(views, "show", shown.extend)
    kept = accuracy.predictions  # old records have none
    monkeypatch.setattr(
        accuracy, "predictions", lambda r, by: {} if "SOLO" in str(r.config) else kept(r, by)
    )
    shown.append(views.confusions(results.recorded("fedpall"), "table-1-pacs"))
    assert isinstance(shown[1], Picture) and "recorded for SingleSet.</p>" in shown[0].html


class Logged(Made):
    """Rows whose runs have four clients, and one row whose log has the discriminator's accuracy."""

    def _record(self, label: str) -> Any:
        record = super()._record(label)
        if label == "ADCOL":
            facts = {"measure": "server", "subject": "discriminator_accuracy_before"}
            log = pd.DataFrame({"round": [1, 2], "value": [10.0 + self.seed, 40.0]})
            record.curve = pd.concat([record.curve, log.assign(domain="", split="", **facts)])
        record.data = {"clients": [{}] * 4}
        return record


def test_the_discriminator_is_beside_chance_where_a_record_has_its_accuracy():
    values = {"table-4": {(row, "avg"): 50.0 for row in ("FedAvg", "ADCOL")}}
    studies = [(Logged("adcol", "office10", "reduced", s, values), ["table-4"]) for s in (0, 2)]
    asked: Any = (results.Results(studies), "table-4", "office10")  # type: ignore[arg-type]
    term = "discriminator_accuracy_before", "accuracy (%)"
    assert set(data(views.logged(*asked, *term)).label) == {"ADCOL"}  # type: ignore[arg-type]
    found = data(views.logged(*asked, *term, chance=True))  # type: ignore[arg-type]
    absent: Any = views.logged(*asked, "absent", "accuracy (%)")
    assert absent.summary == "No recorded run has logged absent."
    means = found.set_index(["label", "round"])["mean"].to_dict()
    chance = "chance, 1 in 4"
    assert means == {("ADCOL", 1): 11, ("ADCOL", 2): 40, (chance, 1): 25, (chance, 2): 25}
    assert (found.seeds == 2).all()
