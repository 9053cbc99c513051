"""Tables and the ledger hold the numbers and words they were given, marked up for every reader."""

import re
from html import unescape
from typing import Any

import pandas as pd
import pytest

from fedrepro import papers
from fedrepro.base.protocol import sides
from fedrepro.papers.schema import Setting
from fedrepro.report import tables, views
from fedrepro.report.ledger import HEAD, each_rule, ledger, own_training, protocol_table
from fedrepro.report.results import Results, recorded
from fedrepro.report.tables import number
from fedrepro.report.verdicts import BESIDE_STANDIN, build_table
from tests.report.made import Made

ADCOL = papers.load("adcol")
SUBSET = "SVHN: first 10,000 <official> test images & no more"


def rows(values: dict[tuple[str, str], list[float]], **facts: Any) -> list[dict[str, Any]]:
    """Rows as a run gives them: one a method, column and seed."""
    base = {"dataset": "digits5", "scale": "paper", "caveats": ()} | facts
    return [
        {**base, "method": method, "column": column, "seed": seed, "value": value}
        | {"standin": column.endswith("standin")}
        for (method, column), seeds in values.items()
        for seed, value in enumerate(seeds)
    ]


def table(values: dict[tuple[str, str], list[float]], **facts: Any) -> pd.DataFrame:
    return build_table(ADCOL, "table-1", rows(values, **facts))


def rows_of(html: str) -> list[list[str]]:
    """The texts of each row's cells."""
    found = re.findall("<tr.*?</tr>", html, re.DOTALL)
    rows = [re.findall("<t[dh][ >].*?</t[dh]>", row, re.DOTALL) for row in found]
    return [[unescape(re.sub("<[^>]*>", "", cell)) for cell in row] for row in rows]


def row_of(html: str, method: str) -> list[str]:
    return next(row for row in rows_of(html) if row and row[0] == method)


def parts(html: str) -> tuple[str, str]:
    """The table of the average with what is around it, and the columns folded under it."""
    before, folded = html.split("<details><summary>Per domain</summary>")
    domains, after = folded.split("</details>")
    return before + after, domains


def test_a_cell_shows_paper_ours_difference_and_verdict():
    frame = table({("ADCOL", "mnist"): [94.7, 95.7, 96.7]})
    links = {("digits5", "paper", "ADCOL", "MNIST"): "run.html#run-1-2-3"}
    mean, html = parts(tables.beside_table(frame, "Table 1", links).html)
    assert html.count("<a ") == 1 and '<a href="run.html#run-1-2-3">95.7 ± 1.0 (n=3)</a>' in html
    cells = row_of(html, "ADCOL")
    assert cells[1:3] == ["94.7 ± 0.6", "95.7 ± 1.0 (n=3)"]
    # ADCOL's deviations are not used: ours for both sides, t(.975, 2) sqrt(2/3) = 3.51
    assert cells[3] == "+1.0[−2.5, 4.5]" and cells[4] == "close"
    assert '<span class="verdict verdict-close" title="within' in html
    assert cells[5:9] == ["58.2 ± 1.0", "not run", "–", "not run"]
    assert "verdict-not-run" in html
    assert row_of(mean, "ADCOL") == ["ADCOL", "80.2 ± 0.5", "not run", "–", "not run"]
    alone = table({("ADCOL", "avg"): [80.0] * 3}).query("column == 'avg'")
    for frame in (alone, build_table(ADCOL, "table-3-sizes", [])):  # nothing to fold
        assert tables.beside_table(frame).html.count("<table") == 1


def test_a_deviation_of_some_cells_has_a_letter_and_one_of_all_is_said_once():
    values = {("ADCOL", "mnist"): [94.7] * 3, ("ADCOL", "synthdigits-standin"): [70.0] * 3}
    frame = table({**values, ("ADCOL", "avg"): [80.0] * 3}, caveats=(SUBSET,))
    mean, domains = parts(tables.beside_table(frame).html)
    assert row_of(domains, "ADCOL")[2].endswith("(n=3)a")
    assert f"<sup>a</sup> {BESIDE_STANDIN}" in domains
    assert row_of(mean, "ADCOL")[2].endswith("(n=3)") and "<sup>a</sup>" not in mean
    said = "<li>Every number of ours here: SVHN: first 10,000 &lt;official&gt; test images &amp;"
    assert said in mean and said in domains
    assert rows_of(mean)[0][1:] == ["avg (with stand-in) (%)"]
    assert "SynthDigit (stand-in) (%)" in rows_of(domains)[0]
    assert rows_of(mean)[1][0] == "method"
    text = tables.plain(frame)
    assert f"  a  {BESIDE_STANDIN}\nEvery number of ours here: {SUBSET}." in text


def test_text_is_escaped():
    values = {("<b>mine</b>", "mnist"): [50.0] * 3}
    html = tables.beside_table(table(values, dataset='d"<i>'), caption="<script>x</script>").html
    assert all(x in html for x in ("&lt;b&gt;mine&lt;", "&lt;script&gt;", 'd&quot;&lt;i&gt;"'))
    html += (small := tables.linked_table(pd.DataFrame({"<b>mine": [2e-5]}, ["<i>"]), {}, "").html)
    assert ">0.00002<" in small and not any(tag in html for tag in ("<b>mine", "<script", "<i>"))
    assert tables.sentence("`a_b` <i>") == "<code>a_<wbr>b</code> &lt;i&gt;"


def test_the_table_can_be_read_aloud_and_scrolled():
    shown = tables.beside_table(table({("ADCOL", "mnist"): [94.7] * 3}), "Table 1")
    for html, label in zip(parts(shown.html), ("", ", per domain"), strict=True):
        assert '<div class="table-scroll"' in html and 'tabindex="0"' in html
        assert f'aria-label="Table 1, digits5{label}"' in html and "<caption" in html
        assert html.count('scope="row"') == 8
        assert "paper: the paper&#x27;s protocol" in html


def test_reduced_shows_ranks_and_no_verdict_on_numbers():
    values = {("ADCOL", "mnist"): [70.0], ("FedBN", "mnist"): [75.0], ("SOLO", "mnist"): [60.0]}
    frame = table(values, scale="reduced")
    mean, domains = parts(tables.beside_table(frame).html)
    assert row_of(domains, "FedBN")[1:5] == ["94.1 ± 0.8", "75.0 (one run)", "2", "1"]
    assert row_of(domains, "FedAvg")[1:5] == ["94.4 ± 0.5", "not run", "–", "–"]
    assert row_of(domains, "Kendall’s tau")[1:5] == ["", "", "", "0.33"]
    for html in (mean, domains):
        assert "reduced: order of methods only, no verdict on numbers" in html
    text = tables.plain(frame)
    assert "order of methods only" in text and re.search("^Kendall’s tau +0.33$", text, re.M)
    assert re.search(r"^FedBN +94\.1 ± 0\.8 +75\.0 \(one run\) +2 +1$", text, re.M)


def test_an_average_of_one_column_is_not_shown():
    values = {("ADCOL", column): [26.0] for column in ("cifar10", "avg")}
    frame = build_table(ADCOL, "table-12", rows(values, dataset="cifar10", scale="reduced"))
    html = tables.beside_table(frame).html
    assert row_of(html, "ADCOL")[1:3] == ["79.2 ± 4.7", "26.0 (one run)"]
    assert "avg" not in html and "Per domain" not in html


def test_smoke_says_that_it_is_no_result():
    values = {("ADCOL", "mini-font"): [9.0], ("ADCOL", "avg"): [10.0]}
    frame = table(values, dataset="minidigits", scale="smoke")
    mean, domains = parts(tables.beside_table(frame).html)
    assert row_of(mean, "ADCOL") == ["ADCOL", "10.0 (one run)"]
    assert row_of(domains, "ADCOL") == ["ADCOL", "9.0 (one run)"]
    for html in (mean, domains):
        assert "smoke: tests the code" in html and "80.2" not in html
        assert html.count('class="verdict ') == 1 and "verdict-no-verdict" in html
    assert "left out: MNIST, SVHN, USPS, SynthDigit, MNIST_M" in mean
    own = table({("ADCOL", "mnist"): [9.0]}, dataset="folder:x", scale="reduced")
    assert "94.7" not in tables.beside_table(own).html  # a name alone does not make them the same


def test_a_target_that_no_seed_reached_is_no_number():
    nan = float("nan")
    cells = rows({("FedAvg", "mnist"): [nan] * 3, ("FedBN", "mnist"): [11.0, 12.0, nan]})
    _, html = parts(tables.beside_table(build_table(ADCOL, "table-2-rounds", cells)).html)
    assert row_of(html, "FedAvg")[1:5] == ["11", "none (n=3)", "–", "open"]
    assert row_of(html, "FedBN")[2] == "11.5 ± 0.71 (n=2 of 3)"
    frame = build_table(ADCOL, "table-19", rows({("mu=1", "avg"): [1.0]}, counted=True))
    assert rows_of(tables.beside_table(frame).html)[1][0] == "row"
    assert row_of(tables.beside_table(frame).html, "mu=1")[2] == "1.0 (counted)"


def test_numbers_as_printed():
    signed = {-0.04: "0.0", -1.26: "−1.3", 1.26: "+1.3"}
    assert [number(value, "percent", True) for value in signed] == list(signed.values())
    plain = {
        "percent": {87.94: "87.9", None: "–", float("nan"): "–"},
        "fraction": {0.8155: "0.816"}, "ratio": {1.6923: "1.69"}, "rounds": {11.0: "11"},
        "GB": {15.34: "15.3", 3.124: "3.12", 0.001234: "0.0012", 0.0: "0", 1234.5: "1234"},
    }  # fmt: skip
    for unit, shown in plain.items():
        assert [number(value, unit, False) for value in shown] == list(shown.values()), unit


def test_the_protocol_lists_settings_then_the_fields_of_the_methods_asked_for():
    shown = protocol_table(ADCOL.sources("digits5", "reduced"), ["ADCOL", "SOLO"])
    rows = rows_of(shown.html)
    heads = [row[0] for row in rows[1:] if len(row) == 6]  # the first row of a group
    assert heads == ["data", "training", "reporting", "ADCOL", "SOLO"]
    found = {row[-5]: row[-4:] for row in rows}
    assert found["optimizer.lr"] == ["0.01", "stated", "paper, Sec. 5.1", ""]
    assert found["rounds"][:2] == ["80", "decided"] and found["rounds"][3].startswith("100")
    # The paper's own setting goes before the field's default and its source.
    assert found["mu"][0] == "1" and found["mu"][2].startswith("paper, Sec. 5.1")
    hidden = ["512, 512", "stated", "Sec. 5.1: 3-layer MLP, hidden 512"]
    assert found["discriminator_hidden"][:3] == hidden
    assert found["discriminator_batch_norm"][0] == "no"
    assert "FedProx.mu" not in found


CURVES = {"FedAvg": (90.0, 50.0), "FedBN": (60.0, 60.0), "ADCOL": (99.0, 99.0)}


def each(scale: str, **values: float | None) -> str:
    cells = {(method, "avg"): value for method, value in values.items()}
    made = Made("adcol", "office10", scale, 0, {"table-4": cells}, curves=CURVES)
    return each_rule(Results([(made, ["table-4"])]), "table-4")


def test_ranks_and_who_is_first_are_computed_under_each_rule():
    html = each("reduced", FedAvg=50.0, FedBN=60.0, ADCOL=None)
    assert row_of(html, "FedAvg") == ["FedAvg", "50.0", "2", "70.0", "1", "90.0", "1"]
    assert row_of(html, "FedBN") == ["FedBN", "60.0", "1", "60.0", "2", "60.0", "2"]
    assert "last round, as above" in rows_of(html)[0]
    assert "depends on the rule: FedBN (last round); FedAvg (mean of the last five, best " in html
    assert "2 of 2 ranks change, by 1 at most." in html
    assert "ADCOL" not in html  # a seed of it diverged
    html = each("reduced", FedBN=60.0, ADCOL=99.0)
    assert "does not change who is first: ADCOL. No rank changes." in html
    assert "One method has no order." in each("paper", FedBN=60.0)
    assert each("paper", FedBN=None) == ""


def test_the_papers_rule_gives_the_tables_own_numbers():
    for paper, name in (("fedapc", "table-1-office10"), ("mpft", "table-1-pacs")):
        found = recorded(paper).where(dataset=recorded(paper).paper.experiment(name).datasets[0])
        mark, html = "<details><summary>The same runs under", views.table(found, name).html
        above, _, under = unescape(html).partition(mark)
        place = next(i for i, head in enumerate(rows_of(under)[0]) if "as above" in head)
        for method in ("FedAvg", "FedProto", found.paper.arm_specs(name)[3].label):
            ours = row_of(above, method)[2]
            assert ours.startswith(row_of(under, method)[2 * place - 1] + " (n=")


WORDS = "paper, Sec. 5.1, not stated; FedPall code: 9; inferred: it fits; project decision"


def listed(found: Results) -> dict[str, list[str]]:
    head, *rest = rows_of(ledger(found).html)
    assert head == list(HEAD)
    return {row[0]: row[1:] for row in rest}


def test_a_source_stands_on_the_side_of_its_status():
    said = {"text": "Sec. 5.1: 8:2", "code": "FedBN code: 80/20", "settled": ""}
    found = sides("code", said["code"], text=said["text"])
    assert found == {"source": "Sec. 5.1: 8:2; FedBN code: 80/20", **said}
    assert sides("stated", "Sec. 5.1", code="128")["text"] == "Sec. 5.1"
    assert sides("inferred", "it fits", text="T", code="C")["source"] == "T; it fits; C"


@pytest.mark.parametrize(
    ("fields", "row"),
    [
        ({"status": "stated"}, None),
        ({"status": "stated", "code": "64"}, [WORDS, "64", "9", "stated"]),
        ({"status": "code", "text": "T"}, ["T", WORDS, "9", "code"]),
        ({"status": "decided", "text": "T"}, ["T", "–", "9", f"{WORDS} (decided)"]),
        ({"status": "inferred"}, ["–", "–", "9", f"{WORDS} (inferred)"]),
    ],
)
def test_fields_decide_and_no_words_of_a_source(fields, row, monkeypatch):
    found = recorded("fedpall").where(dataset="office10")
    made = Setting(value=9, source=WORDS, **fields)
    base = {**found.paper.protocols["office10"], "batch_size": made}
    paper = found.paper.model_copy(update={"protocols": {"office10": base}})
    monkeypatch.setattr(Results, "paper", property(lambda self: paper))
    assert listed(found).get("batch_size") == row


def test_text_code_and_runs_stand_side_by_side():
    found = listed(recorded("fedpall"))
    assert found["FedPall.mu (digits5-standin)"] == [
        "paper, Sec. 5.1: 0.7, the two weights exchanged", "FedPall code", "0.3 (or 0.7)", "code",
    ]  # fmt: skip
    assert found["data: svhn"][2].startswith("SVHN: first 10,000 official test images only")
    assert found["scale reduced"][2] == papers.load("fedpall").scales["reduced"].reason


def test_rows_that_train_in_another_way_are_listed():
    listed = own_training("fedapc", "office10").loc["table-1-office10"]
    assert listed.rounds.tolist() == ["100", "150", "480"]
    assert set(listed["local epochs"]) == {"10"}
    assert listed.rows.tolist() == ["FedAvg, MOON", "FedProto", "FedAPC"]
    assert own_training("i2pfl", "digits4").empty
