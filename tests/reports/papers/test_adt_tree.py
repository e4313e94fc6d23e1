"""Tables and figures of ADT-Tree: printed numbers, and measured ones from a made-up store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pandas as pd
import pytest

from stridebench.harness.plan import resolve
from stridebench.harness.plan.expand import expand
from stridebench.harness.record.store import Store
from stridebench.reports.papers import adt_tree_figures as figures
from stridebench.reports.papers import adt_tree_tables as tables
from stridebench.reports.papers.measured import fits
from stridebench.reports.papers.paper_files import papers, printed
from stridebench.reports.text_table import UNMEASURED
from tests.support.cli import stride
from tests.support.fake_store import FakeStore, empty, meta, record, step
from tests.support.paper_runs import assert_page, table_of

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


def test_both_temperatures_are_in_one_row() -> None:
    rows = table_of(paper_run(), "adt_tree_table1")
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


def test_the_clip_score_is_on_the_papers_scale() -> None:
    """The paper prints 0.3086 of Anole; the scorer gives 100 cos."""
    store = paper_run()
    score = {"value": 30.86, "low": 30.5, "high": 31.2, "n": 2, "reason": ""}
    store.sealed_cells["ar0"].facts["set_scores"] = {"clip_score": score}
    row = table_of(store, "adt_tree_table1").loc["Anole"]
    assert row["T=0 CLIP Score, printed"] == "0.3086"
    assert row["T=0 CLIP Score, measured"] == "0.3086 [0.3050, 0.3120]"


def test_the_suite_of_table_v_has_each_of_its_rows() -> None:
    cells = expand(resolve.of_command("papers/adt_tree --only base")).cells
    options = [tables.options(cell.config.params) for cell in cells]
    rows = pd.DataFrame({"method": [cell.name for cell in cells], "options": options})
    for name in printed("adt_tree_table5").rows["Method"]:
        assert len(fits(rows, **papers()["adt_tree"].named(name)))


def test_costs_leave_out_cycles_without_room() -> None:
    """16 tokens in cycles of four: the last cycle starts at 12 and has room for three levels and one token."""
    cell = paper_run().cell("eagle20")
    tree_cost = tables.cost(cell)  # type: ignore[arg-type]
    assert tree_cost == tables.TreeCost(3, 2, 6, 10, 6.0, 3.0, 1.0, 2.0)
    cell.facts["params"] = {**FIXED, "depth": 15}
    assert tables.cost(cell) is None  # type: ignore[arg-type]


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


def test_a_run_stores_the_laws_of_its_baseline(tmp_path: Path) -> None:
    """At T = 0 the token is the likeliest one, so the first of each row is its own probability."""
    what = ("--method", "autoregressive", "--backbone", "embedded-digits-s", "--task", "{name: digits, limit: 1}")
    rest = ("--set", "prove=false", "--set", "greedy_check={prompts: 0}", "--out", tmp_path / "run", "--offline")
    assert stride("run", *what, *rest).code == 0
    store = Store.open(tmp_path / "run")
    (cell,) = (store.cell(name) for name in store.cells())
    sample = cell.samples[~cell.samples["warmup"]].iloc[0]
    laws = np.asarray(sample["leading"]).reshape(64, -1)
    np.testing.assert_allclose(laws[:, 0], np.exp(sample["logprobs"]))
    assert laws.shape[1] == 16 and (np.diff(laws) <= 0).all() and (laws.sum(1) <= 1 + 1e-9).all()


def test_accuracies_are_those_of_the_cards(tmp_path: Path) -> None:
    values = {"top1_head1": 0.5, "top3_head1": 0.7, "top1_head2": 0.1, "top1_head1_shuffled": 0.02}
    cards = {"medusa-a": values, "eagle1-b": {"top1_1": 0.6, "top3_1": 0.8}, "vq": {"loss": 1.0}}
    for name, card_figures in cards.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "card.json").write_text(json.dumps({"name": name, "figures": card_figures}))
    eagle, medusa = figures.accuracies(tmp_path)
    assert eagle == ("eagle1-b", {"": 0.6}, {"": 0.8})
    assert medusa == ("medusa-a", {"": 0.5, "_shuffled": 0.02}, {"": 0.7})


def of_table_v(report_name: str, *cells: tuple[str, str, dict[str, Any], int], top_k: int = 0) -> FakeStore:
    """Cells by model and name with the options of ADT-Tree and the levels of their trees; one without levels is AR."""
    store = empty()
    store.body["suite"] = {"name": f"papers/{report_name}", "report": report_name}
    for backbone, name, options, levels in cells:
        task = "digits" if report_name.endswith("base") else "imagenet_classes"
        same = {"backbone": backbone, "task": task, "baseline": f"ar-{backbone}", "grid": GRID}
        same["sampling"] = {"temperature": 1.0, "top_k": top_k, "top_p": 1.0}
        kind = {"method": "adt_tree", "params": {**ADT, **options}} if levels else {"role": "baseline"}
        store.add(meta(f"{name}-{backbone}", **same, **kind), [picture("p", (1,) * 8 if levels else (0,) * 16, levels)])
    return store


FIXED_BASES = (("ar", {}, 0), ("a", {"depths": [1, 2]}, 1), ("b", {"widths": [3, 7], "step_k": 4}, 2))
MORE_BASES = (("c", {"init": "flock"}, 3), ("d", {}, 4))


def fixed_trees(folder: Path) -> FakeStore:
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
    return store


def vertical(name: str) -> FakeStore:
    """The run, and a cell of another initialisation."""
    store = paper_run(name)
    store.add({**store.cell("adt0").facts, "cell": "v", "label": "v", "params": {**ADT, "init": "vertical"}}, [])
    return store.add(store.cell("v").facts, store.records["adt0"])


def renamed(store: FakeStore, name: str) -> FakeStore:
    """The same cells in a run of another report."""
    store.body["suite"] = {"name": name, "report": name}
    return store


MODELS = ("embedded-digits-s", "embedded-digits-l")
PAGES: dict[str, Callable[[Path], FakeStore]] = {
    "adt_tree": lambda folder: vertical("papers/adt_tree"),
    "adt_tree_base": lambda folder: of_table_v(
        "adt_tree_base", *((model, *base) for model in MODELS for base in (*FIXED_BASES, *MORE_BASES))
    ),
    "adt_tree_fixed": fixed_trees,
    "adt_tree_inits": lambda folder: vertical("papers/adt_tree_inits"),
    "adt_tree_laws": lambda folder: with_laws(paper_run("papers/adt_tree_laws"), folder),
    "adt_tree_real": lambda folder: of_table_v(
        "adt_tree_real",
        *(
            (f"llamagen-c2i-{size}:guidance=3.0", name, {}, levels)
            for i, size in enumerate(("xl", "l"))
            for name, levels in (("ar", 0), ("adt", i + 1))
        ),
        top_k=2000,
    ),
    "trees": lambda folder: renamed(grounds(3), "trees"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_it_was(name: str, tmp_path: Path) -> None:
    """Of Table V each model has its own rows whatever the order, and no table shows another benchmark's cells."""
    assert_page(PAGES[name](tmp_path), name)
