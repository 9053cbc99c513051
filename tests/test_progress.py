"""Progress takes the form that fits: lines where nobody watches, a bar on a terminal."""

import io

from fedrepro import progress


def tell(form):
    form.start("ADCOL seed 0", 2, 0)
    form.round(1, "avg 10 %")
    form.round(2, "avg 20 %")
    form.finish("2 rounds, avg 20 %")


def test_one_line_a_round_elsewhere(capsys):
    form = progress.progress()
    assert isinstance(form, progress.Lines)
    tell(form)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "ADCOL seed 0  round 1/2  avg 10 %",
        "ADCOL seed 0  round 2/2  avg 20 %",
    ]


def test_a_bar_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    form = progress.progress()
    assert isinstance(form, progress.TerminalBar)
    tell(form)
    assert "2/2" in screen.getvalue() and "avg 20 %" in screen.getvalue()


def test_silence(capsys):
    tell(progress.Silent())
    assert capsys.readouterr() == ("", "")
