"""Views of results, live or recorded, for notebooks and pages; one line where there are none."""

from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import product
from typing import Any

import pandas as pd
from IPython.display import Image, Markdown, display

from fedrepro import papers
from fedrepro.federated import metrics
from fedrepro.quantities import accuracy
from fedrepro.quantities.base import wide
from fedrepro.report import figures, images, ledger, tables as markup, verdicts
from fedrepro.report.picture import Picture
from fedrepro.report.results import FOLDER, Kept, Results, recorded, run_link
from fedrepro.report.tables import NOTHING, Html, nothing, number
from fedrepro.report.text import dataset_name

PRINTED = "The printed numbers"
Shown = Picture | Html
Draw = Callable[..., Picture]


def show(things: Iterable[Any]) -> None:
    for thing in things:  # one by one: a thing's own note stands above it
        display(thing)


def _last(things: Sequence[Shown]) -> Shown:
    """The last, for a cell's value; the others are displayed."""
    *first, last = things or [nothing()]
    show(first)
    return last


# Tables.


def cited(found: Results) -> Any:
    """The paper a page is about: title, authors, where and when."""
    paper = found.paper
    return Markdown(f"*{paper.title}*. {paper.authors}. {paper.venue}, {paper.year}.")


def overview(found: Results) -> pd.DataFrame | Html:
    """Seeds and different runs by data set and scale; ``counted`` if nothing there is trained."""
    if not found.studies:
        return nothing()
    rows = [
        {"name": dataset_name(study.dataset), "scale": study.scale, "seed": study.seed, "run": run}
        for study, names in found.studies
        for run in {r.record.run_id for *_, r in Results([(study, names)]).runs()} or [None]
    ]
    grouped = pd.DataFrame(rows).sort_values("seed").groupby(["name", "scale"])
    runs = grouped.run.nunique().map(lambda n: n or "counted")
    seeds = grouped.seed.agg(lambda seeds: ", ".join(map(str, seeds.unique())))
    counts = pd.DataFrame({"seeds": seeds, "runs": runs}).reset_index("scale")
    return counts.rename_axis(index=None, columns="data set")


def anchors(found: Results, experiment: str) -> list[str]:
    """The ids of a table on its page: one for each data set it was run on."""
    return [f"{experiment}-{name}" for name in found.datasets(experiment)] or [experiment]


def table(found: Results, experiment: str) -> Html:
    """A printed table with our seeds for each data set and scale; the printed one alone, folded, if
    it was not run, or only on other data."""
    paper, spec = found.paper, found.paper.experiment(experiment)
    caption = f"{paper.short}, {experiment}: {spec.caption}"
    rows = verdicts.beside(found, experiment)
    shown = markup.beside_table(rows, caption, found.links(experiment))
    first = "".join(f'<span id="{escape(name)}"></span>' for name in anchors(found, experiment))
    if not found.cells(experiment):
        printed = markup.folded(f"{PRINTED} ({caption})", shown.html)
        return Html(first + nothing().html + printed, NOTHING)
    text = first + undecided(found, experiment) + shown.html + ledger.each_rule(found, experiment)
    text += _how(spec)
    if spec.table and all(section.bare for section in markup.sections(rows)):
        printed = verdicts.build_table(paper, spec.table, [])
        text += markup.folded(PRINTED, markup.beside_table(printed, caption).html)
    return Html(text, shown.summary)


def _how(spec: Any) -> str:
    text = f"<p>{markup.sentence(spec.note)}</p>\n"
    return markup.folded(f"How {spec.id} is run", text) if spec.note else ""


def undecided(found: Results, experiment: str, only: Sequence[str] = ()) -> str:
    """HTML: the rows that decide nothing, by data set. only: of these rows."""
    lines = []
    for said, by_dataset in (
        ("at scale reduced these rows still rise when their runs end", found.rising),
        ("these rows were trained with earlier settings", found.past),
    ):
        for dataset, late in by_dataset(experiment).items():
            every = {one.label for *_, one in found.where(dataset=dataset).runs(experiment)}
            rows = [row for row in late if row in (only or every)]
            names = f"all {len(rows)}" if len(rows) == len(every) > 1 else "; ".join(rows)
            lines += [f"On {dataset_name(dataset)} {said}: {names}."] * bool(rows)
    return "".join(f'<p class="table-note">{escape(x)} They decide nothing.</p>\n' for x in lines)


def tables(
    found: Results, *kinds: str, only: Sequence[str] = ("",), without: Sequence[str] = ()
) -> list[Html]:
    """The tables of a paper's experiments of some kinds. only, without: how the ids to take and to
    leave out begin; "table-1" is table-1-digits and table-1-office10."""
    names = [n for n in found.experiments if n.startswith(tuple(only))]
    specs = [found.paper.experiment(n) for n in names if not n.startswith(tuple(without))]
    return [table(found, e.id) for e in specs if e.kind in kinds and e.table is not None]


def beside(found: Results, experiment: str, columns: Sequence[str] = ("avg",)) -> Shown:
    """For each data set with runs: the table, its figure, and the order of the methods in some
    columns. The printed table alone if there are none."""
    shown: list[Shown] = []
    for dataset in found.datasets(experiment):
        rows = verdicts.beside(here := found.where(dataset=dataset), experiment)
        orders = verdicts.order(rows).query("methods > 1")
        parts: list[tuple[Draw, pd.DataFrame]] = [(figures.beside, rows[rows.ours.notna()])]
        parts += [(figures.order, orders[orders.column == column]) for column in columns]
        shown.append(table(here, experiment))
        for draw, part in parts:
            for _, own in part.groupby("scale", sort=False):
                shown.append(_drawn(here, experiment, dataset, own, draw))
    return _last(shown or [table(found, experiment)])


def place(
    found: Results, experiment: str, dataset: str, own: str, other: str = "", column: str = "avg"
) -> str:
    """A sentence: a row's rank in one column by its mean over seeds, the first row, how far it is
    above the second or this row (no test), another row's value, the rank in the paper, and how many
    rows decide nothing."""
    here = found.of_one_scale(dataset, experiment)
    seeds = _values(found, experiment, dataset, column).astype({"value": float})
    seeds = seeds.groupby("label", sort=False).value
    ours = seeds.mean()[seeds.count() == seeds.size()]  # without rows of which a seed diverged
    seconds = {spec.label for spec in found.paper.arm_specs(experiment) if spec.alternative}
    ours = ours.drop(seconds - {own, other}, errors="ignore")
    if own not in ours:
        return f"{own}: " + ("a seed diverged: no rank." if own in seeds.groups else NOTHING)
    ours = ours.sort_values(ascending=False, kind="stable")
    named = found.paper.experiment(experiment).table
    printed = pd.Series(_printed(found, experiment, column), dtype=float)
    printed = printed[printed.index.isin(ours.index)]
    unit = found.paper.table(named).unit_of(column) if named and len(printed) else "percent"

    def stands(values: pd.Series) -> str:
        rank = values.round(9).rank(ascending=False)[own]
        return f"number {rank:g} of {len(values)} with {number(values[own], unit)}"

    best, *others = ours.index
    second, lead = own if best != own else next(iter(others), own), ""
    if second != best:
        sizes = [str(n) for n in seeds.size()[[best, second]].unique()]
        lead = f", {number(ours[best] - ours[second], unit)} above {second} "
        lead += f"({' and '.join(sizes)} {'seed' if sizes == ['1'] else 'seeds'})"
    scale = here.studies[0][0].scale
    parts = [f"at scale `{scale}` {own} is {stands(ours)}" + lead * (best == own)]
    if best != own:
        parts.append(f"{best} is first with {number(ours[best], unit)}{lead}")
    if other in others:
        parts.append(f"{other} has {number(ours[other], unit)}")
    if own in printed and len(printed) > 1:
        parts.append(f"in the paper {own} is {stands(printed)}")
    every = {"still rise": here.rising(experiment), "have earlier settings": here.past(experiment)}
    for said, by_dataset in every.items():
        if rows := set(by_dataset.get(dataset, ())) & set(ours.index):
            parts.append(f"{len(rows)} of {len(ours)} rows {said}")
    return "; ".join(parts) + "."


def _printed(found: Results, experiment: str, column: str) -> dict[str, float]:
    """The printed numbers of one column by row; empty where the experiment has no table."""
    named = found.paper.experiment(experiment).table
    return found.paper.table(named).values(column) if named else {}


def places(found: Results, *rows: Sequence[str]) -> Any:
    """A Markdown list of such sentences; each row is a title and the arguments of `place`."""
    return Markdown("\n".join(f"- **{title}:** {place(found, *rest)}" for title, *rest in rows))


def numbers(found: Results, experiment: str, dataset: str) -> pd.DataFrame | Html:
    """Our numbers for figures without printed values: means over seeds, one row per label."""
    rows = found.of_one_scale(dataset, experiment).cells(experiment)
    return wide(rows).round(3) if rows else nothing()


def linked(found: Results, dataset: str, rows: Mapping[str, Sequence[str]]) -> Html:
    """Our numbers of some rows of several experiments in one table, each leading to its runs."""
    here = {one: found.of_one_scale(dataset, one) for one in rows}
    means = {one: wide(here[one].cells(one)).loc[list(labels)] for one, labels in rows.items()}
    table = pd.concat(means.values())
    table = table[sorted(table, key="avg".__ne__)]
    links = [link for one in means for link in here[one].links(one).items()]
    of_means = [(row, page) for (*_, row, column), page in links if column == "avg"]
    pages = {(row, domain): page for row, page in of_means for domain in table}
    label = f"{', '.join(rows)} on {dataset}"
    said = "".join(undecided(here[one], one, labels) for one, labels in rows.items())
    return Html(said + markup.linked_table(table, pages, label).html, label)


def each_seed(found: Results, experiment: str, values: pd.DataFrame, row: str = "") -> Html:
    """Values, a line per seed, each leading to its run. row: of all columns, or each its own."""
    runs = {(study.seed, r.label): r.record.run_id for study, _, r in found.runs(experiment)}
    pages = {
        (str(seed), column): run_link(runs[seed, row or column])
        for seed, column in product(values.index, values)
        if (seed, row or column) in runs
    }
    shown = values.rename(index=str).rename_axis(columns="seed")
    return markup.linked_table(shown, pages, f"{experiment}, seed by seed")


# Figures.


def curves(found: Results, experiment: str, dataset: str, x: figures.Along = "round") -> Shown:
    """Accuracy during training, over rounds or bytes; at scale paper with the printed ones."""
    here = found.of_one_scale(dataset, experiment)
    full = x == "round" and {study.scale for study, _ in here.studies} == {"paper"}
    how = {"x": x, "printed": _printed(found, experiment, "avg") if full else None}
    return _drawn(found, experiment, dataset, here.curves(experiment), figures.curves, **how)


def _drawn(
    found: Results, experiment: str, dataset: str, rows: Any, draw: Draw, **how: Any
) -> Shown:
    """A picture with the caption of its experiment; one line if there is nothing to draw. What
    decides nothing, and how it is run, are said above it where no table says so."""
    if not len(rows):
        return nothing()
    spec, here = found.paper.experiment(experiment), found.where(dataset=dataset)
    said = undecided(here, experiment) + _how(spec)
    if how.pop("say", True) and said and not spec.table:
        show([Html(said, "how this is run")])
    picture = draw(rows, **how)
    title = f"{found.paper.short}, {experiment}: {spec.caption}; {dataset_name(dataset)}"
    picture.caption = f"{title}. {picture.caption}"
    return picture


def _values(found: Results, experiment: str, dataset: str, column: str = "avg") -> pd.DataFrame:
    """One column as label, seed, value."""
    rows = found.of_one_scale(dataset, experiment).cells(experiment)
    own = [(row["method"], row["seed"], row["value"]) for row in rows if row["column"] == column]
    return pd.DataFrame(own, columns=["label", "seed", "value"])


def sweep(found: Results, experiment: str, dataset: str, xlabel: str) -> Shown:
    """Mean accuracy against one varied setting."""
    rows = _values(found, experiment, dataset)
    return _drawn(found, experiment, dataset, rows, figures.sweep, xlabel=xlabel)


def in_and_out(
    found: Results, experiment: str, dataset: str, xlabel: str, reference: str = ""
) -> Any:
    """Accuracy out of and in the clients' domains against a varied setting, one picture each.
    reference: an arm without the setting, drawn as a horizontal line."""
    pictures: list[Shown] = []
    for column in ("out of domain", "in domain"):
        rows = _values(found, experiment, dataset, column)
        rows["label"] = rows.label.str.replace(r"^(\w+) ([\d.]+)$", r"\1=\2", regex=True)
        level, rows = rows[rows.label == reference], rows[rows.label != reference]
        places = dict.fromkeys(str(name).rpartition(", ")[2] for name in rows.label)
        lines = [level.assign(label=f"{reference}, {place}") for place in places if len(level)]
        if len(rows):
            frame = pd.concat([*lines, rows], ignore_index=True)
            how = {"xlabel": xlabel, "ylabel": f"accuracy {column} (fraction)", "say": not pictures}
            pictures.append(_drawn(found, experiment, dataset, frame, figures.sweep, **how))
    return _last(pictures)


def grid(found: Results, experiment: str, dataset: str, printed: str) -> Shown:
    """Mean accuracy over a grid of two settings. printed: the table with some of the paper's, which
    are of the experiment's first data set."""
    table, rows = found.paper.table(printed), _values(found, experiment, dataset)
    own = dataset == found.paper.experiment(experiment).datasets[0]
    theirs = table.values(table.columns[0]) if own else None
    return _drawn(found, experiment, dataset, rows, figures.heat_map, printed=theirs)


def by_domain(
    found: Results, experiment: str, dataset: str, draw: Draw = figures.by_domain
) -> Shown:
    """Accuracy of each arm per domain, side by side or in another figure."""
    rows = found.of_one_scale(dataset, experiment).cells(experiment)
    return _drawn(found, experiment, dataset, rows, draw)


def logged(
    found: Results, experiment: str, dataset: str, term: str, ylabel: str, chance: bool = False
) -> Shown:
    """The values that servers logged under a name, over rounds. chance: they are percent of right
    guesses which client something is from, with a line at one in the clients."""
    frames, levels = [], []
    for study, _, result in (runs := found.of_one_scale(dataset, experiment).runs(experiment)):
        rows = result.record.curve.query("measure == 'server' and subject == @term")
        frames.append(rows.assign(label=result.label, seed=study.seed))
        if chance:
            clients = len(result.record.data["clients"])
            level = {"label": f"chance, 1 in {clients}", "value": 100 / clients}
            levels.append(frames[-1].assign(**level))
    if not any(map(len, frames)):
        return nothing(f"No recorded run has logged {term}.") if runs else nothing()
    rows = pd.concat(frames + levels).drop_duplicates(["label", "seed", "round"])
    rows = rows.rename(columns={"value": "avg"})
    return _drawn(found, experiment, dataset, rows, figures.curves, ylabel=ylabel)


def traffic(found: Results, experiment: str, dataset: str) -> Shown:
    """The traffic of the whole run, all clients together, by kind of message."""
    rows = [
        {"label": result.label, "seed": study.seed, "kind": kind, "bytes": float(sent)}
        for study, _, result in found.of_one_scale(dataset, experiment).runs(experiment)
        for kind, sent in metrics.traffic(result.record.curve).sum().items()
    ]
    return _drawn(found, experiment, dataset, pd.DataFrame(rows), figures.traffic)


def embedding(found: Results, dataset: str, *by: Any) -> Any:
    """t-SNE of test representations, first seed: one picture by domain, one by class."""
    drawn = (
        (name, [r for r in study.results(name) if len(r.record.points)])
        for study, names in found.where(dataset=dataset).studies
        for name in names
        if study.paper.experiment(name).kind == "features"
    )
    name, results = next((pair for pair in drawn if pair[1]), ("", []))
    if not results:
        return nothing()
    if said := undecided(found.where(dataset=dataset), name):
        show([Html(said, "rows that decide nothing")])
    points = [one.record.points.assign(label=one.label) for one in results]
    pictures = [images.embedding(pd.concat(points, ignore_index=True), by=key) for key in by]
    for one in pictures:
        one.caption = f"{dataset_name(dataset)}. {one.caption}"
    return _last(pictures)


def confusions(found: Results, *experiments: str) -> Any:
    """Confused classes of test images, by data set, of the rows `images.in_order`."""
    shown: list[Shown] = []
    for experiment, dataset in ((e, d) for e in experiments for d in found.datasets(e)):
        runs = (here := found.of_one_scale(dataset, experiment)).runs(experiment)
        records = [(one.label, one.record) for *_, one in runs]
        rows = accuracy.confusion(records, found.paper.rule)
        lost = dict.fromkeys(one.label for *_, one in runs if one.label not in set(rows.method))
        said = f": no predictions are recorded for {'; '.join(lost)}" * bool(lost)
        name = f"{experiment} on {dataset_name(dataset)}, scale {here.studies[0][0].scale}"
        shown.append(Html(f"<p><strong>{escape(name)}</strong>{escape(said)}.</p>", name))
        if len(rows):
            rows = images.in_order(rows, found.paper.short)
            shown.append(_drawn(found, experiment, dataset, rows, images.confusion))
    return _last(shown)


def picture(found: Results, dataset: str, name: str) -> Any:
    """A figure from a stored notebook of a data set, with its interactive form if it has one."""
    for study, _ in found.where(dataset=dataset).studies:
        if isinstance(study, Kept) and (data := study.shown.get(name)):
            return Image(b64decode(data))
    return nothing()


# The data, and what the papers' files say.


def counts(found: Results, dataset: str) -> pd.DataFrame | Html:
    """Images by domain, split and class."""
    if not (runs := found.where(dataset=dataset).runs()):
        return nothing()
    *_, result = min(runs, key=lambda run: run[0].scale == "paper")
    frame, rows = pd.DataFrame(result.record.data["counts"]), ["domain", "split"]
    table = frame.pivot_table("images", rows, "class", aggfunc="sum", sort=False)
    return table.rename_axis(columns=None)


def measured(name: str, index: str = "", **how: Any) -> pd.DataFrame | Html:
    """A table that a benchmark stored with the records. index: the column that names the rows."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return nothing()
    frame = pd.read_json(path, **how).round(1)
    return frame.set_index(index) if index else frame


def blocked(paper: str) -> Html:
    """The tables and figures that cannot run or have no recorded run, and why."""
    found, ran = papers.load(paper).experiments, recorded(paper).experiments
    rows = [(f"{e.id}: {e.caption}", e.reason or NOTHING) for e in found if e.id not in ran]
    return markup.prose(("table or figure", "why it is not run"), rows, "what is not run")
