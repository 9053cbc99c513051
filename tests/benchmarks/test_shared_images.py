"""Images that are trained on and tested: counted on the real data, and gone with `disjoint`."""

import json

import pytest

from fedrepro import papers
from fedrepro.data import DATASETS
from fedrepro.data.manifest import locate
from fedrepro.report.results import FOLDER
from tests.benchmarks.conftest import script

# the stored counts, and the domains that are read: the stand-in takes minutes to generate
STORED = {
    "digits5-standin": ("shared-digits", ("mnist", "mnistm")),
    "office10": ("shared-office10", DATASETS["office10"]),
}


@pytest.mark.parametrize("dataset", list(STORED))
def test_disjoint_removes_what_the_page_counts(real_data, dataset, monkeypatch):
    name, domains = STORED[dataset]
    if any(locate(domain, real_data).missing for domain in domains):
        pytest.skip("the data set is not under the data root")
    monkeypatch.setitem(DATASETS, dataset, domains)
    spec = papers.load("fedpall").protocol(dataset, "reduced").data
    found = script("shared_images").of(spec, real_data)
    stored = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    kept = [row for row in stored if row["protocol"] == "fedpall, reduced"]
    assert kept and found.assign(protocol="fedpall, reduced").to_dict("records") == [
        {key: row[key] for key in (*found, "protocol")} for row in kept
    ]
    apart = spec.allocation.model_copy(update={"disjoint": True})
    cut = spec.model_copy(update={"allocation": apart})
    assert script("shared_images").of(cut, real_data).empty


@pytest.mark.parametrize("paper", ["adcol", "fedpall", "i2pfl", "fedapc"])
def test_disjoint_is_an_alternative_where_images_are_shared(paper):
    for dataset in {"digits5", "office10"} & set(papers.load(paper).datasets):
        sources = papers.load(paper).sources(dataset).set_index("setting")
        assert sources.value["data.allocation.disjoint"] == "no"
        assert sources.alternatives["data.allocation.disjoint"] == "yes"
