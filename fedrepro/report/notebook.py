"""What the paper notebooks call: open a study from the parameters cell, and views of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedrepro.base.errors import FedReproError
from fedrepro.federated import metrics
from fedrepro.papers import registry
from fedrepro.quantities.base import Result
from fedrepro.quantities.paper_run import Study, study
from fedrepro.records.embedding import tsne
from fedrepro.report.tables import Html, beside_table, protocol_table
from fedrepro.report.verdicts import beside

PLACE = Path("..") / "runs"  # beside notebooks/, in a checkout
OPEN = ("inferred", "decided")  # what neither a paper nor public code settles


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
    """A study from a notebook's parameters. Mistakes in them show as one line, not a traceback."""
    errors_in_one_line()
    if isinstance(methods, str):
        methods = [name.strip() for name in methods.split(",")]
    return study(
        paper,
        dataset,
        scale,
        seed,
        only=methods or None,
        changes=changes or {},
        device=device,
        data_root=data_root,
        runs_dir=runs_dir or PLACE,
    )


def errors_in_one_line() -> None:
    """In this kernel a `FedReproError` shows as its own line; the cell fails all the same."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return

    def show_line(shell: Any, kind: type, value: BaseException, trace: Any, **_: Any) -> list[str]:
        line = [f"{kind.__name__}: {value}"]
        shell._showtraceback(kind, value, line)
        return line

    shell.set_custom_exc((FedReproError,), show_line)


def show(things: Iterable[Any]) -> None:
    """Display several things in one cell, in order."""
    from IPython.display import display

    for thing in things:
        display(thing)


def drawing(paper: str) -> Html:
    """The picture of a paper's method."""
    path = registry.FOLDER / f"{paper}.svg"
    return Html(path.read_text(encoding="utf-8"), f"one round of {paper}")


def protocol(study: Study, experiments: Sequence[str]) -> Html:
    """Every setting and every method's fields, with sources and alternatives."""
    names = {arm.method: None for name in experiments for arm in study.arms(name)}
    return protocol_table(study.paper.sources(study.dataset, study.scale), names)


def runs(study: Study, experiments: Sequence[str]) -> pd.DataFrame:
    """Train or find every run; a row a run: where it is kept, rounds, last mean accuracy, time.
    Above it a line for each whose training diverged."""
    rows: dict[str, dict[str, Any]] = {}
    ended: dict[str, list[str]] = {}
    for name in experiments:
        for label, end in study.diverged(name).items():
            ended.setdefault(f"{label}: {end}", []).append(name)
        for result in study.results(name):
            summary = result.summary()
            rows.setdefault(
                summary["run_id"],
                {
                    "run": result.label,
                    "method": summary["method"]["name"],
                    "rounds": summary["rounds"],
                    "accuracy (%)": round(summary["scores"]["last"]["avg"], 2),
                    "seconds": round(sum(summary["seconds"].values()), 1),
                    "MB a client": round(result.curve()["bytes"].iloc[-1] / 1e6, 3),
                },
            )
    for said, names in ended.items():
        print(f"left out of {', '.join(names)}: {said}")
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("run id")


def tables(study: Study, experiments: Sequence[str], *kinds: str) -> list[Html]:
    """The printed tables of some kinds beside this seed's numbers."""
    found = [study.paper.experiment(name) for name in experiments]
    return [
        beside_table(beside(study, e.id), f"{study.paper.short}, {e.id}: {e.caption}")
        for e in found
        if e.kind in kinds and e.table is not None
    ]


def scoreboard(results: Sequence[Result]) -> pd.DataFrame:
    """Accuracy in percent after the last round: a row a run, a column a domain, the mean last;
    and one client's traffic."""
    rows = {
        result.label: {
            **{str(k): v for k, v in result.summary()["scores"]["last"].items()},
            "MB a client": result.curve()["bytes"].iloc[-1] / 1e6,
        }
        for result in results
    }
    return pd.DataFrame.from_dict(rows, orient="index").round(2)


def score_rules(results: Sequence[Result]) -> pd.DataFrame:
    """Mean accuracy in percent under every score rule: a row a run; and the round that is best on
    the test images, the latest of equals."""
    rows = {
        result.label: {
            **{rule: score["avg"] for rule, score in result.summary()["scores"].items()},
            "best round": metrics.best_tested(result.curve()["avg"]),
            "rounds": len(result.curve()),
        }
        for result in results
    }
    return pd.DataFrame.from_dict(rows, orient="index").round(2)


def values(study: Study, experiment: str) -> pd.DataFrame:
    """Mean accuracy of each arm: label, seed, value."""
    frame = pd.DataFrame(study.cells(experiment))
    frame = frame[frame.column == "avg"]
    return frame.rename(columns={"method": "label"})[["label", "seed", "value"]]


def logged(study: Study, experiment: str, name: str) -> pd.DataFrame:
    """What each arm's server logged under a name: label, seed, round and that name."""
    frames = []
    for result in study.results(experiment):
        curve = result.record.curve
        rows = curve[(curve.measure == "server") & (curve.subject == name)]
        frame = rows[["round", "value"]].rename(columns={"value": name})
        frames.append(frame.assign(label=result.label, seed=study.seed))
    return pd.concat(frames, ignore_index=True)


def traffic(study: Study, experiment: str) -> pd.DataFrame:
    """Bytes of each arm by kind of payload: label, seed, kind, bytes."""
    rows = [
        {"label": r.label, "seed": study.seed, "kind": kind, "bytes": sent}
        for r in study.results(experiment)
        for kind, sent in r.summary()["bytes"].items()
    ]
    return pd.DataFrame(rows)


def embedding(study: Study, experiment: str) -> pd.DataFrame:
    """t-SNE of each arm's test representations: label, x, y, domain, cls."""
    classes = study.federation().classes
    frames = []
    for r in study.results(experiment):
        points = r.record.points
        if points.empty:
            points = tsne(r.record.features, r.record.data["domains"], classes, study.seed)
        frames.append(points.assign(label=r.label))
    return pd.concat(frames, ignore_index=True)


def departures(study: Study) -> pd.DataFrame:
    """What may move our numbers against the paper's: the scale, the data, and every setting that
    neither the paper nor public code settles."""
    federation = study.federation()
    rows = [("scale", study.scale, _scale_reason(study))]
    rows += [(key, str(value), "changed by hand") for key, value in study.changes.items()]
    for domain, clauses in federation.deviations.items():
        kind = "subset" if domain in federation.subsets else "deviation"
        rows += [(f"data: {domain}", kind, clause) for clause in clauses]
    sources = study.paper.sources(study.dataset, study.scale)
    unsettled = sources[sources.status.isin(OPEN) & (sources.setting != "data.dataset")]
    rows += list(unsettled[["setting", "value", "source"]].itertuples(index=False, name=None))
    return pd.DataFrame(rows, columns=["what", "value", "why"]).set_index("what")


def _scale_reason(study: Study) -> str:
    spec = {str(name): scale for name, scale in study.paper.scales.items()}.get(study.scale)
    return spec.reason if spec is not None else "the paper's protocol"
