"""TensorBoard's events, read back: they are the record's numbers, each once."""

from pathlib import Path

import pytest

pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

import fedrepro
from fedrepro import cli
from fedrepro.base.errors import FedReproError, Stopped
from fedrepro.base.files import TRACK
from fedrepro.base.progress import Progress, Tracker
from fedrepro.federated import metrics
from tests.data.made import one_line

ROUNDS = {"rounds": 3}


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    read = EventAccumulator(str(folder), purge_orphaned_data=False)
    read.Reload()
    return {n: [(e.step, e.value) for e in read.Scalars(n)] for n in read.Tags()["scalars"]}


def check(run: fedrepro.Run, folder: Path) -> None:
    found = events(folder)
    wanted = {f"accuracy/{name}": run.accuracy[name] for name in run.accuracy if name != "avg"}
    wanted["accuracy/mean"] = run.accuracy["avg"]
    sent = metrics.traffic(run.curve)
    wanted |= {f"bytes/{kind}": sent[kind] for kind in sent}
    wanted["bytes/total"] = sent.sum(axis=1)
    terms = run.curve[run.curve.measure == "term"]
    for term, rows in terms.groupby("subject"):
        wanted[f"term/{term}"] = rows.groupby("round").value.mean()
    assert set(found) == set(wanted) and {"term/ce", "term/kl"} <= set(found)
    for name, series in wanted.items():
        assert dict(found[name]) == pytest.approx(series.to_dict(), rel=1e-6), name
        assert len(found[name]) == len(series), name


def test_events_are_the_record_and_leave_it_as_it_is(tmp_path):
    plain = fedrepro.run("ADCOL", changes=ROUNDS, runs=tmp_path / "plain")
    run = fedrepro.run("ADCOL", changes=ROUNDS, runs=tmp_path / "runs", track="tensorboard")
    folder = tmp_path / "runs" / run.record.run_id
    assert run.record.run_id == plain.record.run_id
    assert "tensorboard" not in (folder / "done").read_text()
    check(run, folder / "tensorboard")
    for _ in range(2):  # a run that is there already is told of once
        fedrepro.run("ADCOL", changes=ROUNDS, runs=tmp_path / "plain", track="tensorboard")
    check(run, tmp_path / "plain" / run.record.run_id / "tensorboard")


def test_a_resumed_run_has_no_step_twice(tmp_path, monkeypatch):
    told: list[int] = []

    class Mine(Tracker):
        name = "mine"

        def round(self, number: int, values: object) -> None:
            told.append(number)

    class Cut(Progress):
        def round(self, number: int, accuracy: float) -> None:
            if number == 2:
                raise KeyboardInterrupt

    where = {"changes": ROUNDS, "runs": tmp_path, "track": "tensorboard"}
    with monkeypatch.context() as patch, pytest.raises(Stopped) as stop:
        patch.setattr("fedrepro.records.store.default_progress", Cut)
        fedrepro.run("ADCOL", **where)
    assert "run the cell again" in stop.value._render_traceback_()[0]
    (cut,) = tmp_path.glob("*/tensorboard")
    assert [step for step, _ in events(cut)["accuracy/mean"]] == [1]
    check(fedrepro.run("ADCOL", **where), cut)
    fedrepro.run("ADCOL", **{**where, "track": Mine})  # one's own
    assert told == [1, 2, 3]
    Mine.name = ""  # its folder would be the run's own
    with pytest.raises(FedReproError, match="Mine has no name"):
        fedrepro.run("ADCOL", **{**where, "track": Mine})


def test_the_command_line_tracks_and_says_what_it_does_not_know(tmp_path, monkeypatch):
    monkeypatch.setenv(TRACK, "")  # what the command sets is undone
    words = ["run", "adcol", "table-1", "--methods", "SOLO", "--runs", str(tmp_path), "--track"]
    assert CliRunner().invoke(cli.app, [*words, "tensorboard"]).exit_code == 0
    assert events(next(tmp_path.glob("*/tensorboard")))["accuracy/mean"]
    wrong = CliRunner().invoke(cli.app, [*words, "tensorbord"])
    assert wrong.exit_code == 2 and "choose from tensorboard" in wrong.stderr
    monkeypatch.setenv(TRACK, "")
    monkeypatch.setattr("fedrepro.base.progress.find_spec", lambda name: None)
    with one_line(r"pip install 'fedrepro\[tensorboard\]'"):
        fedrepro.run("FedAvg", runs=tmp_path, track="tensorboard")
