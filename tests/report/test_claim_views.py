"""What a claim on the page of all claims leads to, of the records kept with the book."""

from __future__ import annotations

import re

from fedrepro.report import claim_views, views
from fedrepro.report.claims import of_recorded
from fedrepro.report.results import kept


def _links(paper: str, claim: str) -> list[str]:
    found = next(one for one in of_recorded(paper) if one.claim.id == claim)
    return re.findall(r'href="([^"]+)"', claim_views.links(found))


def test_a_claim_leads_to_its_tables_and_runs() -> None:
    found, links = kept("fedapc"), _links("fedapc", "best-mean")
    for experiment in ("table-1-digits", "table-1-office10"):
        (place,) = views.anchors(found, experiment)
        assert f"fedapc_results.html#{place}" in links
        assert f'<span id="{place}">' in views.table(found, experiment).html
    assert sum(link.startswith("../../run.html#run-") for link in links) == 4


def test_a_claim_leads_to_the_heading_of_its_figure() -> None:
    assert _links("fedapc", "faster") == ["fedapc_results.html#accuracy-over-rounds-figure-3"]
