"""What MPFT's authors keep in their files: held to the printed cells, and shown beside them."""

import pandas as pd
import pytest

from fedrepro import papers
from fedrepro.base.errors import FedReproError
from fedrepro.federated import metrics
from fedrepro.report import figures, verdicts, views
from fedrepro.report.results import recorded

MPFT = papers.load("mpft")
FILED = MPFT.filed
assert FILED is not None
SIZES = {"table-1-pacs": "pacs", **{f"table-1-subset{n}": f"subset{n}" for n in (50, 100, 150)}}


@pytest.mark.parametrize("table", SIZES)
def test_our_in_and_out_of_their_accuracies_is_the_printed_number(table):
    assert FILED is not None
    kept, printed = FILED.domains[table], MPFT.table(table)
    sizes = dict(zip(kept.columns, FILED.test_sizes[SIZES[table]], strict=True))
    clients = [{"name": name, "domain": name} for name in kept.columns]
    for row in ("FedAvg", "MOON", "MPFT (Average)", "MPFT (Cluster, rate=0.3)"):
        pairs = zip(kept.columns, kept.rows[row], strict=True)
        rows = [(1, "accuracy", "global", domain, "test", value) for domain, value in pairs]
        curve = pd.DataFrame(rows, columns=list(metrics.CURVE_COLUMNS))
        found = metrics.in_and_out(curve, clients, sizes).loc[1] / 100
        for ours, column in (("ind", "ind_acc"), ("ood", "ood_acc")):
            cell = printed.cell(row, column)
            assert cell is not None and f"{found[ours]:.4f}" == f"{cell.value:.4f}"
            assert FILED.value(table, row, column) == pytest.approx(found[ours], abs=1e-5)


def test_every_filed_number_has_a_printed_cell_and_four_contradict_theirs():
    assert FILED is not None
    cells = {
        (table, row, column): value
        for table, rows in FILED.values.items()
        for row, columns in rows.items()
        for column, value in columns.items()
    }
    printed = {place: MPFT.table(place[0]).cell(*place[1:]) for place in cells}
    assert all(printed.values())
    assert {place for place in cells if FILED.contradicts(*place, printed[place].printed)} == {
        ("table-1-pacs", "Ditto", "ood_acc"),
        ("table-1-pacs", "FedProx", "ind_acc"),
        ("table-3-computation", "FedAvg", "Subset-100"),
        ("table-3-computation", "MPFT (Average)", "PACS"),  # 0.045 seconds, printed as 0.1
    }


def test_the_files_stand_beside_printed_cells_also_without_runs():
    times = verdicts.build_table(MPFT, "table-3-computation", []).set_index(["method", "column"])
    assert times.authors["Ditto", "PACS"] == pytest.approx(1455.6 / 663.9, rel=1e-3)
    cells = verdicts.build_table(MPFT, "table-1-pacs", [])
    assert cells.authors.notna().any() and cells.contradicted.sum() == 2
    assert verdicts.build_table(papers.load("adcol"), "table-1", []).authors.isna().all()
    assert figures.filed("mpft", "table-1-pacs", without=["local"])
    with pytest.raises(FedReproError, match="no file of adcol's authors"):
        figures.filed("adcol", "table-1")


def test_a_table_that_was_run_on_other_data_keeps_its_printed_numbers():
    html = views.table(recorded("mpft"), "table-2-mixed-0.3").html
    rules, how, printed = html.split("<details>")[1:]
    assert "each score rule" in rules and "runs are on PACS" in how
    assert views.PRINTED in printed and "0.797" in printed
