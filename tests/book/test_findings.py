"""What the result pages say of the recorded runs in words, computed again from those runs.

Every point under "What these runs say" has a check here; a point without one fails, and so does a
check whose point is gone.
"""

import re

import nbformat
import pytest

from fedrepro.report import recorded
from tests.book.findings import CHECKS, adcol, common, fedapc, fedpall, i2pfl, mpft  # noqa: F401

PAGES = recorded.FOLDER.parent / "results"


def told():
    """(page, text) of every list of findings on the result pages."""
    for path in sorted(PAGES.glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown" and "What these runs say" in cell.source:
                yield path.stem, cell.source


def points():
    """(page, bold words) of every finding."""
    for page, text in told():
        for words in re.findall(r"^- \*\*(.+?)\*\*", text, re.MULTILINE | re.DOTALL):
            yield page, " ".join(words.split()).rstrip(".:")


@pytest.mark.parametrize(("page", "text"), list(told()), ids=[page for page, _ in told()])
def test_every_finding_has_words_in_bold_to_be_known_by(page, text):
    assert re.findall(r"^- (?!\*\*).*", text, re.MULTILINE) == []


@pytest.mark.parametrize(("page", "point"), sorted(set(points()) | set(CHECKS)))
def test_a_finding_on_a_page_is_in_the_records(page, point):
    assert (page, point) in set(points()), "the page no longer says so; remove the check"
    assert (page, point) in CHECKS, "no check holds this point"
    CHECKS[page, point]()
