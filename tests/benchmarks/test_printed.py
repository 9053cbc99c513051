"""What printed means and deviations can come from, on cases made by hand and on the papers'."""

from itertools import product

import numpy as np
import pytest

from fedrepro import papers
from tests.benchmarks.conftest import script

page = script("report_printed")
average_fits, by_chance, mean_fits = page.average_fits, page.by_chance, page.mean_fits
averages, checked, shown, stds_fit = page.averages, page.checked, page.shown, page.stds_fit


def test_a_mean_of_accuracies_fits_and_its_neighbour_does_not():
    assert mean_fits("53.57", 28, 1) and mean_fits("53.6", 28, 1)  # 15 of 28
    assert not mean_fits("53.58", 28, 1)
    assert mean_fits("54.76", 28, 3) and not mean_fits("54.76", 28, 1)  # 46 of 84
    assert mean_fits("100.0", 28, 1) and not mean_fits("100.1", 28, 1)


def test_exactly_the_pairs_that_three_runs_can_give_fit():
    """Against all sets of three accuracies on seven images, printed with one decimal."""
    images, trials = 7, 3
    for ddof in (0, 1):
        possible = {
            (f"{np.mean(run):.1f}", f"{np.std(run, ddof=ddof):.1f}")
            for counts in product(range(images + 1), repeat=trials)
            for run in [100 * np.array(counts) / images]
        }
        for mean, std in sorted(possible)[::7]:
            assert stds_fit(mean, [std], images, trials, ddof) == 1
        printed = [f"{x / 10:.1f}" for x in range(0, 300, 13)]
        tried = list(product(["42.9", "47.6", "50.0"], printed))
        found = {(m, std) for m, std in tried if stds_fit(m, [std], images, trials, ddof) == 1}
        assert found == possible & set(tried)
    near = [[50, 50 + x / 10, 50 - x / 10] for x in range(12)]  # on 1,000 images every number fits
    assert all(stds_fit("50.0", [f"{np.std(run):.1f}"], 1000, 3, 0) == 1 for run in near)
    assert stds_fit("99.9", ["1.0"], 1000, 3, 0) == 0  # no accuracy is above 100 %
    assert by_chance("50.0", 1000, 1) == 1.0
    assert by_chance("50.00", 50, 1) == pytest.approx(3 / 401)  # 48, 50 and 52


def test_averages():
    assert average_fits(["10.0", "20.1"], "15.1") and average_fits(["10.0", "20.1"], "15.0")
    assert not average_fits(["10.0", "20.0"], "15.2")
    wrong = {n: averages(papers.load(n)).to_numpy()[:, :3].tolist() for n in papers.names()}
    wrong = {name: rows for name, rows in wrong.items() if rows}
    cells = [["table-3-office10", "FedProc", "54.62"], ["table-4", "FedProc", "80.71"]]
    assert wrong == {"i2pfl": cells}


def test_fedpalls_pairs_are_three_trials_and_adcols_small_domains_are_not():
    fedpall = checked(papers.load("fedpall"))
    assert (fedpall["fit all evaluations"] == fedpall.means).all()
    assert (fedpall["fit over T - 1"] == fedpall.deviations).all()
    adcol = checked(papers.load("adcol")).set_index(["table", "column"])
    small = adcol.loc[[("table-4", "DSLR"), ("table-4", "WebCam")]]
    assert small[["fit over T - 1", "fit over T"]].to_numpy().sum() == 0
    assert small["fit one run"].sum() == 11
    html = shown(papers.load("adcol")).html
    assert "6 of 8 (0.08)" in html and html.endswith("not the mean of their row: none.</p>")
    mpft = checked(papers.load("mpft")).set_index("table")["no such mean"]
    assert mpft[mpft != ""].to_dict() == {"table-1-pacs": "FedProx 96.59"}  # the file: 96.95
