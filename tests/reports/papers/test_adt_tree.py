"""Tables and figures of ADT-Tree: printed numbers, and measured ones from a made-up store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from stridebench.harness.cli.main import stride
from stridebench.harness.plan import resolve
from stridebench.harness.plan.expand import expand
from stridebench.harness.record.entries import CellMeta, GridEntry
from stridebench.harness.record.store import Store
from stridebench.reports.papers import report
from stridebench.reports.papers.adt_tree import figures, tables
from stridebench.reports.papers.measured import MeasuredRun, fits, measured
from stridebench.reports.papers.paper_files import papers, printed
from stridebench.reports.text_table import UNMEASURED, TextTable
from tests.support.fake_store import FakeStore, empty, meta, record, step
from tests.support.paper_runs import frame_of, run_of

GRID = {"rows": 4, "columns": 4, "stride": 4}
ADT = {"acceptance": "exact", "init": "horizontal", "depths": [1, 9], "widths": [2, 8], "step_k": 2}
FIXED = {"depth": 2, "width": 2, "nodes": 6}


def picture(prompt: str, accepted: tuple[int, ...], levels: int = 3, ms: float = 10.0, **changes: Any) -> Any:
    """16 tokens; each cycle drafts a tree of ``levels`` levels with two nodes each, in as many drafter passes.

    A tree had two levels more before its best nodes were chosen.
    """
    same = {"levels": levels, "levels_built": levels + 2 * (levels > 0), "draft_nfe": levels}
    steps = [step(one, 2 * levels, ms=ms, ranks=tuple(range(one)), **same) for one in accepted]
    assert sum(one.emitted for one in steps) == 16
    return record(prompt, steps, agreement=None, **changes)


def paper_run(name: str = "papers/adt_tree", prompts: int = 2, **changes: Any) -> FakeStore:
    """T = 0 and 1: a baseline, EAGLE-2, ADT-Tree, and ADT-Tree with LANTERN's rule. At T = 1 EAGLE-2 accepts less."""
    store = empty()
    store.body["suite"] = {"name": name, "report": name.removeprefix("papers/")}
    relaxed = {**ADT, "acceptance": "lantern"}
    for t in (0.0, 1.0):
        same = {"backbone": "embedded-image", "task": "emoji_scenes", "grid": GRID, "baseline": f"ar{t:g}", **changes}
        same["sampling"] = {"temperature": t, "top_k": 0, "top_p": 1.0}
        cells = (
            ("ar", "autoregressive", (0,) * 16, 0, 10.0, {}),
            ("eagle2", "eagle2", (1,) * 8 if t else (3,) * 4, 3, 20.0, FIXED),
            ("adt", "adt_tree", (1,) * 8, 2, 12.0, ADT),
            ("both", "adt_tree", (7, 7), 9, 10.0, relaxed),
        )
        for cell, method, accepted, levels, ms, params in cells:
            role = "baseline" if cell == "ar" else "method"
            cell_meta = meta(f"{cell}{t:g}", method=method, label=cell, params=params, role=role, **same)
            store.add(cell_meta, [picture(f"p{i}", accepted, levels, ms) for i in range(prompts)])
    return store


lines = frame_of


def filled(store: FakeStore, fill: Callable[[MeasuredRun], Iterable[TextTable]], labels: int = 1) -> list[pd.DataFrame]:
    return [lines(sheet, labels) for sheet in fill(run_of(store))]


def table(name: str) -> Callable[[MeasuredRun], list[TextTable]]:
    return lambda run: report.printed_table(name, run)


def test_printed_numbers_are_the_papers() -> None:
    """The values were copied by hand from the papers."""
    two = printed("adt_tree_table2").rows.set_index("Method")
    assert two.loc["ADT-Tree+LANTERN", ["T=1 SR [x]", "T=0 mean tree depth d_bar"]].tolist() == ["2.20", "4.31"]
    five = printed("adt_tree_table5").rows.set_index(["Model", "Method"])
    assert five.loc[("XL 775M", "ADT-Tree"), ["SR [x]", "tau [tokens/cycle]"]].tolist() == ["1.39", "2.53"]


def test_both_temperatures_are_in_one_row() -> None:
    (rows,) = filled(paper_run(), table("adt_tree_table1"))
    row = rows.loc["EAGLE-2"]
    assert row["T=0 tau [tokens/cycle], printed"] == "2.91"
    assert [row[f"T={t} tau [tokens/cycle], measured"][:4] for t in (0, 1)] == ["4.00", "2.00"]
    assert [row[f"T={t} SR [x], measured"][:4] for t in (0, 1)] == ["2.00", "1.00"]  # 160 / 80 and 160 / 160 ms
    assert rows.loc["ADT-Tree", "T=1 mean tree depth d_bar, measured"].startswith("4.00"), "levels built"
    assert rows.loc["ADT-Tree", "T=1 levels kept"].startswith("2.00")
    assert rows.loc["EAGLE-2", "T=0 mean tree depth d_bar, printed"] == "5.00"
    assert rows.loc["EAGLE-2", "T=0 mean tree depth d_bar, measured"].startswith("5.00")
    assert rows.loc["ADT-Tree+LANTERN", "T=0 tau [tokens/cycle], measured"].startswith("8.00")
    assert set(rows["T=0 HPSv2, measured"]) == set(rows.filter(like=", measured").loc["LANTERN"]) == {UNMEASURED}


def test_a_run_older_than_levels_built_has_none_in_the_table() -> None:
    store = paper_run()
    for name, cell in store.sealed_cells.items():
        store.sealed_cells[name] = replace(cell, steps=cell.steps.drop(columns=["levels_built"]))
    (rows,) = filled(store, table("adt_tree_table1"))
    assert set(rows["T=0 mean tree depth d_bar, measured"]) == {UNMEASURED}
    assert rows.loc["EAGLE-2", "T=0 levels kept"].startswith("3.00")


def test_the_clip_score_is_on_the_papers_scale() -> None:
    """The paper prints 0.3086 of Anole; the scorer gives 100 cos."""
    store = paper_run()
    score = {"value": 30.86, "low": 30.5, "high": 31.2, "n": 2, "reason": ""}
    store.sealed_cells["ar0"].facts["set_scores"] = {"clip_score": score}
    (rows,) = filled(store, table("adt_tree_table1"))
    row = rows.loc["Anole"]
    assert row["T=0 CLIP Score, printed"] == "0.3086"
    assert row["T=0 CLIP Score, measured"] == "0.3086 [0.3050, 0.3120]"


def test_settings_absent_from_the_paper_are_appended_and_a_benchmark_fills_its_own_table() -> None:
    store = paper_run()
    store.add({**store.cell("adt0").facts, "cell": "v", "label": "v", "params": {**ADT, "init": "vertical"}}, [])
    records = store.records["adt0"]
    store.add({**store.cell("v").facts}, records)
    (rows,) = filled(store, table("adt_tree_table1"))
    assert rows.index[-1] == "v" and rows.loc["v", "T=0 tau [tokens/cycle], printed"] == "-"
    assert filled(paper_run(task="partiprompts"), table("adt_tree_table1")) == []


def test_models_of_table_v_are_paired_in_order_and_fixed_bases_are_distinguished() -> None:
    store = empty()
    store.body["suite"] = {"name": "papers/adt_tree_base", "report": "adt_tree_base"}
    fixed = {"a": {"depths": [1, 2]}, "b": {"widths": [3, 7], "step_k": 4}, "c": {"init": "flock"}, "d": {}}
    for i, backbone in enumerate(("embedded-digits-s", "embedded-digits-l")):
        same = {"backbone": backbone, "task": "digits", "baseline": f"ar{i}", "grid": GRID}
        same["sampling"] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
        store.add(meta(f"ar{i}", **same, role="baseline"), [picture("p", (0,) * 16, 0)])
        for j, (name, options) in enumerate(fixed.items(), 1):
            cell_meta = meta(f"{name}{i}", **same, method="adt_tree", params={**ADT, **options})
            store.add(cell_meta, [picture("p", (1,) * 8, j)])
    (rows,) = filled(store, table("adt_tree_table5"), labels=2)
    depth = rows["d_bar (paper header: d~), measured"].str[:4]
    assert depth["L 775M"].tolist() == ["5.00", "3.00", "4.00", UNMEASURED[:4], "6.00"]
    assert depth["XL 775M", "ADT-Tree"] == "6.00"


def test_models_of_the_paper_fill_their_rows_of_table_v_whatever_the_order_and_no_other_table() -> None:
    store = empty()
    store.body["suite"] = {"name": "papers/adt_tree_real", "report": "adt_tree_real"}
    for i, model in enumerate(("llamagen-c2i-xl:guidance=3.0", "llamagen-c2i-l:guidance=3.0")):
        same = {"backbone": model, "task": "imagenet_classes", "baseline": f"ar{i}", "grid": GRID}
        same["sampling"] = {"temperature": 1.0, "top_k": 2000, "top_p": 1.0}
        store.add(meta(f"ar{i}", **same, role="baseline"), [picture("p", (0,) * 16, 0)])
        store.add(meta(f"adt{i}", **same, method="adt_tree", params=ADT), [picture("p", (1,) * 8, i + 1)])
    (rows,) = filled(store, table("adt_tree_table5"), labels=2)
    depth = rows["d_bar (paper header: d~), measured"].str[:4]
    assert (depth["L 775M", "ADT-Tree"], depth["XL 775M", "ADT-Tree"]) == ("4.00", "3.00")
    assert filled(store, table("adt_tree_table1")) == [], "ImageNet's cells are not printed under Anole's name"


def test_the_suite_of_table_v_has_each_of_its_rows() -> None:
    cells = expand(resolve.of_command("papers/adt_tree --only base")).cells
    options = [tables.options(cell.config.params) for cell in cells]
    rows = pd.DataFrame({"method": [cell.name for cell in cells], "options": options})
    for name in printed("adt_tree_table5").rows["Method"]:
        assert len(fits(rows, **papers()["adt_tree"].named(name)))


def test_the_overview_equals_the_count_by_hand() -> None:
    first, _ = filled(paper_run(), tables.overview)
    row = first.loc["eagle2"]
    assert row["mean depth"].startswith("3.00") and row["utilisation"].startswith("1.00")  # 3 of 3 levels
    assert first.loc["adt", "utilisation"].startswith("0.50") and first.loc["ar", "utilisation"] == "-"
    sheet, _ = tables.overview(run_of(paper_run()))
    assert any(note.startswith("tau, adt less eagle2: -2.00") for note in sheet.notes)


def test_costs_leave_out_cycles_without_room() -> None:
    """16 tokens in cycles of four: the last cycle starts at 12 and has room for three levels and one token."""
    cell = paper_run().cell("eagle20")
    tree_cost = tables.cost(cell)  # type: ignore[arg-type]
    assert tree_cost == tables.TreeCost(3, 2, 6, 10, 6.0, 3.0, 1.0, 2.0)
    deep = {**cell.facts, "params": {**FIXED, "depth": 15}}
    assert tables.cost(Cellular(CellMeta.read(deep), cell)) is None  # type: ignore[arg-type]


class Cellular:
    """A cell with other parameters."""

    def __init__(self, cell_meta: CellMeta, cell: Any) -> None:
        self.meta, self.samples, self.steps = cell_meta, cell.samples, cell.steps


def test_eq_4_is_fitted_where_there_are_three_trees() -> None:
    """Drafting takes 0.5 ms a level and 0.1 ms a node."""
    store = paper_run("papers/adt_tree_fixed", prompts=1)
    for depth, nodes in ((0, 2), (1, 5), (2, 9), (3, 4)):
        ns = round((0.5 * (depth + 1) + 0.1 * nodes) * 1e6)
        steps = [step(0, nodes, levels=depth + 1, draft_nfe=depth + 1, draft_ns=ns) for _ in range(16)]
        cell_meta = {**store.cell("eagle21").facts, "cell": f"e{depth}", "label": f"e{depth}"}
        store.add({**cell_meta, "params": {"depth": depth, "width": 4, "nodes": nodes}}, [record("p0", steps)])
    for name in ("eagle20", "eagle21"):
        store.body["cells"].pop(name)
        store.sealed_cells.pop(name)
    (sheet,) = tables.costs(run_of(store))
    assert any("T_S 0.500 ms" in note and "T_N 0.1000 ms" in note for note in sheet.notes)
    assert lines(sheet).loc["e2", "drafter ms, eq. 4 fitted"] == "2.40"
    assert lines(sheet).loc["e3", ["candidates, eq. 5", "nodes read, counted"]].tolist() == ["52", "4.00"]


def test_gains_are_paired_with_the_tree_of_the_same_rule() -> None:
    store = paper_run()
    (group, _) = measured(store)  # type: ignore[arg-type]
    gains = tables.gains(store, group, "adt0")  # type: ignore[arg-type]
    assert gains is not None and gains["gain"].tolist() == [pytest.approx(80 / 96)] * 2
    assert gains["variance"].tolist() == [0.0] * 2
    assert tables.gains(store, group, "both0") is None  # type: ignore[arg-type]  # LANTERN was not run


def test_a_perfect_order_has_rank_correlation_one() -> None:
    index = pd.MultiIndex.from_product([[f"p{i}" for i in range(6)], [0]], names=["prompt", "repetition"])
    pictures = pd.DataFrame({"variance": [1.0, 2, 3, 4, 5, 6], "gain": [1.0, 4, 9, 16, 25, 36]}, index=index)
    assert (one := tables.correlation(pictures)) is not None and one.estimate == pytest.approx(1.0)
    flipped = tables.correlation(pictures.assign(gain=-pictures["gain"]))
    assert flipped is not None and flipped.estimate == pytest.approx(-1.0)


def grounds(deep: int, pictures: int = 5) -> FakeStore:
    """Pictures of smooth ground have trees of ``deep`` levels; as many of textured ground have trees of one level."""
    store = paper_run(prompts=2)
    pictures = [
        picture(f"{ground}{i}", (1,) * 8, levels, regions=(ground,) * 15 + ("object",))
        for ground, levels in (("smooth", deep), ("textured", 1))
        for i in range(pictures)
    ]
    store.add({**store.cell("adt0").facts, "cell": "located", "label": "located"}, pictures)
    return store


@pytest.mark.parametrize(("deep", "variation", "sure"), [(3, "1.000", True), (1, "0.000", False)])
def test_depths_are_compared_by_ground(deep: int, variation: str, sure: bool) -> None:
    store = grounds(deep)
    sheet = next(iter(figures.region_table(run_of(store))))
    rows = lines(sheet, 2)
    assert rows.loc[("located", "smooth"), "mean depth"].startswith(f"{deep}.00")
    assert rows.loc[("located", "smooth"), "cycles"] == "40"
    (note,) = [note for note in sheet.notes if note.startswith("located")]
    assert f"total variation of the depths {variation}" in note
    p = float(note.split("p = ")[1].split()[0])
    assert p < 0.05 if sure else p == 1.0


def test_pictures_of_one_ground_cannot_be_compared() -> None:
    steps = figures.located(grounds(3).cell("located"))  # type: ignore[arg-type]
    assert figures.difference(steps[steps["region"] == "smooth"]) == "pictures of one ground only"
    assert "too few" in figures.difference(steps[steps["prompt"].isin(["smooth0", "textured0"])])


def test_levels_of_tokens_and_trees_lie_on_the_grid() -> None:
    steps = pd.DataFrame({"kept": [1, 3, 4, 8], "levels": [0, 2, 5, 9]})
    assert figures.token_depths(steps).tolist() == [1, 1, 2, 3, 1, 2, 3, 4, *range(1, 9)]
    assert figures.tree_depths(steps).tolist() == [0, *[2] * 3, *[5] * 4, *[9] * 8]


def with_laws(store: FakeStore, folder: Path) -> FakeStore:
    """Baselines that are certain of the first cell and not of the last, and a picture for each sample."""
    store.path = folder
    matplotlib.image.imsave(folder / "out.png", np.full((8, 8, 3), 0.5))
    leading = [x for i in range(16) for x in (0.9 - 0.05 * i, 0.05)]
    for cell in store.sealed_cells.values():
        cell.samples["output"] = "out.png"
        cell.samples["regions"] = [["smooth"] * 8 + ["object"] * 8] * len(cell.samples)
        cell.samples["leading"] = [leading if cell.facts["role"] == "baseline" else []] * len(cell.samples)
    return store


def test_the_most_and_least_certain_cells_are_found(tmp_path: Path) -> None:
    store = with_laws(paper_run(), tmp_path)
    pictures = list(figures.pictures(store.cell("ar1")))  # type: ignore[arg-type]
    assert pictures[0].sureness(GridEntry(**GRID))[1].tolist() == pytest.approx([0.7, 0.65, 0.6, 0.55])
    least, _, most = figures.extremes(pictures, GridEntry(**GRID))
    assert (least.row, least.column, most.row, most.column) == (3, 3, 0, 0)
    assert most.probs.tolist() == [0.9, 0.05]
    assert list(figures.pictures(store.cell("adt1"))) == []  # type: ignore[arg-type]
    cold, hot = figures.certainty_table(run_of(store))
    assert ", T = 0, " in cold.title and ", T = 1, " in hot.title
    assert lines(hot).loc["smooth", "median"] == "0.725"


def test_a_run_stores_the_laws_of_its_baseline(tmp_path: Path) -> None:
    """At T = 0 the token is the likeliest one, so the first of each row is its own probability."""
    what = ["--method", "autoregressive", "--backbone", "embedded-digits-s", "--task", "{name: digits, limit: 1}"]
    rest = ["--set", "prove=false", "--set", "greedy_check={prompts: 0}", "--out", str(tmp_path / "run"), "--offline"]
    done = CliRunner().invoke(stride, ["run", *what, *rest], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    store = Store.open(tmp_path / "run")
    (cell,) = (store.cell(name) for name in store.cells())
    sample = cell.samples[~cell.samples["warmup"]].iloc[0]
    laws = np.asarray(sample["leading"]).reshape(64, -1)
    np.testing.assert_allclose(laws[:, 0], np.exp(sample["logprobs"]))
    assert laws.shape[1] == 16 and (np.diff(laws) <= 0).all() and (laws.sum(1) <= 1 + 1e-9).all()


def test_accuracies_are_those_of_the_cards(tmp_path: Path) -> None:
    values = {"top1_head1": 0.5, "top3_head1": 0.7, "top1_head2": 0.1, "top1_head1_shuffled": 0.02}
    for name, card_figures in (
        ("medusa-a", values),
        ("eagle1-b", {"top1_1": 0.6, "top3_1": 0.8}),
        ("vq", {"loss": 1.0}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "card.json").write_text(json.dumps({"name": name, "figures": card_figures}))
    eagle, medusa = figures.accuracies(tmp_path)
    assert eagle == ("eagle1-b", {"": 0.6}, {"": 0.8})
    assert medusa == ("medusa-a", {"": 0.5, "_shuffled": 0.02}, {"": 0.7})


def test_ranks_of_accepted_nodes_are_shown_where_they_are_stored() -> None:
    """At T = 0 EAGLE-2 accepts three nodes a cycle, of ranks 1, 2 and 3; at T = 1 the likeliest alone."""
    cold, hot = filled(paper_run(), tables.table)
    assert cold.loc["eagle2"].tolist() == ["33%", "67%", "33% 33% 33%"]
    assert hot.loc["eagle2"].tolist() == ["100%", "0%", "100%"]
    store = paper_run()
    for cell in store.sealed_cells.values():
        del cell.steps["ranks"]
    assert filled(store, tables.table) == []


DRAWN = {
    "papers/adt_tree_inits": ["fig8"],
    "papers/adt_tree_laws": ["fig9", "fig9-2", "fig5", "fig5-2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_figures_are_drawn_from_a_few_pictures_too(name: str, tmp_path: Path) -> None:
    store: Any = paper_run(name, prompts=2)
    cell_meta = {**store.cell("adt0").facts, "cell": "v", "label": "v", "params": {**ADT, "init": "vertical"}}
    store.add(cell_meta, store.records["adt0"])
    written = report.write(with_laws(store, tmp_path), tmp_path / "out")
    drawn = [path.stem.removeprefix("papers-") for path in written if path.suffix == ".png"]
    assert set(DRAWN[name]) <= set(drawn)
    assert (tmp_path / "out" / "papers.md").stat().st_size > 0
