"""Make a campaign's runs the book's records.

    python tools/publish_records.py RUNS

RUNS began as a copy of `book/records`, then a campaign trained in it and sweeps collected the
notebooks. Its runs are packed and the packed files of each data set joined. A run that a notebook
of the book used, and none uses any more, is left out. One that no notebook has used yet stays: the
next sweep may use it. Of the notebooks, those stay that the book has already. RUNS itself is not
changed. If RUNS is damaged, or lacks a run or notebook of the book, nothing is published.

Last, what is kept of the records elsewhere is made again: the page of all claims with its outputs,
README's table of claims, and its picture.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from base64 import b64decode
from pathlib import Path

import nbformat
import pandas as pd
import scrapbook

from fedrepro.base import files
from fedrepro.base.errors import FedReproError
from fedrepro.base.files import CHECKOUT, RECORDS
from fedrepro.commands import pack
from fedrepro.records.packed import INDEX, PARTS, SHARED, SMALL, check
from fedrepro.report.claim_views import PICTURE
from fedrepro.report.results import STUDIES

CLAIMS, README = CHECKOUT / "book" / "results" / "claims.ipynb", CHECKOUT / "README.md"
MARKS = "<!-- claims: begin -->\n", "<!-- claims: end -->"
KINDS = ("", "-points", "-predictions")
LARGEST = 1e6  # bytes of a figure's arrays; a page shows the larger ones from the notebook


def keys(root: Path) -> set[str]:
    """The packed runs of a folder, and its notebooks."""
    runs = {line["run"] for line in files.read_lines(root / INDEX)}
    return runs | {line["name"] for line in files.read_lines(root / STUDIES)}


def used_in(root: Path) -> set[str]:
    """The runs that a folder's notebooks use."""
    return used_as(root, "runs") | used_as(root, "trials")


def used_as(root: Path, what: str) -> set[str]:
    return {use[0] for one in files.read_lines(root / STUDIES) for use in one[what]}


def must_be_whole(root: Path) -> None:
    if wrong := check(root):
        raise FedReproError(f"{wrong[0]} ({len(wrong)} mistakes); nothing was published")


def join(root: Path, unused: set[str]) -> int:
    """Join packed files by data set and scale, without runs that are neither used nor in `unused`.
    Of a run that is a trial alone, accuracy and bytes are kept. Returns the number of runs."""
    used, trials = unused | used_in(root), used_as(root, "trials") - used_as(root, "runs")
    every = {line["run"]: line for line in files.read_lines(root / INDEX) if line["run"] in used}
    lines, where = list(every.values()), {run: line["file"] for run, line in every.items()}
    for line in lines:
        line["file"] = re.sub(r"-\d+$", "", line["file"])
    groups: dict[str, list[pd.DataFrame]] = {}
    for name in sorted(set(where.values())):
        for kind in (kind for kind in KINDS if (root / f"{name}{kind}.parquet").exists()):
            frame = pd.read_parquet(root / f"{name}{kind}.parquet")
            read = ~frame.run.isin(trials)
            if not kind:
                read |= frame.measure.isin(["accuracy", "bytes"])
            own = frame[read & (frame.run.map(where) == name)]  # packed twice: in its last file
            groups.setdefault(re.sub(r"-\d+$", "", name) + kind, []).append(own)
    joined = {f"{n}.parquet": pd.concat(parts, ignore_index=True) for n, parts in groups.items()}
    for path in root.glob("*.parquet"):
        path.unlink()
    sums = {}
    for name, frame in joined.items():
        if len(frame):  # what is alike together: a seventh smaller
            alike = "measure" if "measure" in frame else "run"
            frame = frame.sort_values(alike, kind="stable", ignore_index=True)
            frame.to_parquet(root / name, **SMALL)
            sums[name] = hashlib.sha256((root / name).read_bytes()).hexdigest()
    facts = {key for line in lines for key in (line["environment"], line["data"])}
    needed = facts | {line["config"][part] for line in lines for part in PARTS}
    shared = [line for line in files.read_lines(root / SHARED) if line["key"] in needed]
    shared += [{"key": key, "content": content} for key, content in sums.items()]
    files.write_lines(root / SHARED, shared)
    files.write_lines(root / INDEX, lines)
    return len(lines)


def shrunk(path: Path) -> str:
    """An executed notebook as a file without indents and the times of its cells: a tenth less."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
    text = nbformat.writes(notebook, indent=None, separators=(",", ":"), split_lines=False)
    return f"{text}\n"


def publish(runs: Path, records: Path = RECORDS) -> str:
    """Returns what was done, in one line. FedReproError: what is missing or damaged in `runs`."""
    trained = {done.parent.name for done in runs.glob("*/done")}
    if lost := keys(records) - keys(runs) - trained:
        raise FedReproError(
            f"{runs} lacks {len(lost)} runs and notebooks of the book; begin with a copy of "
            f"{records}; nothing was published"
        )
    unused = (trained | keys(runs)) - used_in(records)
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "records"
        # What a campaign that still trains there may remove at any time.
        shutil.copytree(runs, root, ignore=shutil.ignore_patterns("campaign", "*.part", "*.lock"))
        pack(root)
        must_be_whole(root)  # before: joined files get new hashes
        packed = len(files.read_lines(root / INDEX))
        kept = join(root, unused)
        must_be_whole(root)
        for notebook in (root / "notebooks").glob("*.ipynb"):
            if (own := records / "notebooks" / notebook.name).exists():
                own.write_text(shrunk(notebook), encoding="utf-8")
        for path in [*records.glob("*.parquet"), *records.glob("*.jsonl*")]:
            path.unlink()
        for path in [*root.glob("*.parquet"), *root.glob("*.jsonl*")]:
            shutil.copy2(path, records)
        (records / "figures").mkdir(exist_ok=True)
        for path in (root / "figures").glob("*"):
            if path.stat().st_size < LARGEST:
                shutil.copy2(path, records / "figures")
    size = sum(path.stat().st_size for path in records.rglob("*") if path.is_file())
    left = f"{packed - kept} left out that no notebook uses any more"
    return f"{kept} runs published, {left}, {size / 1e6:.2f} MB in {records}"


def remake() -> None:
    """Execute the page of claims in place; its glued table and picture are README's too."""
    how = ["--execute", "--inplace", "--ExecutePreprocessor.record_timing=False"]
    words = [sys.executable, "-m", "nbconvert", "--to", "notebook", *how, str(CLAIMS)]
    subprocess.run(words, check=True)
    scraps = scrapbook.read_notebook(str(CLAIMS)).scraps
    (CHECKOUT / "book" / "_static" / PICTURE).write_bytes(b64decode(scraps["picture"].data))
    table = re.sub(r"results/(\w+)\.html", r"book/results/\1.ipynb", scraps["main"].data)
    before, _, rest = README.read_text("utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    table = table.replace("](_static/", "](book/_static/")
    README.write_text(before + MARKS[0] + table + MARKS[1] + after, "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="make a campaign's runs the book's records")
    parser.add_argument("runs", type=Path, help="the folder; not changed")
    try:
        print(publish(parser.parse_args().runs))
        remake()
    except FedReproError as error:
        raise SystemExit(f"error: {error}") from None
