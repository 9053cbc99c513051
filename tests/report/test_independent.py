"""Every claim's answer with every p behind it, and every verdict, without the library."""

import pytest

from fedrepro import papers
from fedrepro.report.claims import of_recorded
from fedrepro.report.results import recorded
from fedrepro.report.verdicts import build_table
from tests import independent, independent_cells as cells, independent_runs as packed


@pytest.mark.parametrize("name", papers.names())
def test_claims_have_the_same_answers_when_recomputed(name):
    claims = {claim["id"]: claim for claim in packed.paper(name).get("claims", [])}
    compared = 0
    for ours in of_recorded(name):
        word, pairs = independent.answer(name, claims[ours.claim.id])
        assert ours.verdict == word, ours.claim.id
        differences = [d for part in ours.parts for d in part.differences]
        known = [(d.p, d.reverse) for d in differences if d.freedom]
        assert sorted(known) == [pytest.approx(pair, abs=1e-9) for pair in sorted(pairs)]
        compared += len(known)
    assert compared > 5 or not claims


@pytest.mark.parametrize("name", papers.names())
def test_every_verdict_at_scale_paper_is_the_same_when_recomputed(name):
    found, ours = recorded(name), {}
    for table in found.paper.tables:
        own = [e for e in found.paper.experiments if e.table == table.id]
        rows = [{**row, "table": table.id} for one in own for row in found.cells(one.id)]
        for row in build_table(found.paper, table.id, rows).to_dict("records"):
            if row["scale"] == "paper" and table.cell(row["method"], row["column"]) is not None:
                place = row["table"], row["dataset"], row["method"], row["column"]
                ours[place] = row["verdict"], row["low"], row["high"]
    words, intervals = cells.trained(name)
    assert {place: one[0] for place, one in ours.items()} == cells.counted(name) | words
    for place, ends in intervals.items():
        assert ours[place][1:] == pytest.approx(ends)


@pytest.mark.parametrize("name", papers.names())
def test_the_rows_of_earlier_settings_are_the_same_when_recomputed(name):
    ours = {
        (experiment, study.dataset, study.scale, result.label): False
        for study, experiment, result in recorded(name).runs()
    }
    for study, experiment, result in recorded(name).runs():
        ours[experiment, study.dataset, study.scale, result.label] |= result.past
    assert ours == {row: packed.past(name, *row) for row in ours}
    assert len(ours) > 10
