"""Tables and figures of papers: printed numbers, and measured ones from the store."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.figure import Figure
from rich.console import Console

from stridebench.harness.plan import resolve
from stridebench.harness.plan.expand import expand
from stridebench.harness.record.entries import GridEntry
from stridebench.harness.record.metrics import METRICS, totals, value
from stridebench.reports.papers import drawing, filled_tables, paper_files, report
from stridebench.reports.papers import sjdpp_maps as maps
from stridebench.reports.papers.drawing import legend
from stridebench.reports.papers.measured import measured, scorer_notes
from stridebench.reports.papers.paper_files import model_name
from stridebench.reports.text_table import UNMEASURED
from tests import paper_settings
from tests.paper_settings import Setting, settings
from tests.support.fake_store import empty, meta, record, step
from tests.support.paper_runs import (
    GRID,
    paper_run,
    picture,
    run_of,
    stored,
    table_of,
)


@pytest.mark.parametrize("name", paper_files.names())
def test_printed_tables_are_complete(name: str) -> None:
    table = paper_files.printed(name)
    assert table.paper.title and table.layout.where and table.layout.caption
    assert len(table.rows) > 1 and not table.rows.drop(columns="notes").eq("").any(axis=None)


def test_every_printed_file_is_in_its_papers_yaml() -> None:
    assert {path.stem for path in paper_files.FOLDER.glob("*.csv")} == set(paper_files.names())


FILLED = [name for name in paper_files.names() if paper_files.printed(name).layout.columns]


@pytest.mark.parametrize("name", FILLED)
def test_a_layout_shows_every_printed_column_and_explains_every_row(name: str) -> None:
    table = paper_files.printed(name)
    if table.layout.texts:
        return  # a line a printed figure; see test_cross_regression
    titles = {quantity.title for quantity in table.layout.quantities if "printed" in quantity.sides}
    assert {*table.layout.labels, *titles} == set(table.rows.columns) - {"notes"}
    lines = filled_tables.lines_of(table)
    assert all(line.selection for line in lines) and len(lines) >= len(table.rows.drop_duplicates(table.layout.labels))


@pytest.mark.slow
def test_a_table_has_the_values_of_the_store(tmp_path: Path) -> None:
    """The values of a real store are computed here from its files alone."""
    real = stored(paper_run("papers/sjdpp", "lumina-mgpt-7b-768"), tmp_path / "run")
    (page, *_) = report.write(real, tmp_path / "report")
    table = pd.read_csv(tmp_path / "report" / "papers-sjdpp_table2.csv").set_index(["Model", "Method"])
    cell = real.cell("sjdpp")
    frame = totals(cell.samples, cell.steps)
    row = table.loc[("Lumina-mGPT (7B)", "SJD++")]
    assert float(row["Step acceleration [x], printed"]) == 6.44
    assert float(row["Step acceleration [x], measured"]) == value(METRICS["scr"], frame) == 4.0
    seconds = (frame["wall_s"] + frame["prefill_ms"] / 1e3).mean()  # 4 steps of 12 ms and 5 ms
    assert float(row["Avg. Latency [s], measured"]) == pytest.approx(seconds) == 0.053
    assert float(row["Latency acceleration [x], measured"]) == round(160 / 48, 2)
    assert row["Overall Score, measured"] == "0.5000 [0.4000, 0.6000]"
    assert row["Counting, measured"] == "0.2500 [0.1000, 0.4000]" and row["Counting, printed"] == "0.3625"
    assert row["Colors, measured"] == UNMEASURED
    assert "lumina-mgpt-7b-768 bf16, T = 1, top-k 250, emoji_scenes, n = 6" in page.read_text()


def test_rows_keep_the_papers_order_and_other_cells_follow() -> None:
    table = table_of(paper_run("papers/sjdpp"), "sjdpp_table1", 2)
    printed_rows = paper_files.printed("sjdpp_table1").rows[["Model", "Method"]]
    assert list(table.index[:15]) == list(printed_rows.itertuples(index=False, name=None))
    assert set(table["Step acceleration [x], measured"][:15]) == {UNMEASURED}  # it is no model of the paper
    assert list(table.index[15:]) == [("embedded-image", name) for name in ("ar", "sjd", "sjdpp", "M")]
    assert table.iloc[18]["Step acceleration [x], printed"] == "-"
    assert table.iloc[18]["Step acceleration [x], measured"] == "3.20"  # 16 tokens in 5 passes
    assert set(table["FID, measured"]) == {UNMEASURED}


def test_a_published_model_fills_its_own_rows_alone() -> None:
    table = table_of(paper_run("papers/sjdpp", "janus-pro-1b", "coco"), "sjdpp_table1", 2)
    column = table["Step acceleration [x], measured"]
    assert column[("Janus-Pro (1B)", "SJD")] == "2.00"
    others = [model != "Janus-Pro (1B)" for model, _ in column.index]
    assert set(column[others][:12]) == {UNMEASURED}


def test_a_table_of_one_model_shows_no_other_model_of_the_paper() -> None:
    """Table 5 is Lumina's: Janus has no sheet there, a stand-in has one, and in Lumina's run Lumina alone."""

    def backbones(*names: str) -> list[str]:
        run = paper_run("papers/sjdpp", names[0], "coco")
        for name in names[1:]:
            other = paper_run("papers/sjdpp", name, "coco")
            for cell in other.sealed_cells:
                facts = {**other.cell(cell).facts, "cell": f"{cell}-{name}", "baseline": f"ar-{name}"}
                run.add(facts, other.records[cell])
        return [
            sheet.title.partition("measured on ")[2].split()[0]
            for sheet in report.printed_table("sjdpp_table5", run_of(run))
        ]

    assert backbones("janus-pro-1b") == []
    assert backbones("embedded-image") == ["embedded-image"]
    assert backbones("janus-pro-1b", "lumina-mgpt-7b-768", "lumina-mgpt-7b-512") == ["lumina-mgpt-7b-768"]


def test_a_benchmark_fills_its_own_table_alone() -> None:
    run = run_of(paper_run("papers/sjdpp", task="coco"))
    assert len(report.printed_table("sjdpp_table1", run)) == 1
    assert report.printed_table("sjdpp_table2", run) == []


def test_log_probabilities_are_of_the_tokens_but_those_that_were_forced() -> None:
    """Five ends of rows, of log p 0, among 16 tokens: as many zeros are left out, and a free token of log p 0 stays."""
    store = paper_run("papers/sjdpp")
    cell = store.sealed_cells["sjd"]
    free = [0.0, *(-2 + 0.1 * i for i in range(10))]
    cell.samples["logprobs"] = [[*free, *[0.0] * 5]] * len(cell.samples)
    cell.steps["forced"] = (cell.steps["step"] == 0) * 5
    row = table_of(store, "sjdpp_table9").loc["SJD"]
    assert row["log p average [nats], printed"] == "-4.9007"
    assert row["log p average [nats], measured"].startswith(f"{np.mean(free):.4f}")
    assert row["log p standard deviation, measured"] == f"{np.std(free * 6, ddof=1):.4f}"


@pytest.mark.parametrize(
    ("printed_values", "measured_values", "pairs"),
    [
        ([1, 10, 100, 2000], [1, 10, 100, 250], {1: 1, 10: 10, 100: 100, 2000: 250}),
        ([1, 10, 100, 2000], [250], {}),
        ([1, 2000], [0, 1, 2000], {1: 1, 2000: 2000}),
    ],
)
def test_values_are_paired_only_where_the_pairing_is_unambiguous(
    printed_values: list[int], measured_values: list[int], pairs: dict[int, int]
) -> None:
    assert filled_tables.pair(printed_values, measured_values) == pairs


def test_the_first_cell_that_fits_is_found() -> None:
    (group,) = measured(paper_run("papers/sjdpp"))  # type: ignore[arg-type]
    assert group.find(method="sjdpp", reuse="M") == "M"
    assert group.find(method="sjdpp", reuse="G") is None
    assert group.find(method="sjd", top_k=1) is None and group.find(method="sjd", top_k=250) == "sjd"


def test_the_terminal_tables_fit() -> None:
    out = io.StringIO()
    report.terminal(paper_run("papers/sjdpp"), Console(file=out, width=80))  # type: ignore[arg-type]
    assert "SJD++" in out.getvalue() and max(map(len, out.getvalue().splitlines())) <= 80


def test_a_caption_says_the_network_and_the_reference_of_a_score() -> None:
    settings = {"clip_model": "ViT-B-32", "clip_prefix": "A photo ", "clip_resize": "lanczos-256", "reference": "a/val"}
    store = empty()
    for name, params in (("a", settings), ("b", {"clip_model": "ViT-L-14", "reference": ""})):
        store.add(meta(name, task="coco", task_params=params), [record("p", [step(1, 3)], agreement=None)])
    shown = pd.DataFrame({"task": "coco", "set.clip_score": [20.0, 21.0], "set.fid": [9.0, None]}, index=["a", "b"])
    store_read: Any = store
    assert scorer_notes(store_read, shown, ["scr", "set.clip_score", "set.fid"]) == [
        "measured CLIP of coco: ViT-B-32, pictures lanczos-256, captions behind 'A photo '",
        "measured CLIP of coco: ViT-L-14",
        "measured fid of coco: against val",
    ]


def test_other_suites_and_empty_runs_have_no_page(tmp_path: Path) -> None:
    other = paper_run()
    other.body["suite"] = {"name": "cross_regression"}  # called as a report, which it does not name
    assert report.write(other, tmp_path) == []  # type: ignore[arg-type]
    nothing = empty()
    nothing.body["suite"] = {"name": "papers/sjdpp", "report": "sjdpp"}
    assert report.write(nothing, tmp_path) == [] and list(tmp_path.iterdir()) == []  # type: ignore[arg-type]


def test_a_sweep_over_top_k_has_a_baseline_at_each() -> None:
    plan = expand(resolve.of_command("papers/sjdpp --only topk"))
    assert {cell.sampling.top_k for cell in plan.cells if cell.role == "baseline"} == {1, 10, 100, 250}
    assert all(plan.baseline(cell).sampling == cell.sampling for cell in plan.cells)
    assert len({cell.id for cell in plan.cells}) == len(plan.cells) == 4 * 5  # and the second autoregressive set


def test_runs_tile_their_picture_and_carry_its_log_probabilities() -> None:
    store = paper_run("papers/sjdpp")
    runs = maps.runs(store.cell("M"))  # type: ignore[arg-type]
    one = runs[runs["prompt"] == "p0"]
    assert one["begin"].tolist() == [0, 2, 4, 8, 12] and one["length"].tolist() == [2, 2, 4, 4, 4]
    assert one["logprob"].iloc[2] == pytest.approx(-2 + 0.1 * 5.5)
    on_grid = maps.lengths_on_grid(one, GridEntry(**GRID))
    assert on_grid.tolist() == [[2, 2, 2, 2], [4] * 4, [4] * 4, [4] * 4]


def test_ends_of_rows_are_left_out_of_a_map() -> None:
    runs = pd.DataFrame({"length": [3, 1, 4]})
    assert maps.lengths_on_grid(runs, GridEntry(rows=2, columns=3, stride=4)).tolist() == [[3, 3, 3], [4, 4, 4]]


def test_an_overshoot_is_not_on_the_map() -> None:
    store = paper_run("papers/sjdpp").add(
        meta("cut", method="sjd", grid=GRID), [picture("p0", (4, 4, 4, 4), 10.0, tokens=tuple(range(16)))]
    )
    runs = maps.runs(store.cell("cut"))  # type: ignore[arg-type]
    assert runs["length"].tolist() == [5, 5, 5, 1]


def test_the_worst_are_long_and_unlikely_and_one_a_picture() -> None:
    rows = [("a", 0, 0, 9, -3.0), ("a", 0, 9, 9, -5.0), ("b", 0, 0, 9, -4.0), ("c", 0, 0, 2, -9.0)]
    runs = pd.DataFrame(rows, columns=["prompt", "repetition", "begin", "length", "logprob"])
    worst = maps.worst_runs(runs)
    assert list(zip(worst["prompt"], worst["logprob"], strict=True)) == [("a", -5.0), ("b", -4.0)]


def test_pictures_lack_regions_alone_or_all() -> None:
    store = paper_run()
    samples = store.cell("M").samples
    samples["regions"] = [("smooth",) * 16] * len(samples)
    samples.at[0, "regions"] = ()
    by_region = maps.by_region(store.cell("M"))  # type: ignore[arg-type]
    assert len(by_region["smooth"]) == len(samples) - 1
    del samples["regions"]
    assert maps.by_region(store.cell("M")) == {}  # type: ignore[arg-type]
    assert list(maps.table(run_of(paper_run()))) == []


def test_adding_a_table_takes_a_csv_and_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new table in a copy of the data needs changes in two files, and is filled and written."""
    folder = tmp_path / "papers"
    shutil.copytree(paper_files.FOLDER, folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    (folder / "sjdpp_table11.csv").write_text("Method,Passes,notes\nSJD,2.5,said by nobody\nSJD++,3.5,\n")
    entry = {"where": "Table 11", "caption": "of a test", "labels": ["Method"], "rows": {"named": "Method"}}
    entry["columns"] = [{"title": "Passes", "keys": ["scr"]}]
    paper = yaml.safe_load((folder / "sjdpp.yaml").read_text())
    paper["tables"]["sjdpp_table11"] = entry
    paper["reports"]["sjdpp"]["sheets"].append("sjdpp_table11")
    (folder / "sjdpp.yaml").write_text(yaml.safe_dump(paper, sort_keys=False))
    assert len({path for path in folder.iterdir() if path.read_bytes() != before.get(path)}) == 2
    monkeypatch.setattr(paper_files, "FOLDER", folder)
    paper_files.papers.cache_clear()
    try:
        table = table_of(paper_run(), "sjdpp_table11")
        assert table.loc["SJD++"].tolist() == ["3.5", "4.00"] and table.loc["SJD", "Passes, measured"] == "2.00"
        assert "sjdpp_table11" in report.contents_of(paper_run()).sheets  # type: ignore[arg-type]
    finally:
        paper_files.papers.cache_clear()


@pytest.mark.parametrize("name", [name for name in resolve.commands() if name.startswith("papers/")])
def test_the_report_of_a_papers_suite_has_its_name(name: str) -> None:
    loaded = resolve.of_command(name).suite
    entry = loaded.report
    assert entry is not None and loaded.name == f"papers/{entry.name}"
    contents = paper_files.reports()[entry.name]
    assert {*contents.figures} <= set(drawing.FIGURES)
    assert {*contents.sheets} <= {*drawing.SHEETS, *paper_files.names()}
    for manifest in ({"name": "mine", "report": entry.model_dump()}, {"report": entry.name}):
        store = empty()
        store.body["suite"] = manifest
        assert report.contents_of(store) == contents  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("backbone", "model"),
    [
        ("llama3-8b", "llama3-8b"),
        ("tiny:llama3-8b", "llama3-8b"),
        ("deepseek-r1-distill-7b:chat=true", "deepseek-r1-distill-7b"),
        ("tiny:llama2-70b:device_map=auto,weights=int4", "llama2-70b:weights=int4"),
        ("bpt:lora=xspecmesh-cross-lora", "bpt:lora=xspecmesh-cross-lora"),
        ("hub:org/name", "hub:org/name"),
    ],
)
def test_a_stand_in_and_a_chat_template_are_the_same_row_of_a_paper(backbone: str, model: str) -> None:
    assert model_name(backbone) == model


def test_a_legend_of_long_names_stays_inside_its_figure() -> None:
    figure = Figure(figsize=(12, 5), layout="constrained")
    axes = figure.subplots()
    for i in range(7):
        axes.plot([0, 1], label=f"cross_regression horizon=8 mode=det beta=0.05 tau=-{i} clip=True")
    legend(figure, axes)
    [drawn] = figure.legends
    assert drawn.get_window_extent().width <= figure.bbox.width and len(drawn.get_texts()) == 7


def test_a_setting_is_the_authors_or_has_a_reason() -> None:
    commands = resolve.commands()
    for one in settings():
        assert one.suite_has, f"{one.name}: {one.suite} has no such setting"
        assert one.agrees or one.reason, f"{one.name}: {one.suite_has}, the authors' {one.authors} ({one.source})"
        assert one.source and one.suite in commands, one.name


def test_the_table_names_every_difference(capsys: pytest.CaptureFixture[str]) -> None:
    paper_settings.main()
    differing = sum(not one.agrees for one in settings())
    assert capsys.readouterr().out.endswith(f"{len(settings())} settings, {differing} differ\n")
    assert not Setting("t", "quick", [1], [2], "s", "").agrees
