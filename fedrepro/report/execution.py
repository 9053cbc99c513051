"""The recorded runs: their protocol, date, machine and data."""

from html import escape

import pandas as pd

from fedrepro import papers
from fedrepro.federated import metrics
from fedrepro.quantities.paper_run import Result, Study
from fedrepro.records.environment import describe_build
from fedrepro.report import score_rules
from fedrepro.report.results import Results, recorded, run_link
from fedrepro.report.tables import Html, styled
from fedrepro.report.text import dataset_name
from fedrepro.report.verdicts import beside
from fedrepro.report.views import nothing


def whole_protocol() -> pd.DataFrame | Html:
    """Runs under the papers' own protocols: rows and verdicts of each printed table and data set
    with a run at scale paper."""
    rows = []
    for paper in papers.list():
        found = recorded(paper).where(scale="paper")
        for name in (n for n in found.experiments if found.runs(n)):
            for dataset in found.datasets(name):
                here = found.where(dataset=dataset)
                ran = {result.label for *_, result in here.runs(name)}
                cells = beside(here, name)
                words = cells[cells.verdict != "not run"].verdict.value_counts()
                asked = [s.label for s in found.paper.arm_specs(name) if not s.alternative]
                run = f"{len(ran.intersection(asked))} of {len(asked)}"
                given = ", ".join(f"{count} {word}" for word, count in words.items())
                rows.append((f"{found.paper.short}, {name}", dataset_name(dataset), run, given))
    frame = pd.DataFrame(rows, columns=["table", "data set", "rows run", "verdicts"])
    return frame.set_index("table") if rows else nothing()


def _each_run(found: Results) -> dict[tuple[str, str], tuple[Study, Result]]:
    return {(study.paper.name, r.record.run_id): (study, r) for study, _, r in found.runs()}


def executions(found: Results) -> pd.DataFrame | Html:
    """Date, machine, versions and commit: one row per group of runs that share them."""
    rows = [
        {
            **{"paper": study.paper.name, "dataset": study.dataset, "scale": study.scale},
            "date": facts["date"][:10],
            "machine": f"{facts['device']}, {facts['threads']} thread",
            "python": facts["python"],
            **{k: facts["packages"][k] for k in ("torch", "torchvision", "numpy")},
            "commit": (facts["commit"] or "unknown")[:10]
            + (" (changed files)" if facts["dirty"] else ""),
        }
        for study, facts in (
            (study, result.record.environment) for study, result in _each_run(found).values()
        )
    ]
    if not rows:
        return nothing()
    frame = pd.DataFrame(rows).fillna("none")
    return frame.groupby(list(frame.columns), sort=False).size().rename("runs").reset_index()


def hashes(found: Results) -> pd.DataFrame | Html:
    """The hashes of the runs' data."""
    rows = {
        (study.dataset, study.scale, what): {"sha256": value[:16]}
        for study, result in _each_run(found).values()
        for what, value in result.record.data["hashes"].items()
    }
    if not rows:
        return nothing()
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["dataset", "scale", "what"])


def every_run(found: Results) -> Html:
    """Id with a link, method, seed and mean accuracy under all score rules: one row per run."""
    rows = {
        result.record.run_id: {
            "dataset": study.dataset,
            "scale": study.scale,
            "run": result.label,
            "seed": study.seed,
            "rounds": int((curve := result.record.curve)["round"].max()),
            **{r: f"{score['avg']:.2f}" for r, score in metrics.all_scores(curve).items()},
        }
        for study, result in _each_run(found).values()
    }
    if not rows:
        return nothing()
    frame = pd.DataFrame.from_dict(rows, orient="index").fillna("–")
    frame = frame.sort_values(["dataset", "scale", "run", "seed"]).map(lambda v: escape(str(v)))
    links = {run: f'<a href="{run_link(run)}">{run}</a>' for run in rows}
    shown = frame.rename(index=links, columns=score_rules.NAMES)
    return Html(styled(shown.rename_axis(columns="run id"), "dataframe", "Every run"), "every run")


def this_build() -> pd.DataFrame:
    """Date, versions and commit of the machine that builds the pages."""
    return pd.Series(describe_build(), name="").to_frame().rename_axis("fact")
