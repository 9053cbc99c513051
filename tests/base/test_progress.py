"""Progress takes the form that fits: lines where nobody watches, a bar on a terminal."""

import io

from fedrepro.base import progress


def tell(form):
    form.start("ADCOL seed 0", 2, 0)
    form.round(1, 10.0)
    form.round(2, 20.0)
    form.finish("2 rounds, avg 20 %")


def test_one_line_a_round_elsewhere(capsys):
    form = progress.progress()
    assert isinstance(form, progress.Lines)
    tell(form)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["ADCOL seed 0  round 1/2  avg 10.00 %", "ADCOL seed 0  round 2/2  avg 20.00 %"]


def test_a_bar_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    form = progress.progress()
    assert isinstance(form, progress.TerminalBar)
    tell(form)
    assert "2/2" in screen.getvalue() and "avg 20.00 %" in screen.getvalue()


def test_a_live_curve_in_a_notebook(monkeypatch):
    shown = []

    class Handle:
        def update(self, content, raw):
            shown.append(content)

    def display(content, raw, display_id):
        shown.append(content)
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    tell(progress.NotebookLine())
    drawn = ["<svg" in content.get("text/html", "") for content in shown]
    assert drawn == [False, False, True, False]
    assert "points='160.0,72.0 320.0,64.0'" in shown[2]["text/html"]
    assert shown[-1] == {"text/plain": "ADCOL seed 0  2 rounds, avg 20 %"}


def test_steps_are_counted_in_ten_lines_from_where_they_begin(capsys):
    assert list(progress.counted("attack", 40, done=21)) == list(range(21, 40))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[-1] for line in lines] == ["24/40", "28/40", "32/40", "36/40", "40/40"]
    assert lines[-1] == "attack  [####################] step 40/40"
    assert list(progress.counted("attack", 0)) == []
