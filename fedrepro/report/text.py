"""Text for the command line: names, aligned columns, JSON."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

# Keys of the objects that --json prints: other tools read them.
METHOD_KEYS = ("name", "paper", "fields")
CELL_KEYS = (
    *("paper", "table", "dataset", "method", "column", "published", "published_std"),
    *("ours", "ours_std", "seeds", "scale", "verdict", "why"),
    *("difference", "low", "high"),
)

DATASETS = {  # names on pages
    "cifar10": "CIFAR-10",
    "digits4": "Digits",
    "digits5": "Digits",
    "office10": "Office-Caltech-10",
    "pacs": "PACS",
    "pacs-leaky": "PACS, leaky lists",
    "pacs-authors": "PACS, the authors\u2019 tests",
    "pacs-mixed-0.3": "PACS, mixed clients",
    "pacs-clients12": "PACS, twelve clients",
    "domainnet": "DomainNet",
    **{f"domainnet-{n}": f"DomainNet, {n} classes" for n in (50, 100, 150)},
}
STANDIN, FROZEN = " with a stand-in", "-frozen"


def dataset_name(dataset: str) -> str:
    """A data set's name for titles and sentences."""
    images = dataset.removesuffix(FROZEN)
    plain = images.removesuffix("-standin")
    name = DATASETS.get(plain, plain) + STANDIN * (plain != images)
    return name + ", frozen features" * (images != dataset)


def aligned(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns aligned on the left, two spaces apart."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [[text.replace("|", "\\|") for text in row] for row in (head, *rows)]
    lines.insert(1, ["---"] * len(head))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def names_in(said: str, known: Collection[str] = ()) -> list[str]:
    """Names by semicolons if there is one, else by commas outside brackets; known names may have
    others."""
    apart = ";" if ";" in said else r",(?![^()]*\))"
    parts = [said] if said in known else re.split(apart, said)
    return [part.strip() for part in parts if part.strip()]


def as_json(rows: Sequence[Mapping[str, Any]], keys: Sequence[str] = ()) -> str:
    """One JSON list of objects with these keys, by default all; NaN becomes null."""
    found = [{key: row[key] for key in keys or row} for row in rows]
    json = TypeAdapter(Any).dump_json(found, indent=1, fallback=lambda scalar: scalar.item())
    return json.decode()  # numpy's scalars, from pandas, are no JSON
