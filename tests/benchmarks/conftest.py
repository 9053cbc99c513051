"""Benchmark scripts set torch's threads for their process; tests after them expect their own."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"


def script(name: str) -> ModuleType:
    """A script, or what scripts share, as they import it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        return importlib.import_module(name)


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(FOLDER))
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def filled(bench: ModuleType, place: Path) -> str:
    """The rows a script writes between its marks of a README, from `place`/results."""
    readme, (begin, end) = place / "README.md", bench.MARKS
    readme.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    text = str(bench.fill_readme(readme, place / "results"))
    assert readme.read_text() == f"before\n{begin}\n{text}\n{end}\nafter\n"
    return text


def shows_what_is_stored(bench: ModuleType, files: str) -> None:
    """The README's rows are those of the stored measurements."""
    _, shown, _ = re.split("|".join(map(re.escape, bench.MARKS)), bench.README.read_text("utf-8"))
    assert shown.strip() == bench.table(list(bench.RESULTS.glob(files)))
