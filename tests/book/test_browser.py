"""The built book as a reader sees it: in a browser, on a desk and on a phone."""

import re
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("playwright", reason="the browser test needs playwright")

from fedrepro.federated import metrics
from fedrepro.records.packed import Pack
from fedrepro.report.results import FOLDER, recorded
from tests.book.chrome import Chrome

pytestmark = pytest.mark.browser
PHONE, DESK = 390, 1400

# Formulas that are still text, or that MathJax could not read.
RAW_FORMULAS = """[...document.querySelectorAll('.bd-article .math')]
  .filter(e => !e.querySelector('mjx-container') || e.querySelector('mjx-merror, [data-mjx-error]'))
  .map(e => e.textContent)"""
BROKEN_IMAGES = """[...document.images].filter(i => !i.complete || i.naturalWidth === 0)
  .map(i => i.src)"""
# What sticks out of the window to the right and lies in no box that can be scrolled there.
STICKS_OUT = """(() => {
  const out = e => e.getBoundingClientRect().right > innerWidth + 1;
  const scrolls = e => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX) && !out(e);
  return [...document.querySelectorAll('.bd-article *')]
    .filter(e => out(e) && !e.closest('mjx-assistive-mml'))
    .filter(e => {
      for (let up = e; !up.matches('.bd-article'); up = up.parentElement)
        if (scrolls(up)) return false;
      return true;
    }).map(e => e.outerHTML.slice(0, 80));
})()"""
HEAD = "document.querySelector('h1')?.innerText.startsWith({!r})"
# The numbers of ours that lead to their runs; and the table of runs they lead to.
LINKS = 'table.beside td a[href*="run.html#"]'
CELLS = f"[...document.querySelectorAll({LINKS!r})].map(a => [a.innerText, a.href])"
LISTED = """location.pathname.endsWith('/run.html') &&
  [...document.querySelectorAll("#run tbody tr")].map(row =>
    [...row.cells].map(cell => cell.innerText))"""
# Of each visible table with printed numbers, answers or ranks that is not scrolled: which of these
# and of its rows' names are not in sight. A name stays in sight while its table is scrolled.
UNSEEN = """[...document.querySelectorAll('.bd-article table:has(> thead):has(> tbody > tr)')]
  .filter(table => table.checkVisibility()).flatMap(table => {
    const [row] = table.tBodies[0].rows;
    return [...table.tHead.rows].flatMap(heads => {
      const texts = [...heads.cells].map(cell => cell.innerText.trim());
      const words = ['printed', 'ours', 'verdict', 'answer', 'rank', 'mean'];
      const asked = [...words, ...table.matches('.beside') ? ['paper'] : []]
        .map(word => texts.indexOf(word)).filter(place => place >= 0);
      if (!asked.length || texts.length !== row.cells.length) return [];
      const fixed = getComputedStyle(row.cells[0]).position === 'sticky'
        || row.getBoundingClientRect().right <= innerWidth;
      return [0, ...asked].filter(place => {
        const box = row.cells[place].getBoundingClientRect();
        return !fixed || box.left < 0 || box.right > innerWidth;
      }).map(place => `${texts[place]} of ${table.innerText.slice(0, 60)}`);
    });
  })"""
# Rows of the table of results whose caption has a text, as a reader sees them; a head of it.
TABLE = "[...document.querySelectorAll('table.beside')].find(t => t.innerText.includes({!r}))"
ROWS = """[...%s.tBodies[0].rows].filter(row => row.checkVisibility())
  .map(row => [...row.cells].map(cell => cell.innerText.trim()))"""
FIGURES = "[...document.querySelectorAll('figure.interactive')]"
# Of a figure: the share of its lines that are drawn at full strength.
STRONG = """(lines => lines.filter(e => +(e.getAttribute('opacity') ?? 1) === 1).length /
  lines.length)([...shown.querySelectorAll('.mark-line path')])"""


@pytest.fixture(scope="module")
def browser():
    with Chrome() as chrome:
        yield chrome


def pages(site: Path) -> list[Path]:
    found = [p for p in sorted(site.rglob("*.html")) if "_static" not in p.parts]
    return [p for p in found if p.name not in {"genindex.html", "search.html", "index.html"}]


def test_pages_are_whole(browser, site, served):
    """Formulas drawn, nothing missing, nothing remote, at most 3 MB, no sideways scrolling."""
    wrong = []
    for page in pages(site):
        name = page.relative_to(site).as_posix()
        visit = browser.open(f"{served}/{name}", PHONE)
        remote = [url for url in visit.requests if not url.startswith((served, "data:"))]
        wrong += [f"{name}: remote {url}" for url in remote]
        served_here = [url for url in visit.requests if url.startswith(served)]
        loaded = {unquote(urlsplit(url).path)[1:] for url in served_here}
        size = sum((site / file).stat().st_size for file in loaded if (site / file).is_file())
        wrong += [f"{name}: {size / 1e6:.1f} MB"] if size > 3e6 else []
        wrong += [f"{name}: missing {what}" for what in visit.failed]
        wrong += [f"{name}: console {what}" for what in visit.errors]
        wrong += [f"{name}: formula not drawn {text}" for text in browser.run(RAW_FORMULAS)]
        wrong += [f"{name}: picture not shown {url}" for url in browser.run(BROKEN_IMAGES)]
        for width in (PHONE, DESK):
            browser.resize(width)
            wrong += [f"{name}: sticks out {what}" for what in browser.run(STICKS_OUT)]
            wide = browser.run("document.documentElement.scrollWidth")
            if wide > width:
                wrong.append(f"{name}: {wide} px wide in a window of {width}")
    assert not wrong, "\n".join(wrong)


def test_files_opened_without_a_web_server_lead_on_are_whole_and_can_be_searched(browser, site):
    browser.page.goto((site / "index.html").as_uri(), wait_until="commit")  # it leads on at once
    browser.wait(
        "location.pathname.endsWith('/book/intro.html') && document.readyState==='complete'"
    )
    for name in ("book/adcol/method.html", "book/verdicts.html"):
        visit = browser.open((site / name).as_uri(), DESK)
        assert not [url for url in visit.requests if url.startswith("http")]
        assert browser.run("document.querySelectorAll('mjx-container').length") > 3
        assert not browser.run(RAW_FORMULAS) and not browser.run(BROKEN_IMAGES)
    browser.open((site / "search.html").as_uri() + "?q=discriminator")
    # Results come in one by one; wait() fails where the page never does.
    links = "[...document.querySelectorAll('#search-results li a')].map(a => a.href)"
    browser.wait(f"{links}.some(link => link.includes('adcol/method.html'))")


def test_phone_menu_opens_and_leads_on(browser, site):
    browser.open((site / "book" / "intro.html").as_uri(), PHONE)
    link = "document.querySelector('.bd-sidebar-primary a[href$=\"adcol/method.html\"]')"
    box = f"{link}.getBoundingClientRect()"
    seen = f"(r => r.left >= 0 && r.right <= innerWidth && r.width > 0)({box})"
    assert not browser.run(seen)
    browser.run("document.querySelector('.primary-toggle').click()")
    browser.wait(seen)
    browser.run(f"setTimeout(() => {link}.click(), 20)")  # its answer comes before the page goes
    browser.wait(HEAD.format("ADCOL: the method"))
    code = browser.run("document.querySelector('div.highlight-python').innerText")
    assert "class ADCOL(fl.Method)" in code


def test_a_phone_shows_a_rows_name_both_numbers_and_the_verdict(browser, site):
    for page in pages(site):
        if page.parent.name == "results" or page.name == "intro.html":
            browser.open(page.as_uri(), PHONE)
            unseen = browser.run(UNSEEN)
            assert not unseen, (page.name, unseen)


def press(browser: Chrome, what: str) -> None:
    """Enter, on an element that can have the focus."""
    assert browser.run(f"({what}).focus() ?? document.activeElement === ({what})")
    browser.page.keyboard.press("Enter")


def test_tables_unfold_sort_and_filter_by_keyboard(browser, site):
    browser.open((site / "book" / "results" / "fedpall_results.html").as_uri(), DESK)
    table = TABLE.format("table-1-office10: ")
    domains = f"{table}.closest('.output').querySelector('details')"
    shown = f"{domains}.querySelector('table').checkVisibility()"
    assert browser.run(f"{table}.checkVisibility()") and not browser.run(shown)
    press(browser, f"{domains}.querySelector('summary')")
    browser.wait(shown)

    head = f"{table}.querySelectorAll('thead tr:last-child button')[4]"
    printed = browser.run(ROWS % table)
    ranks = [row[4] for row in printed[:-1]]
    numbers = sorted((rank for rank in ranks if rank != "–"), key=float)
    assert printed[-1][0] == "Kendall’s tau" and numbers != sorted(numbers)  # as text
    none = ["–"] * ranks.count("–")
    for state, order in (
        ("ascending", numbers + none),
        ("descending", numbers[::-1] + none),
        ("none", ranks),
    ):
        press(browser, head)
        assert browser.run(f"{head}.closest('th').ariaSort") == state
        rows = browser.run(ROWS % table)
        assert [row[4] for row in rows[:-1]] == order and rows[-1] == printed[-1]
    assert rows == printed

    browser.run("document.querySelector('label.table-filter input').focus()")
    browser.page.keyboard.insert_text("rucr, FEDBN")
    for caption in ("table-1-office10: ", "table-1-pacs: "):
        names = [row[0] for row in browser.run(ROWS % TABLE.format(caption))]
        assert names == ["FedBN", "RUCR", "Kendall’s tau"]


def test_numbers_lead_to_their_runs(browser, site):
    """From ten cells of every page of results, and one of a single seed where there is one, to its
    runs, without a web server. The first by a click, the others by their address."""
    packed, walked = Pack(FOLDER), 0
    for page in sorted(site.glob("book/results/*_results.html")):
        visit = browser.open(page.as_uri(), PHONE)
        cells = list(dict.fromkeys(href for _, href in browser.run(CELLS)))
        single = [href for href in cells if "-" not in href.partition("#run-")[2]]
        for href in [*cells[:: max(1, len(cells) // 10)][:10], *single[:1]]:
            there = f'{LINKS}[href$="{href.rpartition("/")[2]}"]'
            go = f"(a => a ? a.click() : location.hash = {href.partition('#')[2]!r})"
            browser.run(f"setTimeout(() => {go}(document.querySelector({there!r})), 20)")
            _walk(browser, packed, href.partition("#run-")[2].split("-"))
            walked += 1
        assert not [e for e in visit.errors if "font" not in e] and not browser.run(STICKS_OUT)
    assert walked >= 50


def _walk(browser: Chrome, packed: Pack, runs: list[str]) -> None:
    """On the page of some runs: id, seed and accuracy are the packed records'; and on to the last
    of them, where a single one is at once."""
    if len(runs) > 1:
        mine = f"rows.map(row => row[0].slice(0, {len(runs[0])})).join('-') === '{'-'.join(runs)}'"
        for run, seed, method, last, *_ in browser.wait(
            f"(rows => rows && {mine} && rows)({LISTED})"
        ):
            own = packed.facts(run)["config"]
            assert (seed, method) == (str(own["seed"]), own["method"]["name"])
            mean = metrics.scores(packed.rows(run), "last")["avg"]
            assert float(last) == pytest.approx(mean, abs=0.00501)
        browser.run("document.querySelector('#run tbody tr:last-child a').click()")
    (run,) = [name for name in packed.runs if name.startswith(runs[-1])]
    browser.wait(f"document.querySelector('h1')?.innerText.startsWith('Run {run}')")
    text = browser.run("document.getElementById('run').innerText")
    known = packed.facts(run)
    said = known["environment"]["commit"], f"seed {known['config']['seed']}", "fedrepro run"
    assert all(one in text for one in (*known["data"]["hashes"].values(), *said))


def test_one_seed_leads_to_its_run_and_a_wrong_address_says_so(browser, site):
    browser.open((site / "run.html").as_uri(), DESK)
    browser.run("location.hash = 'run-0000000000'")
    browser.wait(HEAD.format("Not recorded"))
    run = next(iter(Pack(FOLDER).runs))
    browser.run(f"location.hash = 'run-{run}'")
    browser.wait(HEAD.format(f"Run {run}"))
    assert browser.run("document.querySelector('#run svg title').textContent").startswith("Mean")
    assert browser.run("document.querySelectorAll('#run a[download]').length") == 2


def drawn(browser: Chrome, place: int) -> None:
    """Bring a figure into view, wait until Vega has drawn it, and call it `shown`."""
    browser.run(f"window.shown = {FIGURES}[{place}]; shown.scrollIntoView()")
    browser.wait("shown.matches('.drawn') && shown.querySelector('svg .mark-group') != null")


def test_interactive_figures_draw_on_every_page_of_results(browser, site):
    """From files, on a phone, each with its words and its data. A page with its pictures and Vega
    is below 3 MB; what the theme loads on every page is not counted."""
    seen = {}
    for page in sorted(site.glob("book/results/*_results.html")):
        visit = browser.open(page.as_uri(), PHONE)
        seen[page.name] = browser.run(f"{FIGURES}.length")
        for place in range(seen[page.name]):
            drawn(browser, place)
            words = browser.run("shown.querySelector('img').alt")
            assert browser.run("shown.querySelector('.live').ariaLabel") == words
            assert browser.run("shown.querySelector('img').offsetWidth") == 0
            assert re.search(r"(with|:) \d+", words), words
            rows = browser.run("fetch(shown.querySelector('a').href).then(r => r.text())")
            given = browser.run("JSON.parse(shown.querySelector('script').textContent)")
            assert rows == given["data"]["values"] and len(rows.splitlines()) > 2
        wrong = [what for what in visit.failed + visit.errors if "font" not in what]
        assert not wrong and not browser.run(STICKS_OUT)
        files = {url.partition("#")[0] for url in visit.requests if not url.startswith("data:")}
        assert all(url.startswith("file:") for url in files)
        paths = [Path(unquote(urlsplit(url).path)) for url in files]
        own = [p for p in paths if p.name == "vega.js" or p.parent.name in ("results", "_images")]
        assert len(own) > 2 and sum(path.stat().st_size for path in own) < 3e6, page.name
    assert len(seen) == 5 and all(seen.values())


def pointed_at(browser: Chrome) -> dict[str, str]:
    """What a figure tells of the point under the pointer."""
    tip = "[...document.querySelectorAll('#vg-tooltip-element.visible tr')]"
    for step in range(60):  # the page may still move under a pointer that rests
        box = browser.run("(r => [r.x + r.width / 2, r.y + 150])(shown.getBoundingClientRect())")
        browser.page.mouse.move(box[0] + step % 2, box[1])
        if told := browser.run(f"{tip}.map(r => [...r.cells].map(c => c.innerText))"):
            return dict(told)
        time.sleep(0.5)
    return {}


def test_a_curve_answers_pointer_and_keyboard_and_follows_the_theme(browser, site):
    browser.open((site / "book" / "results" / "fedapc_results.html").as_uri(), DESK)
    drawn(browser, 0)
    told = pointed_at(browser)
    found = recorded("fedapc").of_one_scale("digits4-standin", "table-1-digits")
    curves = found.curves("table-1-digits").set_index(["label", "round"]).avg
    values = curves.loc[told["label"], int(told["round"])]
    for name, value in (("mean", "mean"), ("lowest seed", "min"), ("highest seed", "max")):
        near = pytest.approx(values.agg(value), abs=6e-3)
        assert float(told[name]) == near and len(told[name]) < 6
    assert int(told["seeds"]) == len(values) == 3

    assert browser.run(STRONG) == 1
    browser.run("shown.querySelector('select').focus()")
    for key, strong in (("ArrowDown", "1 / 4"), ("ArrowUp", "1")):
        browser.page.keyboard.press(key)
        browser.wait(f"{STRONG} === {strong}")

    ink = "shown.querySelector('.role-axis-label text').getAttribute('fill')"
    before = browser.run(f"document.documentElement.dataset.theme = 'light', {ink}")
    browser.run("document.documentElement.dataset.theme = 'dark'")
    browser.wait(f"{ink} !== {before!r}")
    browser.page.emulate_media(media="print")
    assert browser.run("shown.querySelector('img').offsetWidth") > 200
    assert browser.run("shown.querySelector('.live').offsetWidth") == 0
    browser.page.emulate_media(media="screen")


def test_without_javascript_the_pictures_are_there(browser, site):
    browser.session.send("Emulation.setScriptExecutionDisabled", {"value": True})
    browser.open((site / "book" / "results" / "fedapc_results.html").as_uri(), PHONE)
    wide = browser.run(f"{FIGURES}.map(f => f.querySelector('img').offsetWidth)")
    shut = browser.run(f"{FIGURES}.map(f => f.querySelector('figcaption a').offsetWidth)")
    browser.session.send("Emulation.setScriptExecutionDisabled", {"value": False})
    assert len(wide) > 3 and min(wide) > 200 and set(shut) == {0}
