"""For the paper notebooks: open a study from the parameters cell, show it, look into a method."""

import inspect
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import dedent
from typing import Any

import pandas as pd
import scrapbook
from IPython.display import Markdown
from torch import Tensor

from fedrepro import papers
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import progress
from fedrepro.federated import metrics
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import Method
from fedrepro.quantities.base import Result, Study, study
from fedrepro.quantities.counted import with_prototypes
from fedrepro.report import images, ledger, views
from fedrepro.report.picture import Picture
from fedrepro.report.results import Results
from fedrepro.report.tables import NOTHING, Html
from fedrepro.report.text import names_in


def open_study(
    paper: str,
    dataset: str,
    scale: str,
    seed: int,
    methods: Sequence[str] | str | None = None,
    device: str = "auto",
    data_root: str | None = None,
    runs_dir: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Study:
    """The study of a notebook's parameters."""
    if isinstance(methods, str):
        methods = names_in(methods, papers.load(paper).labels)
    where: dict[str, Any] = {"device": device, "data_root": data_root, "runs_dir": runs_dir}
    where |= {"only": methods or None, "changes": changes or {}, "progress": progress(own=True)}
    return study(paper, dataset, scale, seed, **where)


def keep(name: str, picture: Picture) -> None:
    """Show a figure and store it under a name, for `views.picture`."""
    scrapbook.glue(name, picture, "display")


def drawing(paper: str) -> Html:
    """The picture of a paper's method."""
    text = b64encode((papers.FOLDER / f"{paper}.svg").read_bytes()).decode()
    said = f"one round of {paper}"  # JupyterLab shows no SVG itself in a notebook of others
    look = 'width="400" style="max-width: 100%"'
    return Html(f'<img alt="{said}" {look} src="data:image/svg+xml;base64,{text}">', said)


def protocol(study: Study, experiments: Sequence[str]) -> Html:
    """Every setting and every method's fields, with sources and alternatives."""
    names = {arm.method: None for name in experiments for arm in study.arms(name)}
    return ledger.protocol_table(study.paper.sources(study.dataset, study.scale), names)


def runs(found: Results) -> pd.DataFrame:
    """Train or read every run, one per row; above them one line for each that diverged. Accuracy
    is that of the last round, whatever the paper's tables take."""
    rows: dict[str, dict[str, Any]] = {}
    for _, name, result in found.runs():
        curve, last = result.record.curve, result.curve().iloc[-1]
        rows[result.record.run_id] = rows.get(result.record.run_id) or {
            "first used in": name,
            "run": result.label,
            "method": result.record.config["method"]["name"],
            "rounds": int(curve["round"].max()),
            "accuracy (%), last round": round(last["avg"], 2),
            "seconds": round(float(metrics.seconds(curve).sum()), 1),
            "MB per client": round(last["bytes"] / 1e6, 3),
        }
    ended: dict[str, list[str]] = {}
    for one, name in ((one, name) for one, names in found.studies for name in names):
        for label, end in one.diverged(name).items():
            ended.setdefault(f"{label}: {end}", []).append(name)
    for said, where in ended.items():
        print(f"left out of {', '.join(where)}: {said}")
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("run id")


def scoreboard(results: Sequence[Result]) -> pd.DataFrame:
    """Accuracy in percent after the last round by domain, and one client's traffic, by run."""
    table = pd.DataFrame({one.label: one.curve().iloc[-1] for one in results}).T
    table["MB per client"] = table.pop("bytes") / 1e6
    return table.round(2)


def main(found: Results) -> str:
    """The first table that compares methods: its runs are used where one table is enough."""
    tables = (name for name in found.experiments if "table" in name)
    return next((n for n in tables if found.paper.experiment(n).kind in papers.COMPARES), "")


def show(*things: Any) -> None:
    """Show the tables and figures with content, each figure below its caption."""
    for thing in things:
        if getattr(thing, "summary", "") == NOTHING:
            continue
        if caption := getattr(thing, "caption", ""):
            print(caption)
        views.show([thing])


def prototypes(found: Results, experiment: str) -> None:
    """t-SNE of the clients' embeddings and prototypes, and distances between embeddings."""
    for one in found.holding(experiment):
        keep("prototypes", images.plane(with_prototypes(one.figure(experiment), one.seed)))
        show(views.numbers(found, experiment, one.dataset))


def inversions(found: Results, experiment: str, paper_steps: int) -> None:
    """The images that an attack finds from prototypes, and their similarity."""
    for one in found.holding(experiment):
        attacked = one.figure(experiment)
        steps = attacked.facts["settings"]["steps"]
        print(f"{steps:,} steps per image; the paper takes {paper_steps:,}")
        keep("inversions", images.inversions(attacked, one.cells(experiment)))
        show(views.numbers(found, experiment, one.dataset))


# Into a method.


def code(*parts: Any) -> Markdown:
    """The source of classes and functions in the installed package, each with its file and line."""
    texts = ["```python"]
    for part in parts:
        lines, first = inspect.getsourcelines(part)
        place = part.__module__.replace(".", "/")
        texts.append(f"# {place}.py, line {first}\n{dedent(''.join(lines))}")
    return Markdown("\n".join([*texts, "```"]))


def small(study: Study) -> Study:
    """The study itself at scale smoke; at other scales, the study of the embedded digits."""
    if study.scale == "smoke":
        return study
    return replace(study, dataset="minidigits", scale="smoke", changes={}, only=None)


class _Caught(Exception):
    """Carries a function's arguments out of a round."""


def given(study: Study, method: Method, hook: str = "client_loss", round: int = 2) -> Any:
    """The arguments of the first call of a method's function in a round. Earlier rounds are
    trained, and nothing is recorded. FedReproError: the function is not called."""

    def stop(*arguments: Any) -> Any:
        raise _Caught(*arguments)

    training = Training(method, study.protocol(), study.federation(), study.seed)
    for _ in range(round - 1):
        training.one_round()
    training.method = replace(method)
    object.__setattr__(training.method, hook, stop)  # a method is frozen
    try:
        training.one_round()
    except _Caught as caught:
        return caught.args
    raise FedReproError(f"{method.name} does not call {hook} in round {round}; choose another")


def shapes(**tensors: Tensor) -> pd.DataFrame:
    """Shape and type: one row per tensor."""
    rows = {n: (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in tensors.items()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["shape", "type"])


def beside(**terms: Mapping[str, Tensor]) -> pd.DataFrame:
    """Loss terms, computed in several ways: one row per term, one column per way."""
    return pd.DataFrame({way: {n: v.item() for n, v in of.items()} for way, of in terms.items()})
