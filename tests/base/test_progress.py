"""Progress takes the form that fits: lines where nobody watches, a bar on a terminal."""

import io
from itertools import count
from types import SimpleNamespace

from fedrepro.base import progress


def tell(form):
    form.start("ADCOL seed 0", 2, 0)
    form.round(1, 10.0)
    form.round(2, 20.0)
    form.finish("2 rounds, avg 20 %")


def test_one_line_a_round_elsewhere_with_the_row_and_the_time_left(capsys, monkeypatch):
    clock = count(0, 10)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    form, name = progress.progress(), "ADCOL seed 0"
    form.plan({"a": 2, "b": 2})
    tell(form)
    form.row("a")
    tell(form)
    first, second, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith(f"row 1 of 2, {name}  round 1/2  avg 10.00 %")
    assert second == f"row 1 of 2, {name}  round 2/2  avg 20.00 %  about 00:20 left"
    assert last == f"row 2 of 2, {name}  round 2/2  avg 20.00 %"


def test_one_bar_on_a_terminal_for_all_planned_rows(monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", screen)
    form = progress.progress()
    form.plan({"a": 2, "b": 2, "c": 5})
    tell(form)
    form.row("a")
    form.row("c")  # found: its rounds are no more to come
    assert form.rounds == 2 and (form._bar.n, form._bar.total) == (2, 4)
    tell(form)
    form.row("b")
    said = screen.getvalue()
    assert "row 1 of 3, ADCOL seed 0" in said and "row 3 of 3, ADCOL seed 0" in said
    assert "9/9" not in said and "4/4" in said and "avg 20.00 %" in said


def test_a_notebook_has_one_figure_for_all_runs_of_a_cell(monkeypatch):
    shown, cells = [], [1]  # what each display showed in turn; the cell that runs

    def display(content, raw, display_id):
        shown.append([content])
        return SimpleNamespace(update=lambda content, raw, own=shown[-1]: own.append(content))

    clock = count(0, 10)
    progress._figure.cache_clear()
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr(progress, "_execution", lambda: cells[-1])
    form = progress.progress(own=True)
    form.plan({"a": 2, "b": 2, "c": 3})
    form.row("c")
    tell(form)
    first, second = (content["text/plain"] for content in shown[0][:2])
    assert "row 2 of 3, ADCOL seed 0" in first and second.endswith("about 00:30 left")
    form.row("a")
    tell(form)
    assert len(shown) == 1 and shown[0][-1]["text/plain"].endswith("avg 20 %  all trained")
    form.row("b")
    form.plan({"d": 5})  # its run ends before its planned rounds
    tell(form)
    assert shown[0][-1]["text/plain"].endswith("left")
    form.row("d")
    assert shown[0][-1]["text/plain"].endswith("avg 20 %  all trained")
    html = shown[0][-1]["text/html"]
    assert html.count("<polyline points='210.0,126.0 420.0,112.0'") == 3
    assert "ADCOL seed 0 20.00 %" in html and "ADCOL seed 0 (3) 20.00 %" in html

    form = progress.progress()
    assert progress.progress() is form is not progress.progress(own=True)
    tell(form)
    cells.append(2)  # the figure moves on to the next cell that trains
    tell(form)
    before, after = shown[-2:]
    assert "html" not in str(before[-1]) and "<svg" in after[-1]["text/html"]
    assert after[-1]["text/html"].count("<polyline") == 2


def test_steps_are_counted_in_ten_lines_from_where_they_begin(capsys):
    assert list(progress.counted("attack", 40, done=21)) == list(range(21, 40))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[-1] for line in lines] == ["24/40", "28/40", "32/40", "36/40", "40/40"]
    assert lines[-1] == "attack  [####################] step 40/40"
    assert list(progress.counted("attack", 0)) == []
