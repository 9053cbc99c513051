"""A page a method, from what its class says and from a round it really goes through."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fedrepro import methods, papers
from fedrepro.base import files
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.base.protocol import Protocol, parse_protocol
from fedrepro.data.federation import ClientData, Federation, Samples
from fedrepro.federated.metrics import traffic
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import Method
from fedrepro.models import parameter_count

MODEL, SIZE, CLASSES, CLIENTS, IMAGES = "small-cnn", 28, 10, 5, 20


def write_pages(folder: Path) -> list[str]:
    """Write `<name>.md` for every known method; the names, sorted."""
    files.make_folder(folder, "make room there")
    for name in methods.names():
        (folder / f"{name}.md").write_text(page(name), encoding="utf-8")
    return list(methods.names())


def page(name: str) -> str:
    """A method's page as Markdown. FedReproError where a field has no source of its own."""
    cls = methods.get(name)
    rows = cls.describe()
    inherited = dataclasses.fields(Method)
    for row, field in zip(rows, dataclasses.fields(cls), strict=True):
        if not row["source"] or field in inherited:
            raise FedReproError(f"{name}: field {row['name']} has no source; say where it is from")
    parts = [
        f"# {name}\n",
        f"{_prose(cls)} {{cite}}`{cls.reference}`\n",
        *_equations(cls),
        "## What travels\n",
        *_messages(cls),
        "## Hyper-parameters\n",
        _table(("field", "value", "also read or tried", "status", "source"), map(_field, rows)),
        "## What the papers leave open\n",
        *_open(rows),
        "## Where it is used\n",
        *_uses(name),
        "## Its code\n",
        f"{', '.join(map(_file, cls.layers()))}, version {cls.version}.\n",
    ]
    return "\n".join(parts)


def _prose(cls: type[Method]) -> str:
    """What the method says of itself, and then its variants."""
    return "\n\n".join(inspect.cleandoc(layer.__doc__ or "") for layer in cls.layers())


def _file(cls: type[Method]) -> str:
    return f"`{cls.__module__.replace('.', '/')}.py`"


def _equations(cls: type[Method]) -> Iterator[str]:
    if cls.equations:
        yield "## Equations\n"
        for equation in cls.equations:
            yield f"$$\n{equation}\n$$\n"


def _messages(cls: type[Method]) -> Iterator[str]:
    """Bytes counted in a second round (in the first there may be no prototypes yet)."""
    try:
        training = Training(cls(), _protocol(), _federation(), seed=0)
        curve = training.run(Silent())
    except FedReproError as error:  # it trains on something else than images
        yield f"Not counted on images: {error}.\n"
        return
    sent = traffic(curve[curve["round"] == 2])
    size = parameter_count(training.engine.module)
    yield (
        f"Counted in the second round of {CLIENTS} clients with {IMAGES} made images of {SIZE} "
        f"pixels and {CLASSES} classes each, network `{MODEL}` ({size:,} parameters), fields at "
        "their defaults. Per client and round:\n"
    )
    rows = []
    for way, arrow in (("down", "server to client"), ("up", "client to server")):
        for kind, value in sent.loc[2].items() if len(sent) else ():
            if str(kind).startswith(way) and value:
                rows.append((arrow, str(kind).partition("/")[2], f"{value / CLIENTS:,.0f}"))
    yield _table(("way", "message", "bytes"), rows) if rows else "Nothing travels.\n"
    judged = " and ".join(training.judged)
    meaning = {
        "global": "the server's network on every domain",
        "personal": "each client's own network on its domain",
        "trained": "each client's network, as local training left it, on its domain",
        "twin": "each client's second network on its domain",
    }
    what = "; ".join(meaning.get(kind, kind) for kind in training.judged)
    yield f"What is tested ({judged}): {what}.\n"


def _field(row: dict[str, Any]) -> tuple[str, ...]:
    others = ", ".join(f"`{value!r}`" for value in row["alternatives"])
    said = row["status"], row["source"]
    return f"`{row['name']}`", f"`{row['default']!r}`", others or "-", *said


def _open(rows: list[dict[str, Any]]) -> Iterator[str]:
    found = [row for row in rows if row["alternatives"] and row["status"] != "stated"]
    for row in found:
        others = ", ".join(f"`{value!r}`" for value in row["alternatives"])
        yield f"- `{row['name']}` is `{row['default']!r}`, elsewhere {others}: {row['source']}."
    yield "" if found else "Nothing.\n"


def _uses(name: str) -> Iterator[str]:
    found = False
    for paper in map(papers.load, papers.list()):
        used = [
            experiment.id
            for experiment in paper.experiments
            if experiment.state == "runs"
            and any(arm.method == name for arm in paper.arm_specs(experiment.id))
        ]
        if used:
            found = True
            yield f"- {paper.short}: {', '.join(used)}."
    yield "" if found else "In no table of the five papers.\n"


def _table(head: tuple[str, ...], rows: Any) -> str:
    def cells(values: tuple[str, ...]) -> str:
        return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"

    lines = [cells(head), "|" + "---|" * len(head), *map(cells, rows)]
    return "\n".join(lines) + "\n"


def _protocol() -> Protocol:
    return parse_protocol(
        {
            "data": {"dataset": "made", "size": SIZE},
            "model": MODEL,
            "rounds": 3,
            "local_epochs": 1,
            "batch_size": 10,
            "scale": "smoke",
        }
    )


def _federation() -> Federation:
    generator = torch.Generator().manual_seed(0)
    names = tuple(f"client{i}" for i in range(CLIENTS))
    shape = (IMAGES, 3, SIZE, SIZE)
    made = [
        Samples(
            torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8),
            torch.arange(IMAGES) % CLASSES,
        )
        for _ in names
    ]
    return Federation(
        dataset="made",
        size=SIZE,
        classes=tuple(str(k) for k in range(CLASSES)),
        domains=names,
        clients=tuple(
            ClientData(name, name, samples, None) for name, samples in zip(names, made, strict=True)
        ),
        tests=dict(zip(names, made, strict=True)),
        hashes={},
        standins=(),
        deviations={},
    )
