"""Building the site: what goes in, what comes out, and what a user is told when it fails."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from PIL import Image

import fedrepro
from fedrepro import pages, papers
from fedrepro.base.errors import FedReproError
from fedrepro.base.files import CHECKOUT
from fedrepro.methods import api
from fedrepro.pages import build_book
from fedrepro.report.claim_views import CLAIMS, PICTURE


def notebook(*sources: str, kernel: str = "python3") -> nbformat.NotebookNode:
    cells = [nbformat.v4.new_markdown_cell("# Counts")]
    cells += [nbformat.v4.new_code_cell(source) for source in sources]
    spec = {"name": kernel, "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": spec})


@pytest.fixture
def small(tmp_path):
    source = tmp_path / "repository"
    (source / "book" / "results").mkdir(parents=True)
    shutil.copy2(CHECKOUT / "_config.yml", source)
    shutil.copy2(CHECKOUT / "book" / "references.bib", source / "book")
    for folder in ("_static", "_templates"):
        shutil.copytree(CHECKOUT / "book" / folder, source / "book" / folder)
    (source / "book" / "intro.md").write_text("# Start\n\nSome words.\n")
    nbformat.write(notebook('print("found", 1)'), source / "book" / "results" / "counts.ipynb")
    toc = "format: jb-book\nroot: book/intro\nparts:\n"
    toc += "  - {caption: Results, chapters: [{file: book/results/counts}]}\n"
    (source / "book" / "_toc.yml").write_text(toc)
    return source


def test_result_notebooks_and_own_runs_become_pages(small, tmp_path):
    runs = tmp_path / "runs"
    own = runs / "notebooks" / "adcol"
    own.mkdir(parents=True)
    nbformat.write(notebook("print(6 * 7)"), own / "seed-0.ipynb")
    failed = notebook("1 / 0")
    error = nbformat.v4.new_output("error", ename="ZeroDivisionError", evalue="", traceback=[])
    failed.cells[1].outputs = [error]
    nbformat.write(failed, own / "seed-1.ipynb")
    nbformat.write(notebook("print(1)"), own / "seed-2.failed.ipynb")
    (own / "broken.ipynb").write_text("{")
    lines: list[str] = []
    first = build_book(runs, tmp_path / "out", strict=True, source=small, say=lines.append)

    assert first == (tmp_path / "out" / "html" / "index.html").resolve() and first.is_file()
    page = (first.parent / "book" / "results" / "counts.html").read_text()
    assert "found 1" in page
    (mine,) = (first.parent / "book" / "own").glob("*.html")
    assert "Counts (adcol-seed-0)" in mine.read_text() and "not a result" in mine.read_text()
    assert pages.PATH_CHECK in page
    assert any("seed-1.ipynb" in line and "failed" in line for line in lines)
    assert any("broken.ipynb" in line for line in lines)


def test_a_failing_result_notebook_is_named_and_the_old_site_stays(small, tmp_path):
    old = tmp_path / "out" / "html" / "index.html"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    bad = notebook('raise ValueError("no such record")')
    nbformat.write(bad, small / "book" / "results" / "counts.ipynb")
    with pytest.raises(FedReproError, match=r"counts\.ipynb failed \(ValueError: no such record\)"):
        build_book(out=tmp_path / "out", source=small)
    assert old.read_text() == "old"


def test_strict_turns_a_warning_into_an_error_that_names_it(small, tmp_path):
    shutil.rmtree(small / "book" / "results")
    (small / "book" / "_toc.yml").write_text("format: jb-book\nroot: book/intro\n")
    (small / "book" / "intro.md").write_text("# Start\n\nSee {cite:p}`nobody1900`.\n")
    with pytest.raises(FedReproError, match=r"nobody1900.*whole log is .*book\.log") as caught:
        build_book(out=tmp_path / "out", strict=True, source=small)
    assert "\n" not in str(caught.value)
    assert "nobody1900" in (tmp_path / "out" / "book.log").read_text()
    assert not (tmp_path / "out" / "html").exists()


def test_recorded_notebooks_become_unlisted_pages_and_a_list(tmp_path):
    folder, lines = tmp_path / pages.RECORDED, []
    folder.mkdir(parents=True)
    office, part = {"dataset": "office10"}, {"experiment": "figure-5", "methods": ["FedAvg"]}
    for name, given in {
        "adcol-office10-reduced-seed10": {**office, "scale": "reduced", "seed": 10},
        "adcol-office10-reduced-seed2": {**office, "scale": "reduced", "seed": 2},
        "i2pfl-pacs-leaky-paper-seed0": {"dataset": "pacs-leaky", "scale": "paper"},
        "adcol-figure-5-new-reduced-seed0": {"dataset": "new", "scale": "reduced", **part},
        "adcol-office10-smoke-seed0": office,
        "adcol-office10-reduced-seed3.failed": {**office, "scale": "reduced", "seed": 3},
    }.items():
        one = notebook("print(1)")
        one.metadata["papermill"] = {"parameters": given}
        nbformat.write(one, folder / f"{name}.ipynb")
    pages.add_recorded(tmp_path, tmp_path, lines.append)
    links = re.compile(r"- \[(.*)\]\(/book/records/notebooks/(.*)\.ipynb\)\n")
    found = links.findall((tmp_path / pages.GENERATED / pages.NOTEBOOKS).read_text())
    assert found == [
        ("ADCOL on new, reduced, figure-5, FedAvg, seed 0", "adcol-figure-5-new-reduced-seed0"),
        ("ADCOL on Office-Caltech-10, reduced, seed 2", "adcol-office10-reduced-seed2"),
        ("ADCOL on Office-Caltech-10, reduced, seed 10", "adcol-office10-reduced-seed10"),
        ("I2PFL on PACS, leaky lists, paper, seed 0", "i2pfl-pacs-leaky-paper-seed0"),
    ]
    kept = sorted(folder.glob("*.ipynb"))
    assert [file.stem for file in kept] == sorted(name for _, name in found)
    for file in kept:
        metadata = nbformat.read(file, as_version=4).metadata
        assert metadata.orphan and metadata.nosearch
    assert len(lines) == 1 and "seed3" in lines[0]


class Links(HTMLParser):
    """Addresses a page loads (scripts, styles, pictures) and those it leads to; what its pictures
    say of themselves."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.led: list[str] = []
        self.said: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        if "src" in given:
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") != "canonical" and "href" in given:
            self.loaded.append(given["href"])
        if tag == "a" and "href" in given:
            self.led.append(given["href"])
        if tag == "img":
            self.said.append(given.get("alt", ""))


def test_pages_load_nothing_from_elsewhere_have_no_dead_link_and_say_what_pictures_show(site):
    wrong, seen = [], 0
    for page in site.rglob("*.html"):
        if "_static" in page.parts:
            continue
        text = page.read_text(encoding="utf-8")
        links = Links(text)
        wrong += [f"{page.name} loads {a}" for a in links.loaded if urlsplit(a).netloc]
        wrong += [f"{page.name} names a CDN" for _ in re.findall(r"unpkg|jsdelivr|cdnjs", text)]
        untold = [said for said in links.said if re.search(r"^$|\.(png|svg)$", said)]
        wrong += [f"{page.name}: a picture says {said!r}" for said in untold]
        seen += sum("; Office-Caltech-10" in said for said in links.said)
        for address in links.loaded + links.led:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or not parts.path:
                continue
            if not (page.parent / unquote(parts.path)).exists():
                wrong.append(f"{page.name}: {address} is not there")
    for style in (site / "_static").rglob("*.css"):
        remote = re.findall(r"url\(\s*['\"]?(?:https?:)?//[^)]*", style.read_text("utf-8"))
        wrong += [f"{style.name} loads {address}" for address in remote]
    assert not wrong and seen > 20, "\n".join(wrong)


def test_every_public_name_is_on_its_page_and_in_the_index(site):
    page = (site / "book" / "api.html").read_text("utf-8")
    index = (site / "genindex.html").read_text("utf-8")
    names = {*fedrepro.__all__, *api.__all__, "Record", "Federation"}
    found = {name.rpartition(".")[2] for name in re.findall(r'<dt[^>]* id="(fedrepro[^"]+)"', page)}
    assert names <= found
    assert not [name for name in names if not re.search(rf">(\w+\.)*{name}(\(\))? ?[<(]", index)]
    assert "source-buttons" not in page  # no address is set
    assert str(CHECKOUT) not in page  # a default may be a path of this machine


def test_the_readmes_claims_are_those_of_the_start_page(site):
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    block = text.split("<!-- claims: begin -->\n")[1].split("<!-- claims: end -->")[0]
    made = (site.parent / "site" / pages.GENERATED / pages.MAIN_CLAIMS).read_text(encoding="utf-8")
    made = re.sub(r"results/(claims|common)\.html", r"book/results/\1.ipynb", made)
    assert block == made.replace("](_static/", "](book/_static/")
    with Image.open(CHECKOUT / "book" / "_static" / PICTURE) as image:
        words = str(image.info["Description"])
    alt = re.search(r"!\[(.+)\]", block)
    assert alt is not None and words.startswith(alt[1])  # drawn from the same records


def test_the_claims_page_is_kept_with_todays_answers_and_no_other_page_with_numbers(site):
    """README leads to it also where no book is built."""

    def shown(page: Path) -> list[str]:
        cells = json.loads(page.read_text("utf-8"))["cells"]
        data = [o.get("data", {}) for cell in cells for o in cell.get("outputs", ())]
        html = " ".join("".join(one.get("text/html", "")) for one in data)
        return re.findall(r'<span (?:id|class)="([^"]+)"', html)  # claims and answers

    kept = sorted((CHECKOUT / pages.RESULTS).glob("*.ipynb"))
    (claims,) = [page for page in kept if '"output_type"' in page.read_text("utf-8")]
    assert claims.stem == Path(CLAIMS).stem
    assert shown(claims) == shown(site.parent / "site" / pages.RESULTS / claims.name) != []


def test_results_lead_to_their_claims_and_a_claim_to_its_tables_figures_and_runs(site):
    results = site / "book" / "results"
    text = (results / CLAIMS).read_text("utf-8")
    links = Links(text)
    places = re.findall(r'<span id="([^"]+)"', text)
    for name in papers.names():
        claims = [f"{name}-{claim.id}" for claim in papers.load(name).claims]
        page = (results / f"{name}_results.html").read_text("utf-8")
        assert re.findall(rf'href="{CLAIMS}#([^"]+)"', page) == claims
        assert set(claims) <= set(places)
    led = [address for address in links.led if re.match(r"\w+_(results|ablations)\.html#", address)]
    pages = {page: (results / page).read_text("utf-8") for page in {a.split("#")[0] for a in led}}
    gone = [a for a in led if f'id="{a.split("#")[1]}"' not in pages[a.split("#")[0]]]
    assert not gone and len(led) > 40
    assert sum("run.html#run-" in address for address in links.led) > 40


def test_the_site_is_small_and_has_no_page_a_run(site):
    sizes = {file: file.stat().st_size for file in site.rglob("*") if file.is_file()}
    assert sum(sizes.values()) < 30e6
    records = [size for file, size in sizes.items() if file.parent.name == "records"]
    assert len(records) == 17 and sum(records) < 5.5e6
    assert "run.html" not in (site / "searchindex.js").read_text("utf-8")
