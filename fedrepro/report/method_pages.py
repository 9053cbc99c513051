"""One page per method, made from its class and from a real round."""

import dataclasses
import inspect
from functools import partial
from pathlib import Path

import torch

from fedrepro import methods, papers
from fedrepro.base.errors import FedReproError
from fedrepro.base.files import make_folder
from fedrepro.base.progress import Silent
from fedrepro.base.protocol import parse_protocol
from fedrepro.data.federation import ClientData, Federation, Samples
from fedrepro.federated.metrics import traffic
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import Method
from fedrepro.models import parameter_count
from fedrepro.report.text import markdown

TESTED = {
    "global": "the server's network on every domain",
    "personal": "each client's own network on its domain",
    "trained": "each client's network, as local training left it, on its domain",
    "twin": "each client's second network on its domain",
}
MODEL, SIZE, CLASSES, CLIENTS, IMAGES = "small-cnn", 28, 10, 5, 20
PROTOCOL = {
    **{"data": {"dataset": "made", "size": SIZE}, "model": MODEL, "scale": "smoke"},
    **{"rounds": 3, "local_epochs": 1, "batch_size": 10},
}


def write_pages(folder: Path) -> list[str]:
    """Write `<name>.md` for every known method. Returns the names, sorted."""
    make_folder(folder, "make room there")
    for name in methods.names():
        (folder / f"{name}.md").write_text(page(name), encoding="utf-8")
    return list(methods.names())


def page(name: str) -> str:
    """A method's page as Markdown. FedReproError: a field has no source."""
    cls = methods.get(name)
    rows, inherited = cls.describe(), dataclasses.fields(Method)
    for row, field in zip(rows, dataclasses.fields(cls), strict=True):
        if not row["source"] or field in inherited:
            raise FedReproError(f"{name}: field {row['name']} has no source; say where it is from")
        row["others"] = ", ".join(f"`{value!r}`" for value in row["alternatives"])
    fields = [
        (f"`{r['name']}`", f"`{r['default']!r}`", r["others"] or "-", r["status"], r["source"])
        for r in rows
    ]
    left_open = [
        f"- `{r['name']}` is `{r['default']!r}`, elsewhere {r['others']}: {r['source']}."
        for r in rows
        if r["others"] and r["status"] != "stated"
    ]
    prose = "\n\n".join(inspect.cleandoc(layer.__doc__ or "") for layer in cls.layers())
    files = [f"`{layer.__module__.replace('.', '/')}.py`" for layer in cls.layers()]
    parts = [
        f"# {name}\n",
        f"{prose} {{cite}}`{cls.reference}`\n",
        *(["## Equations\n"] if cls.equations else []),
        *(f"$$\n{equation}\n$$\n" for equation in cls.equations),
        "## What travels\n",
        _messages(cls),
        "## Hyper-parameters\n",
        markdown(("field", "value", "also read or tried", "status", "source"), fields),
        "## What the papers leave open\n",
        *(left_open or ["Nothing."]),
        "\n## Where it is used\n",
        *(_uses(name) or ["In no table of the five papers."]),
        "\n## Its code\n",
        f"{', '.join(files)}, version {cls.version}.\n",
    ]
    return "\n".join(parts)


def _messages(cls: type[Method]) -> str:
    """Bytes counted in a second round (in the first there may be no prototypes yet)."""
    try:
        training = Training(cls(), parse_protocol(PROTOCOL), _federation(), seed=0)
        curve = training.run(Silent())
    except FedReproError as error:  # it trains on other data than images
        return f"Not counted on images: {error}.\n"
    sent = traffic(curve[curve["round"] == 2])
    rows = [
        (arrow, str(kind).partition("/")[2], f"{value / CLIENTS:,.0f}")
        for way, arrow in (("down", "server to client"), ("up", "client to server"))
        for kind, value in (sent.loc[2].items() if len(sent) else ())
        if str(kind).startswith(way) and value
    ]
    size = parameter_count(training.engine.module)
    return (
        f"Counted in the second round of {CLIENTS} clients with {IMAGES} made images of {SIZE} "
        f"pixels and {CLASSES} classes each, network `{MODEL}` ({size:,} parameters), fields at "
        "their defaults. Per client and round:\n\n"
        + (markdown(("way", "message", "bytes"), rows) if rows else "Nothing travels.\n")
        + f"\nWhat is tested ({' and '.join(training.evaluated)}): "
        + "; ".join(TESTED.get(kind, kind) for kind in training.evaluated)
        + ".\n"
    )


def _uses(name: str) -> list[str]:
    lines = []
    for paper in map(papers.load, papers.list()):
        runs = [e.id for e in paper.experiments if e.state == "runs"]
        used = [e for e in runs if any(arm.method == name for arm in paper.arm_specs(e))]
        lines += [f"- {paper.short}: {', '.join(used)}."] if used else []
    return lines


def _federation() -> Federation:
    generator, labels = torch.Generator().manual_seed(0), torch.arange(IMAGES) % CLASSES
    drawn = partial(torch.randint, 0, 256, (IMAGES, 3, SIZE, SIZE), dtype=torch.uint8)
    made = {f"client{i}": Samples(drawn(generator=generator), labels) for i in range(CLIENTS)}
    clients = tuple(ClientData(name, name, samples, None) for name, samples in made.items())
    classes = tuple(map(str, range(CLASSES)))
    return Federation("made", SIZE, classes, domains=tuple(made), clients=clients, tests=made)
