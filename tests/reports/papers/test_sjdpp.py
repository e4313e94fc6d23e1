"""Reports of SJD++: every table and figure of made-up runs, and scores of the run's own task."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pandas as pd
import pytest

from stridebench.harness.errors import UsageError
from stridebench.harness.plan import resolve
from stridebench.harness.plan.expand import expand
from stridebench.harness.record import stats
from stridebench.reports.papers import paper_files, report
from stridebench.reports.text_table import UNMEASURED
from tests.support.fake_store import FakeStore, empty, meta
from tests.support.paper_runs import (
    PUBLISHED,
    SAMPLED,
    assert_page,
    paper_run,
    picture,
    run_of,
    table_of,
    top_ks,
    windows,
    with_pictures,
)

SEEDS, KS = 3, (10, 1)
SIZES = {"ar": 0.2, "sjd": 0.3, "sjdpp": 0.25}
"""Diversity of the decodings over the logarithm of K."""


def colour(cell: str, prompt: int, seed: int, k: int) -> tuple[float, float, float]:
    return list(SIZES).index(cell) / 4, (4 * prompt + seed) / 16, KS.index(k) / 4


def seeded(folder: Path) -> FakeStore:
    """Three decodings at two K, out of order; a picture's colour says what it is of; one failed."""
    prompts = 2
    store = empty()
    store.body["suite"] = {"name": "papers/sjdpp_diversity", "report": "sjdpp_diversity"}
    store.path = folder
    plain = paper_run()
    for k in KS:
        for name, size in SIZES.items():
            cell, value = f"{name}-{k}", size * np.log10(k)
            one = {"value": value, "low": value - 0.01, "high": value + 0.01, "n": prompts * SEEDS, "reason": ""}
            lacking = {"value": None, "low": None, "high": None, "n": 0, "reason": "no weights"}
            sets = {"diversity_efflite0": one, "diversity_lpips": lacking}
            records = []
            for prompt in range(prompts):
                for seed in range(SEEDS):
                    output = f"{cell}-{prompt}-{seed}.png"
                    matplotlib.image.imsave(folder / output, np.full((2, 2, 3), colour(name, prompt, seed, k)))
                    records.append(picture(f"p{prompt}", (1,) * 8, 12.0, seed, output=output))
            cell_meta = {**plain.cell(name).facts, "cell": cell, "baseline": f"ar-{k}", "label": name}
            store.add({**cell_meta, "set_scores": sets, "sampling": {**SAMPLED, "top_k": k}}, records)
    samples = store.cell("ar-1").samples
    samples.loc[samples["repetition"] == 1, ["output", "status", "error"]] = ["", "failed", "out of memory"]
    return store


def scored(store: FakeStore, name: str = "overall", right: tuple[str, ...] = ("sjd",)) -> FakeStore:
    """Every picture of the cells in ``right`` is right, and every second picture of the others."""
    for cell in store.sealed_cells.values():
        cell.samples["scores"] = [
            json.dumps({name: float(cell.name in right or i % 2)}) for i in range(len(cell.samples))
        ]
    return store


def test_own_scores_are_those_of_the_pictures() -> None:
    column = table_of(scored(paper_run()), "sjdpp_table5")["Share of right pictures, measured"]
    index = pd.MultiIndex.from_product([[f"p{i}" for i in range(6)], [0]], names=["prompt", "repetition"])
    half, all_ = (stats.score(pd.Series(one, index)) for one in ([0.0, 1.0] * 3, [1.0] * 6))
    assert half is not None and all_ is not None
    assert column["Autoregressive Decoding"] == f"0.500 [{half.low:.3f}, {half.high:.3f}]"
    assert column["SJD"] == f"1.000 [{all_.low:.3f}, {all_.high:.3f}]"
    assert column["EAGLE"] == UNMEASURED
    digits = table_of(scored(paper_run(), "named"), "sjdpp_table7")
    assert [title for title in digits if "Share" in title] == [
        f"Share of digits named as asked, {side}" for side in ("printed", "measured")
    ]


def test_scores_of_another_detector_are_noted() -> None:
    (sheet,) = report.printed_table("sjdpp_table2", run_of(paper_run()))
    note = "measured Overall Score, Counting: of emoji_scenes by a detector of its own, not the benchmark's"
    assert note in sheet.notes
    real = paper_run(task="geneval")
    for cell in real.sealed_cells.values():
        cell.facts["set_scores"] = {"geneval_overall": {"value": 0.7, "low": 0.6, "high": 0.8, "n": 5, "reason": ""}}
    (sheet,) = report.printed_table("sjdpp_table2", run_of(real))
    assert not any("detector" in note for note in sheet.notes)


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


def refined() -> FakeStore:
    store = paper_run("papers/sjdpp_refine", prompts=2)
    same = store.cell("sjd").facts
    del store.sealed_cells["sjd"], store.body["cells"]["sjd"]
    for refine, accepted in ((True, (1,) * 8), (False, (0,) * 14 + (1,))):
        params = {"window": 16, "init": "random", "refine": refine}
        cell_meta = {**same, "cell": f"r{refine}", "label": f"r{refine}", "params": params}
        store.add(cell_meta, [picture(f"p{i}", accepted, 12.0) for i in range(2)])
    return store


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


def published(folder: Path) -> FakeStore:
    """A model of the paper with two of its rivals."""
    store = scored(paper_run("papers/sjdpp", "lumina-mgpt-7b-768", prompts=2))
    for name, accepted in (("eagle1", (3,) * 4), ("lantern", (7, 7))):
        cell_meta = {**store.cell("sjd").facts, "cell": name, "label": name, "method": name, "params": {}}
        store.add(cell_meta, [picture(f"p{i}", accepted, 16.0) for i in range(2)])
    return with_pictures(store, folder)


def approximate(variation: float) -> dict[str, Any]:
    return {"word": "approximate", "total_variation": variation, "greedy": None, "note": ""}


def rivals(folder: Path) -> FakeStore:
    """SJD draws every other picture right and M all of them, in 8 and 5 passes; G is not run."""
    store = paper_run("papers/sjdpp_exact")
    for name, right in (("sjd", 0), ("M", 1)):
        regions = ("smooth",) * 8 + ("object",) * 8
        records = [
            replace(one, sample=replace(one.sample, scores={"overall": float(i % 2 or right)}, regions=regions))
            for i, one in enumerate(store.records[name])
        ]
        store.add(store.cell(name).facts, records)
    store.cell("sjdpp").facts["verdict"] = approximate(0.0401)
    return store


def resolutions(folder: Path) -> FakeStore:
    """Pictures of two sizes and models, one of them the paper's, by more methods than there are colours."""
    store = empty()
    store.body["suite"] = {"name": "papers/sjdpp_resolution", "report": "sjdpp_resolution"}
    store.path = folder
    for backbone, side, accepted in (("embedded-image-8x8", 32, (1,) * 8), ("lumina-mgpt-7b-768", 768, (3,) * 4)):
        matplotlib.image.imsave(folder / f"{side}.png", np.full((side, side, 3), 0.5))
        pictures = [picture(f"p{i}", accepted, 12.0, output=f"{side}.png") for i in range(2)]
        for number in range(11):
            label = f"window={number}" if number else "SJD++"
            same = {"method": "sjdpp", "params": PUBLISHED, "sampling": SAMPLED, "task": "emoji_scenes"}
            store.add(meta(f"{number}-{backbone}", backbone=backbone, label=label, **same), pictures)
    return store


def swept(folder: Path) -> FakeStore:
    """Three values of tau, with the total variation of each."""
    store = paper_run("papers/sjdpp_tau", prompts=2)
    for tau, accepted, variation in ((0.0, (7, 7), 0.2), (float("inf"), (1,) * 8, 0.0)):
        params = json.loads(json.dumps({**PUBLISHED, "tau": tau}))
        changes = {"cell": f"tau{tau}", "params": params, "verdict": approximate(variation)}
        store.add({**store.cell("sjdpp").facts, **changes}, [picture(f"p{i}", accepted, 12.0) for i in range(2)])
    store.cell("sjdpp").facts["verdict"] = approximate(0.04)
    store.cell("M").facts["verdict"] = {"word": "unverified", "total_variation": None}
    return store


PAGES: dict[str, Callable[[Path], FakeStore]] = {
    "sjdpp": published,
    "sjdpp_diversity": seeded,
    "sjdpp_exact": rivals,
    "sjdpp_inits": lambda folder: with_pictures(scored(inits(), right=("random",)), folder),
    "sjdpp_refine": lambda folder: refined(),
    "sjdpp_resolution": resolutions,
    "sjdpp_tau": swept,
    "sjdpp_topk": lambda folder: top_ks(prompts=2),
    "sjdpp_windows": lambda folder: windows(prompts=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_it_was(name: str, tmp_path: Path) -> None:
    assert_page(PAGES[name](tmp_path), name)
