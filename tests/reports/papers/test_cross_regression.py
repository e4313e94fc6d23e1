"""Cross-Regression's report: printed numbers, and measured ones from a made-up store."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from math import exp
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

from stridebench.harness import discover
from stridebench.harness.discover import plain
from stridebench.harness.plan import presets, resolve
from stridebench.harness.plan.expand import expand
from stridebench.harness.record.store import Store
from stridebench.harness.registry import RECIPES
from stridebench.reports.papers import cross_regression as papers_cross_energies
from stridebench.reports.papers import report
from stridebench.reports.papers.cross_regression import energies, parameters
from stridebench.reports.papers.drawing import FIGURES
from stridebench.reports.papers.filled_tables import lines_of
from stridebench.reports.papers.paper_files import papers, printed
from tests.support.cli import stride
from tests.support.fake_store import FakeStore, empty, meta, record, step
from tests.support.paper_runs import assert_page, frame_of, run_of

OPTIONS = {
    **{"adapter": "cross-regression", "horizon": 32, "layout": "joint", "mode": "std", "beta": 0.0, "tau": 0.0},
    **{"noise": "logU", "clip": False, "carry": True, "redraft": "none", "bonus": True, "draft_top": 0},
}
ADAPTERS = {"layers": 18, "layers_real": 17}
"""Adapters of single layers in a variant of the suite."""
IMPOSSIBLE = -1e30


def outputs(accepted: tuple[int, ...], ms: float, passes: int = 1, score: str = "", right: int = 3) -> list[Any]:
    """Six prompts of twelve tokens each; the first ``right`` prompts have the score 1."""
    rows = []
    for i in range(6):
        energy = (-1.0 + 0.1 * i, -3.0, IMPOSSIBLE)
        steps = [replace(step(one, 4, ms=ms, energies=energy), nfe=passes) for one in accepted]
        scores = {score: float(i < right)} if score else {}
        rows.append(record(f"p{i}", steps, agreement=None, scores=scores))
    return rows


def completed(records: list[Any]) -> list[Any]:
    """The same outputs, none of which has an end of text before its last token."""
    return [replace(one, sample=replace(one.sample, completion=len(one.sample.tokens))) for one in records]


def run(suite_name: str = "cross_regression", t: float = 0.6) -> FakeStore:
    store = empty()
    store.body["suite"] = {"name": f"papers/{suite_name}", "report": suite_name}
    store.body["sizes"] = {name: spec.size for name, spec in presets.by_name().items()}
    store.body["temperature"] = t
    return store


def add(store: FakeStore, backbone: str, task: str, records: list[Any], method: str = "", **changes: Any) -> str:
    """Add a cell of Cross-Regression with these options, or of another method, and its baseline where it is missing."""
    t = store.body["temperature"]
    base = f"{backbone}-{task}-{t:g}"
    sampling = {"temperature": t, "top_k": 0, "top_p": 1.0}
    same = {"backbone": backbone, "task": task, "sampling": sampling, "baseline": base}
    if base not in store.sealed_cells:
        plain = outputs((0,) * 12, 10.0, score=SCORES.get(task, ""))
        plain = [replace(one, steps=tuple(replace(cycle, energies=()) for cycle in one.steps)) for one in plain]
        store.add(meta(base, role="baseline", **same), plain)
    params = {} if method else {**OPTIONS, **changes}
    name = f"{base}-{method}{'-'.join(f'{key}={value}' for key, value in changes.items())}"
    store.add(meta(name, method=method or "cross_regression", params=params, **same), records)
    return name


SCORES = {"gsm8k": "exact_match_flexible", "humaneval": "pass@1"}


def test_every_printed_model_is_a_preset() -> None:
    paper = papers()["cross_regression"]
    preset = paper.preset
    assert set(paper.models.values()) <= set(presets.by_name())
    assert preset("DS LLaMa 3 8B") == preset("DeepSeek-R1-Distill-Llama-8B") == "deepseek-r1-distill-8b"
    with pytest.raises(KeyError):
        preset("LLaMA-3 70B")


TABLES = [name for name, layout in papers()["cross_regression"].tables.items() if layout.columns]


@pytest.mark.parametrize("name", TABLES)
def test_every_printed_number_is_a_fact(name: str) -> None:
    """Return all values of a printed row except means, values relative to another row, and names of the row."""
    rows = printed(name).rows
    lines = lines_of(printed(name))
    facts = [text for line in lines for text in line.printed.values() if text]
    labels = ("Model", "Size", "Temp", "Base", "Framework", "Method", "Sampling", "Threshold", "Smoothing", "Benchmark")
    skipped = (*labels, "Layer", "#Layers", "Mean", "notes")
    figures = [c for c in rows.columns if not c.startswith(skipped) and "Rel." not in c]
    printed_values = [str(row[c]) for _, row in rows.iterrows() for c in figures]
    assert sorted(facts) == sorted(printed_values) and len(facts) > 5
    assert {line.model for line in lines} <= set(presets.by_name())


@pytest.mark.parametrize("number", [7, 10, 14])
def test_every_printed_row_of_a_table_has_a_cell_in_the_authors_suite(number: int) -> None:
    cells = expand(resolve.of_command("papers/cross_regression --only real")).cells
    there = {(cell.backbone, cell.name, cell.task.name, cell.sampling.temperature) for cell in cells}
    for line in lines_of(printed(f"cross_regression_table{number}")):
        chosen: Any = {"temperature": 0, **(line.selection or {})}
        named = chosen.get("backbone", line.model)
        models = {named} if isinstance(named, str) else set(named)
        key = (chosen["method"], chosen["task"], float(chosen["temperature"]))
        assert {key} & {cell[1:] for cell in there if plain(cell[0]) in models}, line.labels


def test_tokens_of_a_masked_model_are_those_of_its_completion() -> None:
    """12 positions in 4 passes, of which 4 to 9 come before the end of text, its id included."""
    store = run()
    add(store, "llama3-8b", "gsm8k", outputs((3,) * 3, 12.0))
    records = outputs((2,) * 4, 10.0)
    records = [replace(one, sample=replace(one.sample, completion=4 + i)) for i, one in enumerate(records)]
    diffusion = meta("d", backbone="llada-8b", method="masked_diffusion", params={"steps": 128}, task="gsm8k")
    store.add({**diffusion, "sampling": {"temperature": 0.6}}, records)
    (sheet,) = report.printed_table("cross_regression_table3", run_of(store))
    frame = frame_of(sheet, 2).sort_index()
    row = frame.loc[("LLaDA (T=128)", "GSM8K")]
    assert row["tokens, measured"].startswith("1.62"), "39 tokens in 24 steps"
    assert row["canvas / passes (masked)"] == "3.00"
    assert any("completion / steps" in note for note in sheet.notes)


def grid(task: str = "continuation", backbone: str = "embedded-code") -> FakeStore:
    store = run("cross_regression_thresholds", t=0.1)
    for tau, accepted in ((0.0, (1,) * 6), (-4.0, (2,) * 4), (-8.0, (3,) * 3)):
        for beta in (0.05, 0.2):
            add(store, backbone, task, outputs(accepted, 12.0), mode="det", clip=True, tau=tau, beta=beta)
    return store


def layered() -> FakeStore:
    store = run("cross_regression_layers", t=0.0)
    for which, accepted in (("", (5, 5)), ("-l0-0", (0,) * 12), ("-l1-3", (2,) * 4), ("-l1-4", (3,) * 3)):
        for layout in ("sequential", "joint"):
            changes = {"layout": layout, "adapter": f"cross-regression{which}"}
            add(store, "embedded-code", "continuation", outputs(accepted, 12.0), **changes)
    return store


def test_energies_of_a_cell_equal_those_by_hand() -> None:
    """Six prompts of three steps: E_1 = -1 + i / 10, E_2 = -3, and one draft that the target cannot emit."""
    store = run()
    name = add(store, "embedded-code", "continuation", outputs((3,) * 3, 12.0))
    drafts = energies(store.cell(name))  # type: ignore[arg-type]  # what reports read of a store
    assert len(drafts) == 54 and drafts["place"].tolist()[:3] == [1, 2, 3]
    assert drafts["following"].tolist()[0] == -3.0 and drafts["following"].isna().sum() == 18
    first = np.array([-1.0 + 0.1 * i for i in range(6)])
    values = np.concatenate([np.repeat(first, 3), np.full(18, -3.0)])
    (sheet,) = papers_cross_energies.table(run_of(store))
    line = dict(zip([column.title for column in sheet.columns], sheet.rows[0], strict=True))
    assert line["drafts tested"] == "54" and line["impossible"] == "33.3%"
    assert line["mu, nat"].startswith(f"{values.mean():.3f}") and line["sigma, nat"] == f"{values.std():.3f}"
    assert line["L, accepted a step"].startswith("3.00") and line["L_beta / L_0"] == "1"


def test_runs_without_energies_have_no_such_sheet() -> None:
    store = run()
    name = add(store, "embedded-code", "continuation", outputs((3,) * 3, 12.0))
    del store.cell(name).steps["energies"]
    assert list(papers_cross_energies.table(run_of(store))) == []
    assert list(FIGURES["cross_regression_energies"](run_of(store))) == []


def test_sizes_are_read_from_the_run() -> None:
    store: Any = run()
    assert parameters(store, "llama2-70b") == pytest.approx(68.98e9)
    assert parameters(store, "embedded-code") == pytest.approx(1.05e6)
    assert parameters(store, "tabular") is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_of_layers_can_be_trained(name: str) -> None:
    discover.load_all()
    plan = expand(resolve.of_command(f"papers/cross_regression --only {name}"))
    adapters = {cell.config.params.get("adapter") for cell in plan.cells} - {None, "cross-regression"}
    discover.load_recipes()
    for cell in plan.cells:
        adapter = cell.config.params.get("adapter")
        if adapter in adapters:
            known = ("llama2-7b",) if name.endswith("_real") else ("embedded-code", "smollm2-135m")
            assert cell.backbone in known and (name.endswith("_real") or f"{adapter}-{cell.backbone}" in RECIPES)
    assert len(adapters) == ADAPTERS[name]


def untrained(folder: Path) -> Path:
    """An adapter of random numbers on one projection of embedded-code."""
    backbone = presets.load("embedded-code", "fp32")
    folder.mkdir()
    random = torch.Generator().manual_seed(0)
    key = "base_model.model.model.layers.2.self_attn.q_proj.lora_"
    tensors = {
        f"{key}{side}.weight": torch.randn(shape, generator=random)
        for side, shape in (("A", (4, 128)), ("B", (128, 4)))
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    how = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(how))
    (folder / "config.json").write_text(json.dumps({"backbone": backbone.name, "fingerprint": backbone.fingerprint}))
    return folder


@pytest.mark.slow
def test_a_real_run_keeps_energies_that_explain_what_it_accepted(tmp_path: Path) -> None:
    """With beta = 0 the probability of k accepted drafts is the product of min(1, exp E); ``expected`` is their sum."""
    same = {"name": "cross_regression", "adapter": str(untrained(tmp_path / "adapter")), "horizon": 4}
    methods = [{**same, "layout": "sequential", "beta": [0.0, 0.5]}, {**same, "layout": "joint"}]
    plan = {
        **{"report": "cross_regression_smoothing", "methods": methods, "backbones": ["embedded-code"]},
        **{"tasks": [{"name": "continuation", "limit": 2}], "temperature": [1.0], "max_new_tokens": 16},
        **{"prove": False, "greedy_check": {"prompts": 0}, "warmup": 0},
    }
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(plan))
    assert stride("run", tmp_path / "suite.yaml", "--offline", "--out", tmp_path / "run").code == 0
    store = Store.open(tmp_path / "run")
    explained_steps = 0
    for cell in map(store.cell, store.cells()):
        options = cell.meta.params
        for _, one in cell.steps.iterrows():
            step_energies = list(one["energies"])
            assert len(step_energies) >= one["tested"] and bool(step_energies) == bool(one["tested"])
            if step_energies and options["beta"] == 0:
                chances = accumulate((min(1.0, exp(energy)) for energy in step_energies), mul)
                assert one["expected"] == pytest.approx(sum(chances), abs=1e-4)
                explained_steps += any(energy < -0.1 for energy in step_energies)
    assert explained_steps > 4
    written = {path.name for path in (tmp_path / "run").rglob("papers-*")}
    assert {"papers-cross_regression_energies.csv", "papers-energies.png", "papers-smoothing.png"} <= written


def decodings() -> FakeStore:
    """Llama 3 in the decodings of Table 3, CLLM, a diffusion model, speech, and models which the paper lacks."""
    store = run(t=0.0)
    for model, task in (("math", "gsm8k"), ("code", "humaneval"), ("sharegpt", "mt_bench")):
        add(store, f"cllm-7b-{model}", task, outputs((1,) * 6, 5.0), "cllm")
    store.body["temperature"] = 0.6
    add(store, "whisper-small-hub", "librispeech", outputs((1,) * 6, 12.0))
    name = add(store, "whisper-base", "utterances", outputs((3, 3, 3), 5.0), redraft="placeholders")
    store.sealed_cells[name].facts["set_scores"] = {"corpus_wer": {"value": 0.03, "low": 0.02, "high": 0.05, "n": 6}}
    add(store, "llama2-7b", "gsm8k", outputs((5, 5), 20.0, passes=2), layout="sequential")
    add(store, "llama2-7b", "gsm8k", outputs((3,) * 3, 12.0))
    add(store, "embedded-code", "continuation", outputs((2,) * 4, 12.0))
    relaxed: dict[str, Any] = {"mode": "det", "clip": True, "tau": -14.0, "beta": 0.05}
    add(store, "llama3-8b", "gsm8k", outputs((3,) * 3, 12.0, score="exact_match_flexible", right=3))
    add(store, "llama3-8b", "gsm8k", outputs((5,) * 2, 12.0, score="exact_match_flexible", right=2), **relaxed)
    add(store, "llama3-8b", "gsm8k", outputs((0, 1) * 4, 12.0), "prompt_lookup")
    add(store, "smollm2-135m", "gsm8k", outputs((0, 1) * 4, 12.0), "medusa")
    add(store, "smollm2-135m", "gsm8k", outputs((0, 1) * 4, 12.0), **relaxed)
    diffusion = meta("d", backbone="llada-8b", method="masked_diffusion", params={"steps": 128}, task="gsm8k")
    store.add(
        {**diffusion, "sampling": {"temperature": 0.6}},
        completed(outputs((2,) * 4, 10.0, score="exact_match_flexible", right=1)),
    )
    return store


def smoothed() -> FakeStore:
    """Cells that differ in beta alone, and one that differs in its layout too."""
    store = run("cross_regression_smoothing")
    add(store, "embedded-code", "continuation", outputs((2,) * 4, 12.0))
    add(store, "embedded-code", "continuation", outputs((3,) * 3, 12.0), beta=0.5)
    add(store, "embedded-code", "continuation", outputs((1,) * 6, 12.0), beta=0.5, layout="sequential")
    return store


PAGES: dict[str, Callable[[], FakeStore]] = {
    "cross_regression": decodings,
    "cross_regression_thresholds": grid,
    "cross_regression_layers": layered,
    "cross_regression_published": lambda: grid("gsm8k", "qwen2.5-7b"),
    "cross_regression_smoothing": smoothed,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_it_was(name: str) -> None:
    assert_page(PAGES[name](), name)
