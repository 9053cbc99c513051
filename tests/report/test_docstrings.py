"""Docstrings as the book's page of names shows them."""

from fedrepro.report.docstrings import listed

GIVEN = """Train a method, or find its run: once.

paper: whose protocol; `common` is ours. scale, seed: smoke,
    or reduced. Also this.
draws (b, k): random. It ends: here.
Raises:
    FedReproError: a wrong name.
"""
SHOWN = """Train a method, or find its run: once.

- **paper**: whose protocol; `common` is ours.

- **scale, seed**: smoke,
  or reduced. Also this.

- **draws (b, k)**: random. It ends: here.
  Raises:

- **FedReproError**: a wrong name."""


def test_described_names_become_items_and_prose_stays() -> None:
    assert "\n".join(listed(GIVEN.splitlines())) == SHOWN
