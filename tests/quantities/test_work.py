"""The estimated operations of a run, before and after it."""

import pytest

from fedrepro import papers
from fedrepro.quantities.paper_run import study
from fedrepro.quantities.work import done, pflop, unread
from fedrepro.records import Record, federation_of
from fedrepro.report.results import recorded


def test_operations_are_three_passes_for_each_image_and_epoch():
    asked = study("mpft", "minidigits", "smoke")
    arm = next(arm for arm in asked.arms("table-1-pacs") if arm.label == "FedAvg")
    data = federation_of(arm.protocol.data)
    images, size, classes = sum(len(c.train) for c in data.clients), data.size, len(data.classes)
    adapter = 2 * (2 * size * (size // 4) + size * classes)
    rounds = arm.protocol.rounds * arm.protocol.local_epochs
    found = pflop(arm.protocol, images, classes, size)
    assert found == pytest.approx(3 * adapter * images * rounds / 1e15)
    assert unread(arm.protocol, []) is None  # embedded


def _runs(paper: str, experiment: str) -> list[Record]:
    return [result.record for _, _, result in recorded(paper).runs(experiment)]


@pytest.mark.parametrize(
    ("paper", "experiment", "known"),
    [
        ("adcol", "table-4", None),  # 125 images for every client
        ("i2pfl", "table-8-digits", None),  # a stated number for every domain
        ("i2pfl", "table-8-office10", "table-3-office10"),  # a share, and other numbers of clients
    ],
)
def test_a_run_is_estimated_before_it_is_made(paper, experiment, known):
    others = _runs(paper, known) if known else []
    first, *_ = _runs(paper, experiment)
    assert unread(first.protocol, others) == pytest.approx(done(first), rel=0.01)
    assert (unread(first.protocol, []) is None) == bool(known)


def test_label_skew_divides_all_images_of_the_release():
    (arm,) = [a for a in papers.load("adcol").arms("table-12") if a.label == "FedAvg"]
    assert unread(arm.protocol, []) == pflop(arm.protocol, 50_000, 10, 32)
