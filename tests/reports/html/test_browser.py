"""The pages in a real browser, from the disk: `tox -e browser`. Nothing is asked of the network, and no script fails.

Chromium is the one of the system: `apt-get install chromium` on Debian. $STRIDE_CHROMIUM names another.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stridebench.harness.record.store import Store
from stridebench.reports.html import page
from stridebench.reports.html.server import serve
from tests.support import page_runs
from tests.support.fake_store import empty, meta, record, step

pytestmark = pytest.mark.browser
playwright = pytest.importorskip("playwright.sync_api", reason="the extra browser is not installed: playwright")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="not installed: axe-playwright-python")
CHROMIUM = os.environ.get("STRIDE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no Chromium: apt-get install chromium, or $STRIDE_CHROMIUM", allow_module_level=True)


@dataclass
class Visit:
    """A page in the browser, and all that it asked for and complained of."""

    tab: Any
    root: Path
    problems: list[str] = field(default_factory=list)

    def open(self, name: str) -> Any:
        """Open a page of the folder and wait for its scripts."""
        self.tab.goto((self.root / name.partition("#")[0]).as_uri() + "".join(name.partition("#")[1:]))
        self.tab.wait_for_load_state("load")
        return self.tab

    def asked(self, request: Any) -> None:
        """Take note of a request for anything but the page's own files."""
        if not request.url.startswith((self.root.as_uri() + "/", "data:")):
            self.problems.append(f"asked for {request.url}")

    def said(self, message: Any) -> None:
        """Take note of a message of the console."""
        if message.type in ("error", "warning"):
            self.problems.append(message.text)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    page.write([page_runs.ordinary(folder / "run")], folder / "out")
    page.write_file(Store.open(folder / "run"), folder / "one.html")
    page.write([page_runs.with_outputs(folder / "outputs")], folder / "media")
    page.write([page_runs.hostile(folder / "hostile")], folder / "attack")
    page.write([page_runs.with_engines(folder / "requests")], folder / "served")
    return folder


@pytest.fixture(params=["light"])
def visit(browser: Any, pages: Path, request: pytest.FixtureRequest) -> Iterator[Visit]:
    context = browser.new_context(color_scheme=request.param, viewport={"width": 1400, "height": 900})
    visit = Visit(context.new_page(), pages)
    visit.tab.on("request", visit.asked)
    visit.tab.on("console", visit.said)
    visit.tab.on("pageerror", lambda error: visit.problems.append(str(error)))
    yield visit
    context.close()
    assert visit.problems == []


def labels(tab: Any) -> list[str]:
    """The visible cells of the table, in their order."""
    return [str(text).strip() for text in tab.locator("#headline tbody tr th a").all_inner_texts()]


def test_a_click_or_enter_on_a_heading_sorts_by_its_number(visit: Visit) -> None:
    tab = visit.open("out/index.html")
    heading = tab.locator("#headline thead th", has_text="speed-up")
    heading.click()
    fastest = sorted_by(tab, ">=")[0]
    heading.locator("[role=button]").press("Enter")
    values = sorted_by(tab, "<=")
    assert len(values) == 12 and values[0] < values[-1] == fastest


def sorted_by(tab: Any, relation: str) -> list[float]:
    """The speed-ups, once each and the next one are in the relation."""
    values = "[...document.querySelectorAll('#headline tbody td:nth-child(4)')].map((one) => Number(one.dataset.order))"
    until(tab, f"{values}.every((one, index, all) => !index || all[index - 1] {relation} one)")
    return list(tab.evaluate(values))


def until(tab: Any, condition: str) -> None:
    """Wait for a condition. The page's policy forbids the eval by which ``wait_for_function`` asks a second time."""
    for _ in range(200):
        if tab.evaluate(condition):
            return
        tab.wait_for_timeout(100)
    raise AssertionError(f"not after 20 s: {condition}")


def test_filters_and_search_leave_the_rows_that_fit(visit: Visit) -> None:
    tab = visit.open("out/index.html")
    tab.select_option("select[name=verdict]", "broken")
    assert labels(tab) == ["third_party", "third_party"]
    tab.select_option("select[name=temperature]", "1")
    assert labels(tab) == ["third_party"]
    tab.click("text=Show all")
    until(tab, "document.querySelectorAll('#headline tbody tr').length === 12")
    tab.fill("input[type=search]", "prompt_lookup")
    assert labels(tab) == ["prompt_lookup", "prompt_lookup"]
    until(tab, "location.search === '?search=prompt_lookup'")


def test_columns_are_chosen_and_a_table_that_scrolls_has_a_shadow(visit: Visit) -> None:
    tab = visit.open("out/index.html")
    columns = tab.locator("#headline thead th").count()
    tab.click("text=Columns")
    tab.uncheck("label:has-text('tau') >> input")
    assert tab.locator("#headline thead th").count() == columns - 1
    assert "tau" not in tab.locator("#headline thead").inner_text()
    tab.check("label:has-text('tau') >> input")
    assert tab.locator("#headline thead th").count() == columns
    assert "linear-gradient" in tab.evaluate(
        "getComputedStyle(document.querySelector('#cells .dt-layout-full')).backgroundImage"
    )


def test_an_address_may_name_filters(visit: Visit) -> None:
    visit.tab.goto((visit.root / "out/index.html").as_uri() + "?verdict=approximate&temperature=0")
    assert labels(visit.tab) == ["sjdpp reuse=paper tau=0.25", "sjdpp reuse=paper tau=1"]
    visit.tab.goto((visit.root / "out/index.html").as_uri() + "?verdict=approximate&temperature=0&search=0.25")
    until(visit.tab, "document.querySelectorAll('#headline tbody tr').length === 1")
    assert labels(visit.tab) == ["sjdpp reuse=paper tau=0.25"]


def test_a_point_says_what_it_is_when_hovered(visit: Visit) -> None:
    tab = visit.open("out/index.html")
    plot = tab.locator(".plot").first
    plot.scroll_into_view_if_needed()
    point = plot.locator(".scatterlayer .points path").nth(1)
    point.wait_for()
    box = point.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    hover = plot.locator(".hoverlayer")
    hover.locator("text").first.wait_for()
    assert "speed-up 1.51 (n=5)" in hover.text_content()  # five prompts are too few for an interval


def test_a_cell_opens_and_its_figures_are_drawn(visit: Visit) -> None:
    tab = visit.open("out/index.html")
    tab.click("#headline >> text=speculative gamma=5 >> nth=0")
    tab.wait_for_url("**/cells/t0-spec.html")
    for plot in tab.locator(".plot").all():
        plot.scroll_into_view_if_needed()
        plot.locator(".main-svg").first.wait_for()
    assert tab.locator(".plot .bars path").count() > 10


def test_a_sample_is_walked_step_by_step_with_the_keyboard(visit: Visit) -> None:
    tab = visit.open("out/cells/t0-spec.html")
    tab.locator("#sample-table tbody a").first.focus()
    tab.keyboard.press("Enter")
    tab.locator("#ribbon .token").first.wait_for()
    assert tab.locator("#sample-title").text_content() == "p000" and "return 1 < 2" in tab.text_content("#asked")
    assert tab.locator("#ribbon .token").count() == 64
    assert tab.text_content("#step").startswith("Step 1 of ")
    tab.focus("#ribbon")
    tab.keyboard.press("ArrowRight")
    assert tab.text_content("#step").startswith("Step 2 of ")
    tab.keyboard.press("End")
    last = tab.text_content("#step")
    count = int(last.split(" of ")[1].split(":")[0])
    assert last.startswith(f"Step {count} of {count}") and tab.is_disabled("#forth")
    assert tab.locator("#ribbon .now").last.get_attribute("data-step") == str(count - 1)
    tab.click("text=Next sample")
    until(tab, "document.getElementById('sample-title').textContent === 'p001'")


def test_shards_are_loaded_when_they_are_needed(visit: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stridebench.reports.html.samples.INLINE", 0)
    monkeypatch.setattr("stridebench.reports.html.samples.SHARD_SAMPLES", 100)
    records = [record(f"p{i:03d}", [step(1, 2)] * 3, prompt_text=f"asked {i}") for i in range(250)]
    fake = empty().add(meta("ar", role="baseline"), records)
    visit.root = tmp_path
    page.write([page_runs.stored(fake, tmp_path / "run")], tmp_path / "out")
    tab = visit.open("out/cells/ar.html#sample-220")
    until(tab, "document.getElementById('asked').textContent === 'asked 220'")
    loaded = tab.evaluate("[...document.scripts].map((one) => one.src.split('/').pop())")
    assert "2.js" in loaded and "0.js" not in loaded and "rows.js" in loaded
    tab.fill("#samples input[type=search]", "p249")
    assert tab.locator("#sample-table tbody tr").count() == 1


def test_a_picture_has_its_map_and_a_mesh_turns(visit: Visit) -> None:
    tab = visit.open("media/cells/pictures.html#sample-0")
    canvas = tab.locator(".picture canvas")
    canvas.wait_for()
    assert canvas.evaluate("(one) => [one.width, one.height]") == [3, 2]
    tab = visit.open("media/cells/meshes.html#sample-0")
    mesh = tab.locator("canvas.mesh")
    mesh.focus()
    before = mesh.evaluate("(one) => one.toDataURL()")
    tab.keyboard.press("ArrowLeft")
    assert mesh.evaluate("(one) => one.toDataURL()") != before


def test_a_sound_plays_beside_its_words_and_its_transcript(visit: Visit) -> None:
    tab = visit.open("media/cells/heard.html#sample-0")
    sound = tab.locator("audio")
    sound.wait_for()
    until(tab, "document.querySelector('audio').duration === 1")
    assert "Spoken: good evening" in tab.text_content("#media") and tab.text_content("#ribbon") == "good evening"


def test_nothing_of_an_attack_runs(visit: Visit) -> None:
    visit.tab.on("dialog", lambda dialog: visit.problems.append(f"dialog {dialog.message}"))
    tab = visit.open("attack/index.html")
    for plot in tab.locator(".plot").all():
        plot.scroll_into_view_if_needed()
    tab = visit.open("attack/cells/m.html#sample-1")
    tab.locator("#ribbon .token").first.wait_for()
    for plot in tab.locator(".plot").all():
        plot.scroll_into_view_if_needed()
    assert tab.locator("stride-attack").count() == 0
    assert "<stride-attack" in tab.text_content("#ribbon") and "<stride-attack" in tab.text_content("#sample-table")


def test_an_engine_opens_its_page_and_a_request_its_output(visit: Visit) -> None:
    tab = visit.open("served/index.html")
    tab.click("#engines >> text=drafts")
    tab.wait_for_url("**/cells/drafts.html")
    tab.locator("#sample-table tbody a").nth(1).press("Enter")
    until(tab, "document.getElementById('ribbon').textContent === 'answer 1'")
    assert "seed 1" in tab.text_content("#sample-facts") and not tab.is_visible("#stepper")
    tab.click("text=Next sample")
    until(tab, "document.getElementById('plain').textContent.includes('no answer within 1 s')")


@pytest.mark.parametrize("visit", ["light", "dark"], indirect=True)
@pytest.mark.parametrize(
    "name",
    [
        "out/index.html",
        "out/cells/t0-spec.html#sample-0",
        "out/cells/t0-bad.html",
        "media/cells/meshes.html#sample-0",
        "served/cells/drafts.html#sample-0",
        "one.html",
    ],
)
def test_axe_finds_nothing_serious(visit: Visit, name: str) -> None:
    tab = visit.open(name)
    tab.wait_for_timeout(300)
    found = axe.Axe().run(tab, options={"preload": False}).response["violations"]
    serious = [rule for rule in found if rule["impact"] in ("serious", "critical")]
    nodes = [f"{rule['id']}: {node['html']:.160}" for rule in serious for node in rule["nodes"]]
    assert nodes == []


def test_the_theme_is_the_systems_until_the_button_says_otherwise(visit: Visit) -> None:
    tab = visit.open("out/index.html")
    assert tab.evaluate("document.documentElement.className") == ""
    tab.click("#theme")
    assert tab.evaluate("document.documentElement.className") == "dark"


def test_cells_are_picked_with_the_mouse_and_a_run_that_goes_on_is_followed(browser: Any, tmp_path: Path) -> None:
    records = [record(f"p{i}", [step(1, 2)] * 3) for i in range(2)]
    fake = empty().add(meta("ar", role="baseline"), records).add(meta("m"), records)
    store = page_runs.stored(fake, tmp_path / "first", unsealed=("m",))
    page_runs.stored(fake, tmp_path / "second")
    context = browser.new_context()
    tab, problems = context.new_page(), []
    tab.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    with serve(tmp_path, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        root = f"http://127.0.0.1:{server.server_port}"
        tab.goto(f"{root}/open?run=first&run=second")
        tab.check("input[value='first/ar']")
        tab.fill("#cells input[type=search]", "toy")
        store.seal("m", fake.sealed_cells["m"].meta)
        tab.wait_for_selector("input[value='first/m']", timeout=20_000)
        tab.wait_for_selector("input[value='first/ar']:checked", timeout=20_000)  # put back once the table is made
        assert tab.input_value("#cells input[type=search]") == "toy"
        tab.check("input[value='second/m']")
        tab.click("text=Compare the ticked cells")
        tab.wait_for_url("**/compared/**")
        assert "Beside ar" in tab.text_content("#beside") and labels(tab) == ["ar", "m"]
        assert tab.locator(".outputs tbody tr").count() == 2
        tab.goto(f"{root}/?search=second")
        assert tab.locator("#runs tbody tr").count() == 1
        tab.fill("input[type=search]", "toy")
        until(tab, "location.search === '?search=toy'")
        server.shutdown()
    context.close()
    assert problems == []


@pytest.mark.parametrize("form", ["Markdown", "LaTeX"])
def test_the_rows_that_are_shown_are_copied(visit: Visit, form: str) -> None:
    tab = visit.open("out/index.html")
    tab.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    tab.locator("#facets select[name=verdict]").select_option("broken")
    shown = labels(tab)
    tab.get_by_role("button", name=f"Copy as {form}").first.click()
    until(tab, "window.copied !== undefined")
    lines = str(tab.evaluate("window.copied")).splitlines()
    rows = [line for line in lines if any(label.replace("_", "\\_") in line or label in line for label in shown)]
    assert len(rows) == len(shown) > 0
    columns = tab.locator("#headline thead th").count()
    assert {line.count(" | " if form == "Markdown" else " & ") for line in rows} == {columns - 1}
    assert f"{len(shown)} rows copied" in tab.locator("[data-table=headline] [role=status]").inner_text()


@pytest.mark.parametrize("visit", ["dark"], indirect=True)
def test_every_figure_is_there_on_paper_and_the_table_is_whole(visit: Visit) -> None:
    tab = visit.open("out/index.html")
    until(tab, "[...document.querySelectorAll('.plot')].every((one) => one.dataset.drawn)")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    tab.emulate_media(media="print")
    widths = tab.evaluate("[...document.querySelectorAll('.plot svg.main-svg')].map((one) => one.clientWidth)")
    assert widths and all(0 < width <= 640 for width in widths)
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.evaluate(
        "[...document.querySelectorAll('.scroll')].every((one) => getComputedStyle(one).overflowX === 'visible')"
    )
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.evaluate("document.documentElement.classList.contains('dark')")
    assert tab.pdf(prefer_css_page_size=True).startswith(b"%PDF")
