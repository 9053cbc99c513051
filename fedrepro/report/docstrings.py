"""Docstrings for the book's page of names: a Sphinx extension for autodoc."""

import re
from typing import Any

# "name: what it is", or "name (shape): ...", where a line or, in small letters, a sentence begins.
ITEM = re.compile(r"(?:^|(?<=\.) (?=[a-z]))(\w+(?:, \w+)*(?: \([^)]*\))?): ", re.MULTILINE)


def listed(lines: list[str]) -> list[str]:
    """A docstring with its described names as items of a list."""
    text = ITEM.sub(r"\n\n- **\1**: ", "\n".join(line.strip() for line in lines).strip())
    parts = re.split(r"\n{2,}", text)
    shown = [p.replace("\n", "\n  ") if p.startswith("- ") else p for p in parts]
    return "\n\n".join(shown).splitlines()


def _process(app: Any, what: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    lines[:] = listed(lines)


def _plain(app: Any, what: str, name: str, item: Any, options: Any, *signed: str) -> Any:
    """A signature that Sphinx can parse: defaults without source text are named."""
    given, returned = signed
    given = re.sub(r"<function (\w+)>", r"\1", given or "").replace("<factory>", "...")
    return given, returned


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _process)
    app.connect("autodoc-process-signature", _plain)
    return {"parallel_read_safe": True}
