"""What the book makes from code and records: a page per method, the data of the page of runs, and,
as a Sphinx extension, docstrings as lists."""

import inspect
import json
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedrepro import methods, papers
from fedrepro.base import files
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.base.protocol import parse_protocol
from fedrepro.data.federation import ClientData, Federation, Samples
from fedrepro.federated import metrics
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import Method
from fedrepro.models import parameter_count
from fedrepro.records.packed import Pack
from fedrepro.records.record import short_hash
from fedrepro.report.ledger import RULES
from fedrepro.report.results import Kept, Results, recorded
from fedrepro.report.text import markdown

# "name: what it is", or "name (shape): ...", where a line or, in small letters, a sentence begins.
ITEM = re.compile(r"(?:^|(?<=\.) (?=[a-z]))(\w+(?:, \w+)*(?: \([^)]*\))?):\s", re.MULTILINE)
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


# A page per method.


def page(name: str) -> str:
    """A method's page as Markdown."""
    cls, fields, left_open = methods.get(name), [], []
    for row in cls.describe():
        key, value, source = f"`{row['name']}`", f"`{row['default']!r}`", row["source"]
        others = ", ".join(f"`{other!r}`" for other in row["alternatives"])
        fields.append((key, value, others or "-", row["status"], source))
        if others and row["status"] != "stated":
            left_open.append(f"- {key} is {value}, elsewhere {others}: {source}.")
    used = []
    for paper in map(papers.load, (*papers.names(), papers.COMMON)):
        runs = [e.id for e in paper.experiments if e.state == "runs"]
        own = [e for e in runs if any(arm.method == name for arm in paper.arm_specs(e))]
        page = paper.name if paper.name == papers.COMMON else f"{paper.name}_results"
        used += [f"- [{paper.short}](../../results/{page}.ipynb): {', '.join(own)}."] if own else []
    prose = "\n\n".join(inspect.cleandoc(layer.__doc__ or "") for layer in cls.layers())
    sources = [f"{layer.__module__.replace('.', '/')}.py" for layer in cls.layers()]
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
        *(used or ["In no table."]),
        "\n## Its code\n",
        f"Version {cls.version}.\n",
        *map(_code, sources),
    ]
    return "\n".join(parts)


def _code(file: str) -> str:
    if (stem := Path(file).stem) in papers.names():
        return f"`{file}` is shown [with the method](../../{stem}/method.md).\n"
    how = f":language: python\n:linenos:\n:caption: {file}"
    return f"```{{literalinclude}} ../../../{file}\n{how}\n```\n"


def _messages(cls: type[Method]) -> str:
    """Bytes counted in a second round (in the first there may be no prototypes yet)."""
    try:
        training = Training(cls(), parse_protocol(PROTOCOL), _federation(), seed=0)
        curve = training.run(Silent())
    except FedReproError as error:  # it trains on other data than images
        return f"Not counted on images: {error}.\n"
    sent = metrics.traffic(curve[curve["round"] == 2])
    rows = [
        (arrow, str(kind).partition("/")[2], f"{value / CLIENTS:,.0f}")
        for way, arrow in (("down", "server to client"), ("up", "client to server"))
        for kind, value in (sent.loc[2].items() if len(sent) else ())
        if str(kind).startswith(way) and value
    ]
    size = parameter_count(training.engine.module)
    table = markdown(("way", "message", "bytes"), rows) if rows else "Nothing travels.\n"
    tested = "; ".join(TESTED.get(kind, kind) for kind in training.evaluated)
    return (
        f"Counted in the second round of {CLIENTS} clients with {IMAGES} generated images of "
        f"{SIZE} pixels and {CLASSES} classes each, network `{MODEL}` ({size:,} parameters), "
        f"fields at their defaults. Per client and round:\n\n{table}\n"
        f"What is tested: {tested}.\n"
    )


def _federation() -> Federation:
    generator, labels = torch.Generator().manual_seed(0), torch.arange(IMAGES) % CLASSES
    drawn = partial(torch.randint, 0, 256, (IMAGES, 3, SIZE, SIZE), dtype=torch.uint8)
    made = {f"client{i}": Samples(drawn(generator=generator), labels) for i in range(CLIENTS)}
    clients = tuple(ClientData(name, name, samples, None) for name, samples in made.items())
    classes = tuple(map(str, range(CLASSES)))
    return Federation("made", SIZE, classes, domains=tuple(made), clients=clients, tests=made)


# The page of runs (``book/_templates/run.html``): small scripts, one per first digit of a run id.


def write_scripts(folder: Path, runs: Path) -> None:
    """`shared.js`, and `<digit>.js` for each first digit of a run id, if any run is packed.
    Accuracies are in percent, rounded to 0.01."""
    packed = Pack(runs)
    if not packed.runs:
        return
    files.make_folder(folder, "make room there")
    uses = _uses(packed, recorded(None, runs))
    shared: dict[str, dict[str, Any]] = {"protocols": {}, "data": {}, "rules": RULES}
    parts = {"shared": shared}
    for run, line in packed.runs.items():
        facts, curve = packed.facts(run), packed.rows(run)
        config, data = facts["config"], facts["data"]
        scores = {
            rule: {domain: round(value, 2) for domain, value in found.items()}
            for rule, found in metrics.all_scores(curve, config["protocol"]).items()
        }
        parts.setdefault(run[0], {"runs": {}})["runs"][run] = {
            **line["config"],
            "method": config["method"],
            "environment": facts["environment"],
            "data": line["data"],
            "scores": scores,
            "traffic": round(curve.value[curve.measure == "bytes"].sum() / len(data["clients"])),
            "curve": list(metrics.accuracies(curve)["avg"].round(2).items()),
            "uses": uses[run],
        }
        shared["protocols"][line["config"]["protocol"]] = config["protocol"]
        shared["data"][line["data"]] = {key: data[key] for key in ("hashes", "standins")}
    for name, part in parts.items():
        text = json.dumps(part, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        (folder / f"{name}.js").write_text(f"recorded({text});\n", encoding="utf-8")


def _uses(packed: Pack, found: Results) -> dict[str, list[Any]]:
    """By run: where it is used, the command that trains it, and whether with today's settings the
    command trains exactly this run."""
    uses: dict[str, dict[str, Any]] = {run: {} for run in packed.runs}
    for study, _ in found.studies:
        if not isinstance(study, Kept):
            continue
        for run, name, label, *tried in study.scraps["runs"] + study.scraps["trials"]:
            words = ["fedrepro", "run", study.paper.name, name, "--dataset", study.dataset]
            words += ["--methods", label, "--seed", str(study.seed), "--scale", study.scale]
            where = ", ".join([study.paper.short, name, label, *(f"tried {v}" for v in tried)])
            same = short_hash(packed.facts(run)["config"]) in study.asked(name).get(label, ())
            uses[run].setdefault(where, [where, shlex.join(words), same])
    return {run: list(each.values()) for run, each in uses.items()}


# Docstrings, for Sphinx, which calls `setup`, and the others with a docstring or signature last.


def _listed(*event: Any) -> None:
    """Make the described names of a docstring items of a list."""
    text = ITEM.sub(r"\n\n- **\1**: ", "\n".join(line.strip() for line in event[-1]).strip())
    parts = re.split(r"\n{2,}", text)
    shown = [p.replace("\n", "\n  ") if p.startswith("- ") else p for p in parts]
    event[-1][:] = "\n\n".join(shown).splitlines()


def _plain(*event: Any) -> tuple[str, Any]:
    """A signature that Sphinx can parse: defaults without source text are named."""
    given = re.sub(r"<function (\w+)>", r"\1", event[-2] or "").replace("<factory>", "...")
    return given, event[-1]


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _listed)
    app.connect("autodoc-process-signature", _plain)
    return {"parallel_read_safe": True}
