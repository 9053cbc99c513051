"""Docstrings as the book's page of names shows them."""

from fedrepro.report.docstrings import listed


def test_described_names_become_items_and_prose_stays() -> None:
    shown = listed(
        [
            "Train a method, or find its run: once.",
            "",
            "paper: whose protocol; `common` is ours. scale, seed: smoke,",
            "    or reduced. Also this.",
            "draws (b, k): random. It ends: here.",
            "Raises:",
            "    FedReproError: a wrong name.",
            "",
        ]
    )
    assert shown == [
        "Train a method, or find its run: once.",
        "",
        "- **paper**: whose protocol; `common` is ours.",
        "",
        "- **scale, seed**: smoke,",
        "  or reduced. Also this.",
        "",
        "- **draws (b, k)**: random. It ends: here.",
        "  Raises:",
        "",
        "- **FedReproError**: a wrong name.",
    ]
