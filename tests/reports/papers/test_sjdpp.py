"""Reports of SJD++: same-seed sheets, diversity, scores of the run's own task, and the drawn values of every figure."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stridebench.harness.errors import UsageError
from stridebench.harness.plan import resolve
from stridebench.harness.plan.expand import expand
from stridebench.harness.record import stats
from stridebench.reports.papers import drawing, paper_files, report
from stridebench.reports.papers.measured import MeasuredRun
from stridebench.reports.papers.sjdpp import figures as diversity
from stridebench.reports.papers.sjdpp import maps
from stridebench.reports.text_table import UNMEASURED
from tests.support.fake_store import FakeStore, empty, meta, record, step
from tests.support.paper_runs import (
    GRID,
    PUBLISHED,
    SAMPLED,
    paper_run,
    picture,
    run_of,
    top_ks,
    windows,
    with_pictures,
)

Drawn = dict[str, Figure]


def drawn_figures(store: FakeStore, folder: Path) -> Drawn:
    """Return the figures of a run's report by name; further figures of one name are numbered from 2."""
    return drawn(with_pictures(store, folder))


def drawn(store: FakeStore) -> Drawn:
    """Return the figures of a run that has pictures."""
    run, figures = run_of(store), {}
    for name in report.contents_of(store).figures:  # type: ignore[arg-type]  # what reports read of a store
        for i, figure in enumerate(drawing.FIGURES[name](run)):
            figures[name.removeprefix("sjdpp_") + (f"-{i + 1}" if i else "")] = figure
    return figures


def curves(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """Return x and y of each curve with error bars, by its label."""
    return {
        str(container.get_label()): (
            np.asarray(container.lines[0].get_xdata()).tolist(),
            list(container.lines[0].get_ydata()),
        )
        for container in axes.containers
    }


def dots(axes: Axes) -> dict[str, tuple[list[float], float]]:
    """Return the values of the dots and of the bar of each row, by the row's name."""
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    rows = [line for line in axes.lines if line.get_marker() == "o"]
    bars = [line for line in axes.lines if line.get_marker() == "|"]
    return {
        name: (np.asarray(row.get_xdata()).tolist(), float(bar.get_xdata()[0]))
        for name, row, bar in zip(names, rows, bars, strict=True)
    }


# Figs. 2 and 10


SEEDS, KS = 3, (10, 1)
SIZES = {"ar": 0.2, "sjd": 0.3, "sjdpp": 0.25}
"""Diversity of the decodings over the logarithm of K."""


def colour(cell: str, prompt: int, seed: int, k: int) -> tuple[float, float, float]:
    return list(SIZES).index(cell) / 4, (4 * prompt + seed) / 16, KS.index(k) / 4


def seeded(folder: Path, prompts: int = 4, scored: bool = True) -> FakeStore:
    """Three decodings at two K, out of order; each picture's colour says of which cell, prompt and seed it is."""
    store = empty()
    store.body["suite"] = {"name": "papers/sjdpp_diversity", "report": "sjdpp_diversity"}
    store.path = folder
    plain = paper_run()
    for k in KS:
        for name, size in SIZES.items():
            cell, value = f"{name}-{k}", size * np.log10(k)
            one = {"value": value, "low": value - 0.01, "high": value + 0.01, "n": prompts * SEEDS, "reason": ""}
            lacking = {"value": None, "low": None, "high": None, "n": 0, "reason": "no weights"}
            sets = {"diversity_efflite0": one, "diversity_lpips": lacking} if scored else {}
            records = []
            for prompt in range(prompts):
                for seed in range(SEEDS):
                    output = f"{cell}-{prompt}-{seed}.png"
                    matplotlib.image.imsave(folder / output, np.full((2, 2, 3), colour(name, prompt, seed, k)))
                    records.append(picture(f"p{prompt}", (1,) * 8, 12.0, seed, output=output))
            cell_meta = {
                **plain.cell(name).facts,
                "cell": cell,
                "baseline": f"ar-{k}",
                "label": name,
                "set_scores": sets,
            }
            store.add({**cell_meta, "sampling": {**SAMPLED, "top_k": k}}, records)
    return store


@pytest.mark.slow
def test_a_column_is_a_seed_and_a_row_a_decoding_and_k(tmp_path: Path) -> None:
    store: Any = seeded(tmp_path)
    figures = dict(zip(("fig10", "fig10-2", "fig10-3"), diversity.same_seed(run_of(store)), strict=True))
    assert sorted(figures) == ["fig10", "fig10-2", "fig10-3"]  # three prompts, as in the paper
    for prompt, name in enumerate(("fig10", "fig10-2", "fig10-3")):
        figure = figures[name]
        assert figure.get_suptitle().startswith(f"Figs. 2 and 10: one seed a column, p{prompt}\n")
        assert [axes.get_title() for axes in figure.axes[:SEEDS]] == ["seed 0", "seed 1", "seed 2"]
        rows = [(cell, k) for cell in SIZES for k in sorted(KS)]
        row_names = [figure.axes[row * SEEDS].texts[0].get_text().replace("\n", " ") for row in range(len(rows))]
        assert row_names == [f"{cell}, top-k {k}" for cell, k in rows]
        for place, axes in enumerate(figure.axes):
            cell, k = rows[place // SEEDS]
            pixel = axes.images[0].get_array()[0, 0, :3]
            np.testing.assert_allclose(pixel, colour(cell, prompt, place % SEEDS, k), atol=1 / 255)


def test_a_seed_that_failed_leaves_its_place_empty(tmp_path: Path) -> None:
    store: Any = seeded(tmp_path, prompts=1)
    samples = store.cell("ar-1").samples
    samples.loc[samples["repetition"] == 1, ["output", "status", "error"]] = ["", "failed", "out of memory"]
    (figure,) = diversity.same_seed(run_of(store))
    empty_, filled = figure.axes[1], figure.axes[2]
    assert not empty_.images and empty_.texts[0].get_text() == "out of memory"
    np.testing.assert_allclose(filled.images[0].get_array()[0, 0, :3], colour("ar", 0, 2, 1), atol=1 / 255)


@pytest.mark.slow
def test_diversity_is_reported_with_its_interval_and_counts(tmp_path: Path) -> None:
    store: Any = seeded(tmp_path, prompts=2)
    report.write(store, tmp_path / "out")
    figures = drawn(store)
    assert sorted(figures) == ["diversity", "fig10", "fig10-2"]
    table = pd.read_csv(tmp_path / "out" / "papers-sjdpp_diversity.csv", dtype=str).set_index(["decoding", "top-k"])
    assert list(table.index) == [(cell, str(k)) for cell in SIZES for k in sorted(KS)]
    cosine = table["diversity, cosine of EfficientNet-Lite0"]
    assert cosine["sjd", "10"] == "0.3000 [0.2900, 0.3100]" and cosine["ar", "1"] == "0.0000 [-0.0100, 0.0100]"
    assert set(table["diversity, LPIPS"]) == {UNMEASURED}
    assert table.loc[("sjd", "10"), ["prompts", "pictures"]].tolist() == ["2", "6"]
    (axes,) = figures["diversity"].axes
    lines = curves(axes)
    assert list(lines) == list(SIZES) and axes.get_title() == "2 prompts, 6 pictures a point"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "10"]
    for cell, size in SIZES.items():
        assert lines[cell] == ([0, 1], pytest.approx([0, size]))
    interval = axes.containers[1].lines[2][0].get_segments()[1]
    np.testing.assert_allclose([end[1] for end in interval], [0.29, 0.31])


# scores of the run's own task


SCORED = [name for name in paper_files.papers()["sjdpp"].tables if paper_files.printed(name).layout.if_measured]


def scored(store: FakeStore, name: str = "overall", right: tuple[str, ...] = ("sjd",)) -> FakeStore:
    """Every picture of the cells in ``right`` is right, and every second picture of the others."""
    for cell in store.sealed_cells.values():
        cell.samples["scores"] = [
            json.dumps({name: float(cell.name in right or i % 2)}) for i in range(len(cell.samples))
        ]
    return store


def sheet(store: FakeStore, table: str) -> pd.DataFrame:
    return sheet_of(run_of(store), table)


def sheet_of(run: MeasuredRun, table: str) -> pd.DataFrame:
    (table_of_report,) = report.printed_table(table, run)
    return pd.DataFrame(table_of_report.rows, columns=[column.title for column in table_of_report.columns])


@cache
def unscored_run() -> MeasuredRun:
    return run_of(paper_run())


@cache
def scored_run() -> MeasuredRun:
    return run_of(scored(paper_run(prompts=6)))


def test_the_tables_that_no_scorer_fills_here_show_the_tasks_own_scores() -> None:
    assert set(SCORED) == {f"sjdpp_table{i}" for i in (1, 3, 4, 5, 6, 7, 8)}


@pytest.mark.parametrize("table", SCORED)
def test_own_scores_have_separate_columns(table: str) -> None:
    layout = paper_files.printed(table).layout
    bare, full = (sheet_of(run, table) for run in (unscored_run(), scored_run()))
    added = ["Share of right pictures, printed", "Share of right pictures, measured"]
    assert list(full.columns) == [*bare.columns, *added]
    assert set(full[added[0]]) == {"-"}
    published = {title for name in paper_files.names() for title in paper_files.printed(name).rows.columns}
    assert not {figure.title for figure in layout.if_measured} & published
    quality = [figure.title for figure in layout.columns if all(key.startswith("set.") for key in figure.keys)]
    assert quality and set(full[[f"{title}, measured" for title in quality]].to_numpy().ravel()) == {UNMEASURED}


def test_own_scores_are_those_of_the_pictures() -> None:
    table = sheet_of(scored_run(), "sjdpp_table5").set_index("Configuration")
    column = table["Share of right pictures, measured"]
    half, all_ = (stats.score(pd.Series(one, index_of(6))) for one in ([0.0, 1.0] * 3, [1.0] * 6))
    assert half is not None and all_ is not None
    assert column["Autoregressive Decoding"] == f"0.500 [{half.low:.3f}, {half.high:.3f}]"
    assert column["SJD"] == f"1.000 [{all_.low:.3f}, {all_.high:.3f}]"
    assert column["EAGLE"] == UNMEASURED
    digits = sheet(scored(paper_run(), "named"), "sjdpp_table7")
    assert [title for title in digits if "Share" in title] == [
        f"Share of digits named as asked, {side}" for side in ("printed", "measured")
    ]


def index_of(prompts: int) -> pd.MultiIndex:
    return pd.MultiIndex.from_product([[f"p{i}" for i in range(prompts)], [0]], names=["prompt", "repetition"])


def test_scores_of_another_detector_are_noted() -> None:
    (sheet,) = report.printed_table("sjdpp_table2", run_of(paper_run()))
    note = "measured Overall Score, Counting: of emoji_scenes by a detector of its own, not the benchmark's"
    assert note in sheet.notes
    real = paper_run(task="geneval")
    for cell in real.sealed_cells.values():
        cell.facts["set_scores"] = {"geneval_overall": {"value": 0.7, "low": 0.6, "high": 0.8, "n": 5, "reason": ""}}
    (sheet,) = report.printed_table("sjdpp_table2", run_of(real))
    assert not any("detector" in note for note in sheet.notes)


def test_the_rivals_of_table_5_fill_their_rows() -> None:
    store = paper_run()
    same = store.cell("sjd").facts
    for name, accepted in (("eagle1", (3,) * 4), ("lantern", (7, 7))):
        cell_meta = {**same, "cell": name, "label": name, "method": name, "params": {}}
        store.add(cell_meta, [picture(f"p{i}", accepted, 16.0) for i in range(5)])
    table = sheet(store, "sjdpp_table5").set_index("Configuration")
    steps = table["Acceleration Step [x], measured"]
    assert (steps["EAGLE"], steps["LANTERN"], steps["ZipAR"]) == ("4.00 (n=5)", "8.00 (n=5)", UNMEASURED)
    assert table.loc["EAGLE", "Acceleration Step [x], printed"] == "2.94"
    assert table.loc["LANTERN", "Acceleration Latency [x], measured"] == "5.00 (n=5)"  # 160 ms and 32 ms


# one prompt, many seeds


def inits(seeds: int = 10) -> FakeStore:
    """One prompt: SJD by two initialisations, the second of 4 or 8 passes in turn."""
    store = paper_run("papers/sjdpp_inits", prompts=1)
    same = {**store.cell("sjd").facts, "expected": seeds}
    for init, kinds in (("random", ((1,) * 8,)), ("h-repeat", ((3,) * 4, (1,) * 8))):
        cell_meta = {**same, "cell": init, "label": init, "params": {"window": 16, "init": init, "refine": True}}
        store.add(cell_meta, [picture("p0", kinds[i % len(kinds)], 12.0, i) for i in range(seeds)])
    base = store.cell("ar").facts
    store.add(base, [picture("p0", (0,) * 16, 10.0, i) for i in range(seeds)])
    for name in ("sjd", "sjdpp", "M"):
        del store.sealed_cells[name], store.records[name], store.body["cells"][name]
    return store


@pytest.mark.slow
def test_one_prompt_has_intervals_over_its_seeds_and_says_so(tmp_path: Path) -> None:
    store: Any = with_pictures(scored(inits(), right=("random",)), tmp_path)
    report.write(store, tmp_path / "out")
    figures = drawn(store)
    page = (tmp_path / "out" / "papers.md").read_text()
    assert "- one prompt: intervals are over its 10 seeds" in page
    assert "of one prompt alone over its repetitions (the seeds)" in page
    table = pd.read_csv(tmp_path / "out" / "papers-sjdpp_table8.csv", dtype=str).set_index("Token Initialization")
    half = stats.score(pd.Series([0.0, 1.0] * 5, index_of(10)))
    assert half is not None
    expected = f"0.500 [{half.low:.3f}, {half.high:.3f}]"
    assert table.loc["Horizontal Repeat", "Share of right pictures, measured"] == expected
    (axes,) = figures["fig13"].axes
    assert axes.get_title() == "one prompt: intervals are over its 10 seeds"
    assert dots(axes) == {"random": ([2.0] * 10, 2.0), "h-repeat": ([4.0, 2.0] * 5, pytest.approx(160 / 60))}
    spans = [np.asarray(line.get_xdata()) for line in axes.lines if line.get_marker() == "None"]
    ratio = stats.ratio(pd.DataFrame({"output": 16.0, "nfe": [4.0, 8.0] * 5}, index_of(10)), "output", "nfe")
    assert ratio is not None and len(spans) == 2
    np.testing.assert_allclose(spans[1], [ratio.low, ratio.high])


# figures read back


def refined() -> FakeStore:
    store = paper_run("papers/sjdpp_refine", prompts=2)
    same = store.cell("sjd").facts
    del store.sealed_cells["sjd"], store.body["cells"]["sjd"]
    for refine, accepted in ((True, (1,) * 8), (False, (0,) * 14 + (1,))):
        params = {"window": 16, "init": "random", "refine": refine}
        cell_meta = {**same, "cell": f"r{refine}", "label": f"r{refine}", "params": params}
        store.add(cell_meta, [picture(f"p{i}", accepted, 12.0) for i in range(2)])
    return store


def test_fig_12_shows_passes_a_token_of_each_picture(tmp_path: Path) -> None:
    (axes,) = drawn_figures(refined(), tmp_path)["fig12"].axes
    assert dots(axes) == {"random, refined": ([0.5] * 2, 0.5), "random, thrown away": ([15 / 16] * 2, 15 / 16)}
    assert "random 2356" in axes.get_title()


def resolutions() -> FakeStore:
    """Pictures of 16 tokens by one backbone and of 32 by another, each in four passes."""
    store = empty()
    store.body["suite"] = {"name": "papers/sjdpp_resolution", "report": "sjdpp_resolution"}
    for backbone, accepted in (("embedded-image-8x8", 3), ("embedded-image", 7)):
        settings = {"method": "sjdpp", "backbone": backbone, "params": PUBLISHED, "sampling": SAMPLED, "label": "SJD++"}
        records = [record(f"p{i}", [step(accepted, accepted)] * 4) for i in range(2)]
        store.add(meta(backbone, **settings, task="emoji_scenes"), records)
    return store


def test_fig_6_has_lines_alone_and_a_colour_for_each_of_many_methods(tmp_path: Path) -> None:
    """Methods of one size of pictures are no line. With more methods than colours it ended with an error."""
    store = resolutions()
    for number in range(11):
        own = {"method": "sjdpp", "params": PUBLISHED, "sampling": SAMPLED, "label": f"window={number}"}
        for backbone, accepted in (("embedded-image-8x8", 3), ("embedded-image", 7))[: 1 if number == 10 else 2]:
            records = [record(f"p{i}", [step(accepted, accepted)] * 4) for i in range(2)]
            store.add(meta(f"{number}-{backbone}", **own, backbone=backbone, task="emoji_scenes"), records)
    (axes,) = drawn_figures(store, tmp_path)["fig6"].axes
    names = set(curves(axes))
    assert names == {"SJD++, emoji_scenes", *(f"window={number}, emoji_scenes" for number in range(10))}


def test_fig_6_shows_a_point_a_backbone_against_its_tokens(tmp_path: Path) -> None:
    (axes,) = drawn_figures(resolutions(), tmp_path)["fig6"].axes
    assert curves(axes) == {"SJD++, emoji_scenes": ([16.0, 32.0], [4.0, 8.0])}
    assert [(text.get_text(), text.xy) for text in axes.texts] == [
        ("embedded-image-8x8", (16.0, 4.0)),
        ("embedded-image", (32.0, 8.0)),
    ]


def test_fig_5_shows_tokens_a_pass_and_seconds_at_each_k(tmp_path: Path) -> None:
    store = top_ks(prompts=2)
    greedy = store.cell("sjd-1").facts
    store.add(greedy, [picture(f"p{i}", (7, 7), 12.0) for i in range(2)])
    passes, seconds = drawn_figures(store, tmp_path)["fig5"].axes
    assert [tick.get_text() for tick in passes.get_xticklabels()] == ["1", "10", "100", "250"]
    places = [0, 1, 2, 3]
    assert curves(passes) == {
        **{"ar": (places, [1.0] * 4), "sjd": (places, [8.0, 2.0, 2.0, 2.0])},
        **{"sjdpp": (places, [4.0] * 4), "M": (places, [3.2] * 4)},
    }
    seconds_of_sjd = curves(seconds)["sjd"][1]
    assert seconds_of_sjd == pytest.approx([0.029, 0.101, 0.101, 0.101])  # steps of 12 ms, and 5 ms


def test_fig_11_lays_the_lengths_of_runs_on_the_picture(tmp_path: Path) -> None:
    panels = drawn_figures(paper_run(prompts=1), tmp_path)["fig11"].axes
    by_name = {axes.get_title(): axes.images[-1].get_array().tolist() for axes in panels[1:6:2]}
    rows = GRID["rows"] * [[4] * 4]
    assert by_name == {"sjd": 4 * [[2] * 4], "sjdpp": rows, "M": [[2] * 4, *rows[1:]]}
    assert [axes.get_title() for axes in panels[0:6:2]] == ["p0"] * 3


def test_fig_14_shows_the_log_probability_of_runs_by_their_length(tmp_path: Path) -> None:
    """Log-probabilities rise from -2 by 0.1. M's runs of two have tokens 0 to 3, its runs of four tokens 4 to 15."""
    (axes,) = drawn_figures(paper_run(prompts=2), tmp_path)["fig14"].axes
    lines = curves(axes)
    assert lines["M"] == ([2, 4], pytest.approx([-1.85, -1.05]))
    assert lines["sjdpp"] == ([4], pytest.approx([-1.25])) and lines["sjd"] == ([2], pytest.approx([-1.25]))
    (line,) = (line for line in axes.lines if line.get_label() == "AR, all tokens")
    assert list(line.get_ydata()) == pytest.approx([-1.25] * 2)


def test_the_worst_runs_are_framed_where_they_lie(tmp_path: Path) -> None:
    """M's least likely long run is its first of four tokens, the second row of the picture."""
    panels = drawn_figures(paper_run(prompts=1), tmp_path)["fig14-worst"].axes
    worst = panels[2 * maps.WORST]
    assert worst.get_ylabel() == "M" and worst.get_title() == "p0: 4 tokens, -1.45"
    (box,) = worst.patches
    assert (box.get_xy(), box.get_width(), box.get_height()) == ((0, 1), 4, 1)


def test_the_sweep_over_tau_is_drawn_as_measured(tmp_path: Path) -> None:
    store = paper_run("papers/sjdpp_tau", prompts=2)
    for tau, accepted, variation in ((0.0, (7, 7), 0.2), (float("inf"), (1,) * 8, 0.0)):
        word = {"word": "approximate", "total_variation": variation, "greedy": None, "note": ""}
        cell_meta = {
            **store.cell("sjdpp").facts,
            "cell": f"tau{tau}",
            "params": json.loads(json.dumps({**PUBLISHED, "tau": tau})),
            "verdict": word,
        }
        store.add(cell_meta, [picture(f"p{i}", accepted, 12.0) for i in range(2)])
    store.cell("sjdpp").facts["verdict"] = {"word": "approximate", "total_variation": 0.04, "greedy": None, "note": ""}
    store.cell("M").facts["verdict"] = {"word": "unverified", "total_variation": None}
    passes, quality, variation = drawn_figures(store, tmp_path)["tau"].axes
    assert [tick.get_text() for tick in passes.get_xticklabels()] == ["0", "0.5", "inf"]
    assert curves(passes) == {"as published": ([0, 1, 2], [8.0, 4.0, 2.0])}
    assert curves(variation) == {"as published": ([0, 1, 2], [0.2, 0.04, 0.0])}
    assert curves(quality) == {"as published": ([0, 1, 2], [0.5] * 3)}
    levels = {str(line.get_label()): line.get_ydata()[0] for line in passes.lines if line.get_label() in ("sjd", "M")}
    assert levels == {"sjd": 2.0, "M": 3.2}


def test_table_10_is_drawn_beside_the_printed_values(tmp_path: Path) -> None:
    passes, _ = drawn_figures(windows(prompts=2), tmp_path)["table10"].axes
    assert curves(passes)["measured"] == ([4, 16, 32], [0.5, 0.25, 0.125])
    (line,) = (line for line in passes.lines if str(line.get_label()).startswith("printed"))
    printed_rows = paper_files.printed("sjdpp_table10").rows
    assert list(line.get_xdata()) == printed_rows["WS [tokens]"].astype(float).tolist()
    assert line.get_ydata()[3] == 0.3294  # 64, 128, ... of the paper, the window of 96


# suites


def rows_of(table: str) -> list[dict[str, str]]:
    return [{str(k): str(v) for k, v in row.items()} for row in paper_files.printed(table).rows.to_dict("records")]


WINDOWS = {"lumina-mgpt-7b-768": 96, "emu3-gen": 96, "simplear-0.5b": 32, "llamagen-t2i-xl": 32, "janus-pro-1b": 250}
"""Section 4.2 of the paper."""


def test_the_suite_of_published_models_has_the_papers_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model has its own window, on each benchmark; benchmarks without files are skipped with that reason."""
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    captions = {"images": [], "annotations": [{"id": 5, "image_id": 1, "caption": "a cat"}]}
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "captions_val2017.json").write_text(json.dumps(captions))
    plan = expand(resolve.of_command("papers/sjdpp --only real"))
    cells = [cell for cell in plan.cells if cell.role == "method"]
    own = [cell for cell in cells if cell.name in ("sjd", "sjdpp")]
    settings = {(cell.backbone, cell.name, cell.config.params["window"]) for cell in own}
    sides = {f"lumina-mgpt-7b-{side}": 96 for side in (512, 1024)}
    swept = {("janus-pro-1b", "sjdpp", size) for size in (16, 32, 64, 96, 128, 256, 512)}
    expected = {(name, method, size) for name, size in (WINDOWS | sides).items() for method in ("sjd", "sjdpp")}
    assert settings == expected | swept
    others = {(cell.backbone, cell.name) for cell in cells if cell not in own}
    assert others == {("lumina-mgpt-7b-768", name) for name in ("jacobi", "eagle1", "lantern", "zipar")}
    assert {(cell.sampling.top_k, cell.sampling.temperature) for cell in plan.cells} == {(2000, 1.0)}
    assert {cell.task.name for cell in plan.cells} == {"coco", "geneval", "partiprompts", "t2i_compbench"}
    models = {row["Model"] for table in range(1, 5) for row in rows_of(f"sjdpp_table{table}")}
    assert {paper_files.papers()["sjdpp"].model_of(name) for name in WINDOWS} == models
    assert {cell.task.name for cell in plan.runnable} == {"coco"}
    reasons = {cell.task.name: str(cell.skip) for cell in plan.cells if cell.skip}
    assert all("is not there" in why and str(tmp_path) in why for why in reasons.values()) and len(reasons) == 3
    assert [len(plan.prompts[use]) for use in plan.suite.tasks] == [1, 0, 0, 0]
    (tmp_path / "data" / "captions_val2017.json").write_text("{")
    with pytest.raises(UsageError, match=r"captions_val2017\.json"):
        expand(resolve.of_command("papers/sjdpp --only real"))
