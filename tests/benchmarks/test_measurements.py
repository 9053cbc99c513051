"""Growth, phases of a round, clients at once, precisions: what is timed and counted and written."""

import json
import re
import runpy
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from fedrepro import papers
from fedrepro.base import files
from fedrepro.data import DATASETS
from fedrepro.data.manifest import locate
from fedrepro.federated import metrics
from fedrepro.records.packed import Pack
from fedrepro.report import verdicts
from fedrepro.report.leaderboard import chosen
from fedrepro.report.results import recorded
from fedrepro.report.views import numbers
from tests.benchmarks.conftest import FOLDER, script

growth, phases, precision = map(script, ("growth", "phases", "precision"))


@pytest.mark.slow
def test_growth_in_processes_of_their_own_fills_the_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(growth, "METHODS", ("ADCOL",))
    words = "--axis clients --values 4 2 --images 6 --batch 4 --rounds 1 --repeat 2 --threads 1"
    growth.main([*words.split(), "--results", str(tmp_path)])
    file = json.loads(next(tmp_path.iterdir()).read_text())
    assert file["command"] == f"python benchmarks/growth.py {words}"
    assert file["environment"]["threads"] == file["settings"]["threads"] == 1
    ((method, points),) = file["results"].items()
    assert [point["x"] for point in points] == [2, 4]
    for point in points:
        assert point["point"]["method"] == method == "ADCOL"
        first, second = point["processes"]
        assert first["operations"] > 0 and second["operations"] is None
        assert len(first["seconds"]) == 2 and 0 < first["before"] <= first["peak"]
    assert "slope" in capsys.readouterr().out


def test_the_file_of_phases_is_what_the_page_draws(tmp_path, monkeypatch):
    words = "--model tiny-cnn --clients 2 --images 18 --size 16 --batch 8 --repeat 2 --threads 1"
    monkeypatch.setattr(phases.entry, "RESULTS", tmp_path)
    phases.main(words.split())
    file = json.loads((tmp_path / "phases-cpu.json").read_text())
    for found in file["results"]["tiny-cnn"].values():
        assert len(found["watched"]) == len(found["plain"]) == 2 and min(found["plain"]) > 0
        for row in found["watched"]:
            assert set(row) == set(phases.report.PARTS)
            assert all(row[part] > 0 for part in ("reading", "forward", "backward", "step", "rest"))
    assert "tiny-cnn, FedAvg" in phases.report.phase_table().html
    bars = phases.report.phases_picture(file).axes[0].patches  # shares of two methods' rounds
    assert sum(bar.get_width() for bar in bars) == pytest.approx(200)


def said(page: str, *texts: str) -> None:
    words = " ".join(re.sub(r'\\n",\s*"', " ", (files.CHECKOUT / page).read_text("utf-8")).split())
    assert [text for text in texts if text not in words] == []


OWN, COMMON = "book/results/own_protocol.ipynb", "book/results/common.ipynb"


def test_what_the_page_of_the_papers_own_protocol_says_of_stored_rounds():
    stored = pd.read_json(files.RECORDS / "end-to-end-fedbn.json", dtype=False)
    theirs, moved = (stored[f"{what} - ours"].astype(float) for what in ("theirs", "ours moved"))
    assert theirs[0] == 0 and theirs[1] < 1e-4 < 1 < moved[0]
    theirs = pd.read_json(files.RECORDS / "end-to-end-rethinkfl.json")["theirs - ours"].max()
    said(OWN, f"differ by {theirs:.1e} of")
    gap = pd.read_json(files.RECORDS / "fedbn-shortcuts.json").tail(8).diff(axis=1).iloc[:, -1]
    assert gap.min() < 0 < gap.max()
    fall = pd.read_json(files.RECORDS / "adcol-batchnorm.json").set_index("round")
    assert [round(v) for v in fall.loc[5:11].mean() - fall.loc[15:20].mean()] == [22, 18, -1, -4]
    assert fall.diff(axis=1)["recomputed (%)"][:2].round().tolist() == [20, 6]
    full = recorded("adcol").where(scale="paper", seed=0)
    own, table = (numbers(full, f"table-4{kind}", "office10").avg for kind in ("-readings", ""))
    own, averaged = own["FedAvg, BatchNorm recomputed"], table["FedAvg"]
    said(OWN, f"FedAvg has {own:.1f} %", f"give {averaged:.1f} %", f"by {max(-gap):.1f} points")
    said(OWN, f"FedAvg gains {own - averaged:.1f} points by")
    said(OWN, f"FedBN, which averages the other weights only, has {table['FedBN']:.1f} %")
    g, common, both = [], recorded("common"), ("methods", "own-statistics")
    for name in ("office10", "pacs", "digits5-standin"):
        before, after = (numbers(common, e, name).avg for e in both)
        g.append(f"{(after - before).replace(0, np.nan).mean():.1f}")
        assert len({chosen(common, e, name).chosen["FedAvg"] for e in both}) == 1
    more = "gain {} points on average on Office-Caltech-10, {} on PACS and {} on Digits".format(*g)
    for page in (COMMON, "book/intro.md"):
        said(page, more)
    for first in ("README.md", "book/intro.md"):
        said(first, f"FedAvg has {own:.1f} % with", f"and {averaged:.1f} % with averaged")
    pack, last = Pack(files.RECORDS), "measure == 'accuracy' and split == 'test' and round == 20"
    curves = [pack.rows(r) for r, line in pack.runs.items() if line["file"] == "office10-paper"]
    trials = [c.query(last).value.mean() for c in curves if c["round"].max() == 20]  # of a weight
    assert len(trials) >= 10
    said(OWN, *(f"{mean:.1f}" for mean in trials))


def test_what_held_at_scale_paper():
    tables = {"adcol": "table-4", "fedapc": "table-1-office10", "i2pfl": "table-3-office10"}
    adcol, fedapc, i2pfl = (
        numbers(recorded(paper).where(scale="paper"), table, "office10").avg.sort_values()
        for paper, table in tables.items()
    )
    said(OWN, f"{adcol.FedBN - adcol.ADCOL:.1f} points below FedBN (two seeds")
    said(OWN, f"FedAPC ends {fedapc.FedProto - fedapc.FedAPC:.1f} points below FedProto")
    below = f"MOON is {57.84 - i2pfl.MOON:.1f} points below its printed"
    said(OWN, f"I2PFL ends {i2pfl.I2PFL - i2pfl.FedProto:.1f} points above FedProto", below)
    assert [*i2pfl.index[-3:]] == ["FedProto", "I2PFL, earlier constants", "I2PFL"]


def test_what_pages_say_of_recorded_tables():
    full, i2pfl = recorded("adcol").where(scale="paper"), recorded("i2pfl")
    table = verdicts.beside(full, "table-4").set_index(["column", "method"])
    a, off = table.ours.avg, table.difference.unstack("column")
    averaging, rest = off[off.avg < 0], off[off.avg > 0].lt(0).stack()
    assert [*averaging.index] == ["FedAvg", "FedProx", "Per-FedAvg"]
    assert {*averaging.idxmin(axis=1)} == {"DSLR"}
    assert {*rest[rest].index} == {(m, d) for m in ("SOLO", "ADCOL") for d in ("Amazon", "Caltech")}
    needed, curves = numbers(full, "table-6-rounds", "office10").avg, full.curves("table-4")
    curves = curves.set_index(["round", "label"]).avg.sort_index()
    assert curves[2, "SOLO"].min() > a.drop(["SOLO", "FedRep", "Per-FedAvg"]).min()
    said(OWN, f"here ADCOL needs {needed['ADCOL']:g} and FedAvg {needed['FedAvg']:g}.")
    said(OWN, f"Before them the mean is {curves[99, 'FedRep'].mean():.1f} % (39.7 and 43.3 in")
    said(OWN, f"FedRep has {a['FedRep']:.1f} % and training alone {a['SOLO']:.1f} %")
    said(OWN, f"ADCOL has {a['ADCOL']:.1f} % and training alone {a['SOLO']:.1f} %")
    tries = next(r.tries for *_, r in full.runs("table-4") if r.label == "ADCOL")
    said(OWN, "({:.1f}, {:.1f} and {:.1f} %), and 0.1 is".format(*list(tries.values())[2:]))
    twice = numbers(i2pfl, "table-3-readings", "office10").avg.filter(like="twice")
    assert twice.idxmin() == "I2PFL, twice the rounds" and len(twice) == 3
    assert i2pfl.rising("table-5-digits") and not any(recorded("common").rising("frozen").values())
    paper = i2pfl.where(scale="paper")
    avg = numbers(paper, "table-3-office10", "office10").avg
    (run,) = (r for *_, r in paper.runs("table-3-office10") if r.label == "FedProx")
    assert run.record.curve.query("measure == 'term' and subject == 'prox'").value.max() < 0.0003
    off = f"moves one run by {avg.FedAvg - avg.FedProx:.1f} points"
    said(OWN, f"it has {avg.FedProx:.1f} % and FedAvg {avg.FedAvg:.1f} %", off)
    low, _, alone, both = numbers(i2pfl, "table-5-digits", "digits4-standin").avg
    gains = f"{both - low:.1f} and {alone - low:.1f} points above FedAvg"
    said("book/i2pfl/differences.md", f"a mean of {avg.FedAvg:.1f} % where 57.5 is printed", gains)
    draws = numbers(recorded("fedapc"), "sweep-draws", "office10")[["dslr", "webcam", "avg"]]
    for a, b, spread in draws.agg(["min", "max", "std"]).T.to_numpy():
        said("book/results/fedapc_results.ipynb", f"from {a:.1f} to {b:.1f} %", f"{spread:.1f} and")
    ran = [r for *_, r in recorded("adcol").runs("table-11") if r.label == "dimension=512"]
    for run, _ in zip(ran, range(3), strict=True):  # three seeds, no fewer
        kl = run.record.curve.query("subject == 'kl'").groupby("round").value.mean().loc[80:]
        avg = metrics.accuracies(run.record.curve)["avg"]
        assert avg.idxmax() < 40 and kl.min() > 0.5 and avg.loc[80:].max() < 73
    digits = recorded("adcol").where(scale="reduced", dataset="digits5-standin")
    ends = pd.concat(digits.curves(f"figure-6{kind}") for kind in ("", "-readings"))
    ends = ends.groupby(["label", "seed"]).avg.last().unstack()
    assert ends.loc["ADCOL, representations kept"].max() < ends.loc["FedAvg"].min()
    lost = digits.curves("table-16").pivot_table("avg", "round", "label").diff(axis=1).iloc[:, 1]
    said("book/results/adcol_ablations.ipynb", f"is {lost[80]:.1f} p", f"ends {lost[240]:.0f} p")
    pacs = numbers(recorded("fedpall"), "table-1-pacs", "pacs").avg.sort_values()
    assert {*pacs.index[6:]} == {"SingleSet", "FedBN", "FedProto", "ADCOL", "FedPall"}
    low, high = (f"{part.min():.0f} to {part.max():.0f} %" for part in (pacs[:6], pacs[6:]))
    said("book/results/fedpall_results.ipynb", f"two groups: {high}, the others {low}")
    cells = pd.DataFrame(recorded("fedpall").cells("prose-privacy"))
    means = cells[cells.column == "MI"].groupby("method").value.mean()
    assert means["no noise"] < means["prototype mixture and Bernoulli mask"]


# the stored counts, and the domains that are read: the stand-in takes minutes to generate
DIGITS = ("digits5-standin", "shared-digits", ("mnist", "mnistm"))
OFFICE = ("office10", "shared-office10", DATASETS["office10"])


@pytest.mark.parametrize(("dataset", "name", "domains"), [DIGITS, OFFICE])
def test_disjoint_removes_what_the_page_counts(real_data, dataset, name, domains, monkeypatch):
    if any(locate(domain, real_data).missing for domain in domains):
        pytest.skip("the data set is not under the data root")
    monkeypatch.setitem(DATASETS, dataset, domains)
    spec = papers.load("fedpall").protocol(dataset, "reduced").data
    found = script("shared_images").of(spec, real_data)
    stored = json.loads((files.RECORDS / f"{name}.json").read_text("utf-8"))
    kept = [row for row in stored if row["protocol"] == "fedpall, reduced"]
    assert kept and found.to_dict("records") == [{key: row[key] for key in found} for row in kept]
    apart = spec.allocation.model_copy(update={"disjoint": True})
    cut = spec.model_copy(update={"allocation": apart})
    assert script("shared_images").of(cut, real_data).empty


REFUSED = [
    *(("at_once", "--threads 1", ""), ("cross_device", "--peers nobody", "")),
    *(("drift", "--domains nowhere", ""), ("end_to_end", "nowhere", "name a clone")),
    *(("gpu", "--device cuda", ""), ("growth", "--values 3 5", "belong to one axis")),
    ("growth", "--axis clients --values 7", "two or more"),
    ("growth", "--axis clients --values 0 5", "from 1 on"),
    *(("growth", "--images 1", "2 or more"), ("phases", "--model nothing", "")),
    ("peak", "--results nowhere/peak.md", "no folder nowhere"),
    ("precision", "--precision tf32", "a CPU has no tf32"),
    *(("rounds", "--images 9 --batch 8", ""), ("shared_images", "--papers nobody", "")),
    ("verdict_words", "--out nowhere/words.md", ""),
]
NUMBERS = [("rounds", f"--repeat={n}", "is no whole number from 1 on") for n in ("0", "two", "1.5")]
NUMBERS += [("precision", f"--seeds={n}", "different seeds") for n in ("0", "0,0", "0,x")]


@pytest.mark.parametrize(("name", "words", "says"), [*REFUSED, *NUMBERS])
def test_bad_input_is_one_line_and_status_2(name, words, says, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", [name, *words.split()])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert caught.value.code == 2
    *usage, line = capsys.readouterr().err.splitlines()
    assert says in line
    if (name, words, says) in REFUSED:  # argparse shows the usage too
        assert line.startswith("error: ") and not usage


def test_every_script_is_tried_and_named_in_the_readme():
    found = {path.stem for path in FOLDER.glob("*.py") if "__main__" in path.read_text("utf-8")}
    assert found == {name for name, *_ in REFUSED}
    text = (FOLDER / "README.md").read_text("utf-8")
    assert [name for name in found if f"`{name}.py`" not in text] == []
