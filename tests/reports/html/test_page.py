"""The pages of a run: what they hold without a script, and that no text of a model or file leaves its place."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stridebench.harness.errors import StoreError
from stridebench.harness.record.columns import Record
from stridebench.harness.record.store import Store
from stridebench.reports.html import page
from stridebench.reports.html.cell_facts import link_of
from stridebench.reports.html.text import classic_script
from tests.support import page_runs
from tests.support.cli import refused, stride
from tests.support.fake_store import empty, meta, record, step
from tests.support.parsed_page import parsed, samples_in


@pytest.fixture(autouse=True)
def without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts of other packages are 5 MB a page; the tests in a browser have them."""
    monkeypatch.setattr("stridebench.reports.html.text.write", lambda folder: None)


OWN = ("../", "assets/", "#", "data:,", "index.html")
"""How addresses of the page's own files begin."""


def five() -> list[Record]:
    return [record(f"p{i}", [step()] * 3) for i in range(5)]


@pytest.fixture()
def run(tmp_path: Path) -> Path:
    """A run of one cell with five outputs."""
    return page_runs.stored(empty().add(meta("ar", role="baseline"), five()), tmp_path / "run").path


def cell_pages(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in (folder / "cells").iterdir()}


@pytest.fixture(scope="module")
def ordinary_pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ordinary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stridebench.reports.html.text.write", lambda folder: None)
        page.write([page_runs.ordinary(folder / "run")], folder / "out")
    return folder / "out"


def test_the_table_and_what_is_missing_are_there_without_a_script(ordinary_pages: Path) -> None:
    index = parsed(ordinary_pages / "index.html")
    rows = [attributes for tag, attributes in index.elements if tag == "tr" and "data-verdict" in attributes]
    assert len(rows) == 12
    assert {row["data-verdict"] for row in rows} == {"exact", "approximate", "broken"}
    assert {row["data-temperature"] for row in rows} == {"0", "1"}
    links = {attributes["href"] for tag, attributes in index.elements if tag == "a"}
    assert {f"cells/{name}.html" for name in cell_pages(ordinary_pages)} <= links
    assert re.search(
        r"speculative gamma=5\s+toy-135m bf16, T = 0, toy\s+exact\s+\d\.\d\d \[\d\.\d\d, \d\.\d\d\]", index.text
    )
    assert "needs TREE_MASK, which toy-135m does not offer" in index.text and "CUDA out of memory <b>" in index.text


def test_a_page_can_be_one_file_without_scripts_that_holds_every_cell(ordinary_pages: Path, tmp_path: Path) -> None:
    run = ordinary_pages.parent / "run"
    file = tmp_path / "new" / "mine.html"
    assert stride("report", run, "--html", file).out == f"wrote {file}\n"
    out = parsed(file)
    addresses = [a.get("href") or a.get("src") or "" for _, a in out.elements if "href" in a or "src" in a]
    assert all(one.startswith(("#", "data:", "https://arxiv.org/")) for one in addresses)
    assert not out.scripts
    sections = {a.get("id") for tag, a in out.elements if tag == "section"}
    assert set(cell_pages(ordinary_pages)) <= sections and file.stat().st_size < 2_000_000
    assert {one[1:] for one in addresses if one.startswith("#")} <= {a.get("id") for _, a in out.elements}
    assert any(one.startswith("data:image/svg+xml;base64,") for one in addresses)
    assert "CUDA out of memory <b>" in out.text and "needs TREE_MASK" in out.text
    assert "holds one run, and 2 are named" in refused("report", run, run, "--html", file)
    (tmp_path / "folder.html").mkdir()
    assert "is a folder" in refused("report", run, "--html", tmp_path / "folder.html")


def test_one_file_holds_pictures_and_no_text_of_an_attack_leaves_its_place(tmp_path: Path) -> None:
    pictures = parsed(page.write_file(page_runs.with_outputs(tmp_path / "run"), tmp_path / "one.html"))
    sources = [str(a["src"]) for tag, a in pictures.elements if tag == "img"]
    assert sum(one.startswith("data:image/png;base64,") for one in sources) == 1 == len(sources)
    attacked = parsed(page.write_file(page_runs.hostile(tmp_path / "hostile"), tmp_path / "two.html"))
    assert "stride-attack" in attacked.text and not [
        tag for tag, _ in attacked.elements if tag in ("script", "stride-attack")
    ]
    assert not [name for _, a in attacked.elements for name in a if name.startswith("on")]


def test_the_tiles_of_a_cell_stand_in_groups(ordinary_pages: Path) -> None:
    out = parsed(cell_pages(ordinary_pages)["t1-spec"])
    groups = [a["aria-label"] for tag, a in out.elements if tag == "ul" and a.get("class") == "tiles"]
    assert groups == ["Speed", "Drafts", "Against plain decoding", "Scores"][: len(groups)] and len(groups) >= 3
    assert out.text.index("speed-up") < out.text.index("tau") < out.text.index("log-prob")


def test_a_cell_says_its_claim_source_verdict_and_metrics(ordinary_pages: Path) -> None:
    text = parsed(cell_pages(ordinary_pages)["t0-spec"]).text
    for words in ("same output distribution as the target", "folklore", "gamma", "accepted / tested", "Acceptance by"):
        assert words in text


def test_the_figures_and_documents_are_json_with_the_stored_numbers(ordinary_pages: Path) -> None:
    store = Store.open(ordinary_pages.parent / "run")
    document = samples_in(cell_pages(ordinary_pages)["t0-spec"])["documents"][0]
    steps = store.cell("t0-spec").steps.query("prompt == 'p000'")
    assert document["steps"]["emitted"] == steps["emitted"].tolist()
    assert len(document["kinds"]) == len(document["pieces"]) == 64
    first = steps.iloc[0]
    corrected_or_bonus = "c" if first["accepted"] < 5 else "b"
    assert document["kinds"][: first["accepted"] + 1] == "a" * first["accepted"] + corrected_or_bonus


@pytest.mark.parametrize(
    "hostile",
    [page_runs.hostile, lambda folder: page_runs.with_engines(folder, page_runs.PAYLOAD)],
    ids=["methods", "engines"],
)
def test_no_text_of_a_model_or_file_becomes_an_element_or_attribute(
    hostile: Callable[[Path], Store], tmp_path: Path
) -> None:
    """Every text of the run ends all kinds of elements; all that the browser may read of it is text."""
    page.write([hostile(tmp_path / "run")], tmp_path / "out")
    files = [tmp_path / "out" / "index.html", *cell_pages(tmp_path / "out").values()]
    assert len(files) == 3
    for file in files:
        source = file.read_text(encoding="utf-8")
        assert not {"\x1b", "\x00", "\u202e"} & set(source)
        out = parsed(file)
        assert "stride-attack" in out.text and "49%" not in source
        for tag, attributes in out.elements:
            assert tag != "stride-attack" and not [name for name in attributes if name.startswith("on")]
            assert str(attributes.get("href", "#")).startswith(("https://arxiv.org/abs/2", "cells/", *OWN))
        for (_, attributes), body in zip((e for e in out.elements if e[0] == "script"), out.scripts, strict=True):
            assert ("src" in attributes) != (attributes.get("type") == "application/json")
            assert not body or json.loads(body)


def test_no_text_of_a_model_or_file_leaves_its_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stridebench.reports.html.samples.INLINE", 0)
    monkeypatch.setattr("stridebench.reports.html.samples.STATIC", 1)
    page.write([page_runs.hostile(tmp_path / "run")], tmp_path / "out")
    data = tmp_path / "out" / "data" / "m"
    text = (data / "0.js").read_text(encoding="utf-8")
    assert not {"<", "\x1b", "\u2028"} & set(text)
    assert "שלום" in page_runs.shard(text)[0]["pieces"][1]
    rows = (data / "rows.js").read_text(encoding="utf-8")
    assert len(json.loads(rows.removeprefix("strideRows(").rstrip().removesuffix(");"))) == 8


def test_the_policy_allows_neither_eval_nor_scripts_in_the_page(ordinary_pages: Path) -> None:
    for file in (ordinary_pages / "index.html", cell_pages(ordinary_pages)["t0-spec"]):
        policy = next(a["content"] or "" for _, a in parsed(file).elements if a.get("http-equiv"))
        directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
        assert directives["script-src"] == "'self'" and directives["default-src"] == "'none'"


def test_shards_begin_where_the_page_says(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stridebench.reports.html.samples.INLINE", 0)
    monkeypatch.setattr("stridebench.reports.html.samples.SHARD_SAMPLES", 2)
    page.write([Store.open(run)], tmp_path / "out")
    data = samples_in(cell_pages(tmp_path / "out")["ar"])
    assert data["starts"] == [0, 2, 4] and data["documents"] is None
    shards = [page_runs.shard((tmp_path / "out/data/ar" / f"{i}.js").read_text()) for i in range(3)]
    assert [[document["prompt"] for document in shard] for shard in shards] == [["p0", "p1"], ["p2", "p3"], ["p4"]]


def test_a_run_that_is_being_written_says_how_far_it_is(tmp_path: Path) -> None:
    fake = empty().add(meta("ar", role="baseline", expected=5), five()).add(meta("m", expected=9), five())
    page.write([page_runs.stored(fake, tmp_path / "run", unsealed=("m",))], tmp_path / "out")
    assert "not finished: 5 of 9 decodes are stored" in parsed(tmp_path / "out" / "index.html").text
    assert set(cell_pages(tmp_path / "out")) == {"ar"}


def test_a_run_without_a_finished_cell_has_a_page(tmp_path: Path) -> None:
    fake = empty().add(meta("ar", role="baseline", expected=5), [])
    page.write([page_runs.stored(fake, tmp_path / "run", unsealed=("ar",))], tmp_path / "out")
    text = parsed(tmp_path / "out" / "index.html").text
    assert "No cell is finished yet." in text and "not started" in text


def test_failures_are_counted_by_reason(tmp_path: Path) -> None:
    failed = [record(f"p{i}", [], status="failed", error=f"reason {i % 2}") for i in range(20)]
    fake = empty().add(meta("ar", role="baseline", expected=20), failed)
    page.write([page_runs.stored(fake, tmp_path / "run")], tmp_path / "out")
    assert re.search(r"failed\s*10\s*reason 0", parsed(tmp_path / "out" / "index.html").text)


@pytest.mark.slow
def test_ten_thousand_failures_are_a_short_table_and_all_have_a_row(tmp_path: Path) -> None:
    failed = [record(f"p{i}", [], status="failed", error=f"reason {i}") for i in range(10_000)]
    fake = empty().add(meta("ar", role="baseline", expected=10_000), failed)
    text = parsed(page.write([fake], tmp_path / "out")).text  # type: ignore[list-item]  # it has what a page reads
    assert len(re.findall(r"failed\s*1\s*reason \d", text)) == 20
    assert re.search(r"9980\s*9980 further reasons", text)
    rows = (tmp_path / "out/data/ar/rows.js").read_text(encoding="utf-8")
    assert len(json.loads(rows.removeprefix("strideRows(").rstrip().removesuffix(");"))) == 10_000
    assert (tmp_path / "out/cells/ar.html").stat().st_size < 100_000


def test_an_output_whose_file_is_gone_says_so(tmp_path: Path) -> None:
    store = page_runs.with_outputs(tmp_path / "run")
    for file in (tmp_path / "run").rglob("*.png"):
        file.unlink()
    page.write([store], tmp_path / "out")
    assert "png" in samples_in(cell_pages(tmp_path / "out")["pictures"])["documents"][0]["lost"]


def test_a_picture_that_was_cut_says_so(tmp_path: Path) -> None:
    fake = empty().add(meta("ar", role="baseline", modality="image", max_new_tokens=3), five())
    page.write([fake], tmp_path / "out")  # type: ignore[list-item]  # it has what a page reads
    lost = samples_in(cell_pages(tmp_path / "out")["ar"])["documents"][0]["lost"]
    assert "ends after 3 tokens, which is all that the run allows" in lost


def test_runs_of_unlike_suites_share_a_page(run: Path, tmp_path: Path) -> None:
    media, engines = page_runs.with_outputs(tmp_path / "media"), page_runs.with_engines(tmp_path / "engines")
    index = parsed(page.write([Store.open(run), media, engines], tmp_path / "out"))
    rows = [attributes for tag, attributes in index.elements if tag == "tr" and "data-modality" in attributes]
    assert {row["data-modality"] for row in rows} == {"text", "image", "mesh", "speech"}
    assert [row["data-run"] for row in rows] == ["1. run", *["2. media"] * 3, *["3. engines"] * 2]
    assert {"1-ar", "2-meshes", "3-drafts"} <= set(cell_pages(tmp_path / "out"))
    assert "cells/3-drafts.html" in str(index.elements) and "1. run: " in index.text and "2. media: " in index.text


def test_a_prompt_of_a_megabyte_lies_in_a_shard(tmp_path: Path) -> None:
    long = replace(five()[0].sample, prompt_text="x<\n" * 350_000)
    fake = empty().add(meta("ar", role="baseline"), [Record(long, five()[0].steps)])
    page.write([page_runs.stored(fake, tmp_path / "run")], tmp_path / "out")
    assert cell_pages(tmp_path / "out")["ar"].stat().st_size < 100_000
    assert page_runs.shard((tmp_path / "out/data/ar/0.js").read_text())[0]["asked"] == long.prompt_text


def test_pictures_are_copied_and_meshes_become_numbers(tmp_path: Path) -> None:
    page.write([page_runs.with_outputs(tmp_path / "run")], tmp_path / "out")
    pages = cell_pages(tmp_path / "out")
    images = [a for tag, a in parsed(pages["pictures"]).elements if tag == "img"]
    assert len(images) == 1 and (pages["pictures"].parent / str(images[0]["src"])).resolve().is_file()
    assert samples_in(pages["pictures"])["documents"][1]["lost"] == "../../etc/secret.png lies outside the run"
    mesh = samples_in(pages["meshes"])["documents"][0]["mesh"]
    assert mesh["vertices"][:3] == [0.5, 0.0, 0.0] and len(mesh["faces"]) == 12


@pytest.mark.slow
def test_figures_of_several_runs_name_the_run_of_each_point(tmp_path: Path) -> None:
    stores = [page_runs.ordinary(tmp_path / name) for name in ("a", "b")]
    figures = [json.loads(text) for text in parsed(page.write(stores, tmp_path / "out")).scripts if text]
    names = [trace.get("name", "") for spec in figures for trace in spec["data"]]
    assert {"prompt_lookup · 1. a", "prompt_lookup · 2. b"} <= set(names)


@pytest.mark.parametrize(
    ("source", "link"),
    [
        ("Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1", "https://arxiv.org/abs/2211.17192"),
        ("github.com/apoorvumang/prompt-lookup-decoding", "https://github.com/apoorvumang/prompt-lookup-decoding"),
        ("javascript:alert(1)", ""),
        ("https://example.org/x", ""),
    ],
)
def test_only_papers_and_repositories_become_links(source: str, link: str) -> None:
    assert link_of(source) == link


def test_a_module_becomes_a_classic_script() -> None:
    script = classic_script("var a=1;\nexport{b as C,a as default};\n// end", "Table")
    assert "window.Table = a;" in script and "export" not in script
    with pytest.raises(StoreError, match="not one module with a default export"):
        classic_script("var a=1;", "Table")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "b"], "2 runs were named; add --html FOLDER"),
        (["a", "--html", "out", "--json"], "--html and --json are different outputs"),
        (["a", "--html", "site", "--out", "b"], "--html names its folder itself"),
        (["absent", "--html", "out"], "absent holds no run"),
        (["run", "--html", "run"], "holds a run"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    words: list[str], message: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused("report", *words)


def test_a_page_of_somebody_else_is_not_overwritten(run: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    foreign = tmp_path / "site" / "index.html"
    foreign.write_text("<h1>mine</h1>")
    assert "would be overwritten" in refused("report", run, "--html", tmp_path / "site")
    assert foreign.read_text() == "<h1>mine</h1>" and list((tmp_path / "site").iterdir()) == [foreign]
    foreign.unlink()
    for _ in range(2):  # a page of our own is written anew
        assert stride("report", run, "--html", tmp_path / "site").out == f"wrote {foreign}\n"
    assert not (run / "report").exists()


def test_a_missing_package_names_the_extra(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert "a page for a browser needs the extra: pip install" in refused("report", run, "--html", "out")


def test_a_store_of_one_cell_without_a_good_sample_and_one_of_skips_have_pages(tmp_path: Path) -> None:
    failed = [record("a/b \\ ü", [], status="failed", error="x")]
    bad = page_runs.stored(empty().add(meta("ar", role="baseline", verdict={"word": None}), failed), tmp_path / "bad")
    skipped = page_runs.stored(empty().skip(meta("m"), "no weights"), tmp_path / "skipped")
    text = parsed(page.write([bad, skipped], tmp_path / "out")).text
    assert "no weights" in text and "failed samples" in text
    cell = parsed(cell_pages(tmp_path / "out")["1-ar"]).text
    assert "No sample ended well, so the cell was not judged." in cell and "nan" not in cell.lower()
