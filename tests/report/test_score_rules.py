"""The same runs under each score rule: what the order of the methods owes to the rule."""

from html import unescape

from fedrepro.report import score_rules, views
from fedrepro.report.results import Results, recorded
from tests.report.made import Made
from tests.report.test_tables import row_of, rows_of

CURVES = {"FedAvg": (90.0, 50.0), "FedBN": (60.0, 60.0), "ADCOL": (99.0, 99.0)}


def each(scale: str, **values: float | None) -> str:
    cells = {(method, "avg"): value for method, value in values.items()}
    found = Results(
        [(Made("adcol", "office10", scale, 0, {"table-4": cells}, curves=CURVES), ["table-4"])]
    )
    return score_rules.each(found, "table-4")


def test_ranks_and_who_is_first_are_computed_under_each_rule() -> None:
    html = each("reduced", FedAvg=50.0, FedBN=60.0, ADCOL=None)
    assert row_of(html, "FedAvg") == ["FedAvg", "50.0", "2", "70.0", "1", "90.0", "1"]
    assert row_of(html, "FedBN") == ["FedBN", "60.0", "1", "60.0", "2", "60.0", "2"]
    assert "last round, as above" in rows_of(html)[0]
    assert "depends on the rule: FedBN (last round); FedAvg (mean of the last five, best " in html
    assert "2 of 2 ranks change, by 1 at most." in html
    assert "ADCOL" not in html  # a seed of it diverged
    html = each("reduced", FedBN=60.0, ADCOL=99.0)
    assert "does not change who is first: ADCOL. No rank changes." in html


def test_one_method_has_no_order() -> None:
    assert "One method has no order." in each("paper", FedBN=60.0)
    assert each("paper", FedBN=None) == ""


def test_the_papers_rule_gives_the_tables_own_numbers() -> None:
    found = recorded("fedapc").where(dataset="office10")
    html = unescape(views.table(found, "table-1-office10").html)
    cut = html.index("<details><summary>The same runs under each score rule")
    above, under = html[:cut], html[cut:]
    place = next(i for i, head in enumerate(rows_of(under)[0]) if "as above" in head)
    for method in ("FedAvg", "FedProto", "FedAPC"):
        ours = row_of(above, method)[2]
        assert ours.startswith(row_of(under, method)[2 * place - 1] + " (n=3)")
