"""Every claim's answer, and every p behind it, recomputed without the library."""

from __future__ import annotations

import math

import pytest

from fedrepro import papers
from fedrepro.report.claims import of_recorded
from tests import independent


@pytest.mark.parametrize("name", papers.list())
def test_claims_have_the_same_answers_when_recomputed(name: str) -> None:
    claims = {claim["id"]: claim for claim in independent.paper(name).get("claims", [])}
    compared = 0
    for ours in of_recorded(name):
        word, pairs = independent.answer(name, claims[ours.claim.id])
        assert ours.verdict == word, ours.claim.id
        differences = [d for part in ours.parts for d in part.differences]
        known = [(d.p, d.reverse) for d in differences if d.freedom]
        assert sorted(known) == [pytest.approx(pair, abs=1e-9) for pair in sorted(pairs)]
        compared += len(known)
    assert compared > 5 or not claims


def test_verdicts_at_scale_paper_have_the_same_words_when_recomputed() -> None:
    """Training alone in ADCOL's Table 4: d, its interval and the word, from the files alone."""
    from fedrepro.report.results import recorded
    from fedrepro.report.views import built

    frame = built(recorded("adcol"), "table-4")
    ours = frame[(frame.scale == "paper") & (frame.method == "SOLO") & (frame.column == "avg")]
    (cell,) = ours.to_dict("records")
    runs = independent.rows_of("adcol", "table-4", "office10", "paper")["SOLO"]
    word, low, high = independent.verdict("adcol", list(runs.values()), "avg", cell["published"])
    assert (cell["low"], cell["high"]) == pytest.approx((low, high))
    assert cell["verdict"] == word and math.isfinite(low)
