"""Pages of methods: what a class says, and what a round really sends."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from fedrepro import methods
from fedrepro.base.errors import FedReproError
from fedrepro.methods.base import Method, hyper
from fedrepro.report.method_pages import MODEL, page


@pytest.mark.parametrize("name", ["FedAvg", "ADCOL"])
def test_a_page_holds_every_field_with_its_source_and_what_travels(name):
    text = page(name)
    for row in methods.get(name).describe():
        line = next(line for line in text.splitlines() if line.startswith(f"| `{row['name']}`"))
        assert repr(row["default"]) in line and f"| {row['status']} | {row['source']} |" in line
        assert all(repr(value) in line for value in row["alternatives"])
    assert MODEL in text and "server to client" in text and "client to server" in text


def test_bytes_on_a_page_are_counted():
    line = next(line for line in page("ADCOL").splitlines() if "| representations |" in line)
    assert line.endswith(f"| {20 * 128 * 4:,} |")  # images x features x 4 bytes


def test_a_field_without_a_source_stops_the_build(registry):
    @methods.register
    @dataclass(frozen=True)
    class Silent(Method):
        """Says nothing of where its field is from."""

        name: ClassVar[str] = "Silent"
        reference: ClassVar[str] = "nobody"
        effort: float = hyper(0.5, source="")

    with pytest.raises(FedReproError, match="Silent: field bn_policy has no source"):
        page("Silent")


def test_a_method_that_reads_embeddings_has_a_page_too():
    assert "Not counted on images" in page("MPFT")
