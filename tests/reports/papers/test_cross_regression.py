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
import pandas as pd
import pytest
import torch
import yaml
from click.testing import CliRunner
from safetensors.torch import save_file

from stridebench.harness import discover
from stridebench.harness.cli.main import stride
from stridebench.harness.discover import plain
from stridebench.harness.plan import presets, resolve
from stridebench.harness.plan.expand import expand
from stridebench.harness.record.store import Store
from stridebench.harness.registry import RECIPES
from stridebench.reports.papers import cross_regression as papers_cross_energies
from stridebench.reports.papers import report
from stridebench.reports.papers.cross_regression import beside, energies, layers_of, options, parameters
from stridebench.reports.papers.drawing import FIGURES, SHEETS
from stridebench.reports.papers.engine import lines_of, with_options
from stridebench.reports.papers.paper_files import papers, printed
from stridebench.reports.text_table import UNMEASURED
from tests.support.fake_store import FakeStore, empty, meta, record, step
from tests.support.paper_runs import run_of

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


def sheets(store: FakeStore, name: str) -> list[Any]:
    """Return a frame, indexed by the first two columns, and the table with title and notes, for each table."""
    frames = []
    for sheet in report.printed_table(name, run_of(store)):
        frame = pd.DataFrame(sheet.rows, columns=[column.title for column in sheet.columns])
        frames.append((frame.set_index(["row", "figure"]).sort_index(), sheet))
    return frames


def test_redrawn_slots_have_rows_and_whisper_has_its_errors() -> None:
    store = run()
    name = add(store, "whisper-base", "utterances", outputs((3, 3, 3), 5.0), redraft="placeholders")
    wer = {"value": 0.03, "low": 0.02, "high": 0.05, "n": 6}
    store.sealed_cells[name].facts["set_scores"] = {"corpus_wer": wer}
    [(frame, _)] = sheets(store, "cross_regression_table4")
    row = frame.loc[(f"whisper-base, {name}", "utterances, T = 0.6")]
    assert row["tokens, measured"] == "4.00" and row["score, measured"] == "0.030 [0.020, 0.050]"


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


def test_table_17_has_rows_by_model_temperature_and_benchmark() -> None:
    store = run()
    add(store, "qwen2.5-7b", "gsm8k", outputs((3,) * 3, 12.0))
    add(store, "qwen2.5-7b", "gsm8k", outputs((5, 5), 12.0), layout="sequential")
    add(store, "smollm2-135m", "gsm8k", outputs((1,) * 6, 12.0))
    add(store, "embedded-code", "continuation", outputs((2,) * 4, 12.0))
    add(store, "whisper-base", "utterances", outputs((2,) * 4, 12.0))
    ((frame, _),) = sheets(store, "cross_regression_table17")
    row = frame.loc[("Qwen 2.5 7B", "GSM8K, T = 0.6")]
    assert row["tokens, printed"] == "4.66" and row["tokens, measured"].startswith("4.00")
    assert row["wall speed-up"].startswith("3.33") and row["n"] == "6"  # 10 ms against 12 / 4
    assert frame.loc[("Qwen 2.5 7B", "GSM8K, T = 0"), "tokens, measured"] == UNMEASURED
    assert frame.loc[("Qwen 2.5 7B", "HumanEval, T = 0.6"), "tokens, measured"] == UNMEASURED
    unprinted = frame[frame["tokens, printed"] == "-"]["tokens, measured"]
    assert [text[:4] for text in unprinted] == ["3.00", "2.00"], (
        "our own backbones, the sequential layout and speech not"
    )


def test_table_14_has_the_consistency_model_of_each_benchmark() -> None:
    store = run(t=0.0)
    add(store, "llama2-7b", "gsm8k", outputs((3,) * 3, 5.0))
    for model, task in (("math", "gsm8k"), ("code", "humaneval"), ("sharegpt", "mt_bench")):
        add(store, f"cllm-7b-{model}", task, outputs((1,) * 6, 5.0), "cllm")
    (frame, sheet), *_ = sheets(store, "cross_regression_table14")
    of_cllm = frame[[row.startswith("CLLM") for row, _ in frame.index]]
    assert of_cllm["tokens, printed"].tolist() == ["1.10", "3.00", "2.40"]
    assert of_cllm["tokens, measured"].tolist() == ["2.00", "2.00", "2.00"]
    assert any("one a benchmark" in note for note in sheet.notes)


def test_captions_say_the_switches_that_the_paper_names_and_that_it_defines_neither() -> None:
    layouts = papers()["cross_regression"].tables
    for number, what in ((7, "look-ahead"), (8, "look-ahead"), (9, "bidirectional mask"), (10, ""), (11, "")):
        layout = layouts[f"cross_regression_table{number}"]
        assert what in layout.caption and any("does not say what" in note for note in layout.first_notes) == bool(what)


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


def test_whisper_is_in_table_4_alone() -> None:
    store = run(t=1.0)
    add(store, "whisper-small-hub", "librispeech", outputs((1,) * 6, 12.0))
    add(store, "whisper-base", "utterances", outputs((2,) * 4, 12.0))
    ((frame, _),) = sheets(store, "cross_regression_table4")
    assert frame.loc[("Whisper Small", "T = 1"), "tokens, printed"] == "2.1"
    assert frame.loc[("Whisper Small", "T = 1"), "tokens, measured"].startswith("2.00")
    assert frame["tokens, measured"].str.startswith("3.00").sum() == 1
    assert sheets(store, "cross_regression_table17") == []


def test_tokens_of_a_masked_model_are_those_of_its_completion() -> None:
    """12 positions in 4 passes, of which 4 to 9 come before the end of text, its id included."""
    store = run()
    add(store, "llama3-8b", "gsm8k", outputs((3,) * 3, 12.0))
    records = outputs((2,) * 4, 10.0)
    records = [replace(one, sample=replace(one.sample, completion=4 + i)) for i, one in enumerate(records)]
    diffusion = meta("d", backbone="llada-8b", method="masked_diffusion", params={"steps": 128}, task="gsm8k")
    store.add({**diffusion, "sampling": {"temperature": 0.6}}, records)
    ((frame, sheet),) = sheets(store, "cross_regression_table3")
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


def test_a_published_model_has_its_own_rows() -> None:
    ((frame, sheet),) = sheets(grid("gsm8k", "qwen2.5-7b"), "cross_regression_table12")
    assert "printed of qwen2.5-7b" in sheet.title
    assert frame.loc[("threshold 8, smoothing 0.05", ""), "tokens, printed"] == "5.46"
    assert sheets(grid("gsm8k", "qwen2.5-7b"), "cross_regression_table13") == [], "GSM8K is not HumanEval"


def test_table_15_is_of_steps_and_of_passes() -> None:
    store = run()
    add(store, "llama2-7b", "gsm8k", outputs((5, 5), 20.0, passes=2), layout="sequential")
    add(store, "llama2-7b", "gsm8k", outputs((3,) * 3, 12.0))
    ((frame, _),) = sheets(store, "cross_regression_table15")
    tokens = frame.loc["GSM8K"]["tokens, measured"].str[:4].to_dict()
    assert tokens == {
        "sequential, tokens a step": "6.00",
        "sequential, tokens a pass": "3.00",
        "joint, tokens a pass": "4.00",
    }
    printed_of = frame.loc["GSM8K"]["tokens, printed"].to_dict()
    assert list(printed_of.values()) == ["3.47", "2.54", "5.07"]


def layered() -> FakeStore:
    store = run("cross_regression_layers", t=0.0)
    for which, accepted in (("", (5, 5)), ("-l0-0", (0,) * 12), ("-l1-3", (2,) * 4), ("-l1-4", (3,) * 3)):
        for layout in ("sequential", "joint"):
            changes = {"layout": layout, "adapter": f"cross-regression{which}"}
            add(store, "embedded-code", "continuation", outputs(accepted, 12.0), **changes)
    return store


@pytest.mark.slow
def test_layers_are_matched_by_the_nearest_share() -> None:
    """Of five layers, 0 is a fifth and matches 0-7 of 32, a quarter; 1-3 matches 8-23, and 1-4 matches 8-31."""
    ((frame, _),) = sheets(layered(), "cross_regression_table16")
    tokens = frame.xs("joint", level=1)["tokens, measured"].str[:4]
    at = {"Full (baseline), 32 of 32": "6.00", "Layers 0-7, 8 of 32": "1.00", "Layers 8-23, 16 of 32": "3.00"}
    at["Layers 8-31, 24 of 32"] = "4.00"
    assert {row: tokens[row] for row in at} == at
    assert (tokens == UNMEASURED[:4]).sum() == 14
    (group,) = run_of(layered()).groups
    rows = with_options(group.rows, options)
    assert beside(rows, (0, 3)) is None and beside(rows, (8, 23)) == (1, 3)
    assert layers_of("Layers 12-15, 4 of 32") == (12, 15) and layers_of("Full (baseline)") is None


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


def test_the_gain_of_smoothing_is_against_the_cell_that_differs_in_beta_alone() -> None:
    store = run("cross_regression_smoothing")
    add(store, "embedded-code", "continuation", outputs((2,) * 4, 12.0))
    add(store, "embedded-code", "continuation", outputs((3,) * 3, 12.0), beta=0.5)
    add(store, "embedded-code", "continuation", outputs((1,) * 6, 12.0), beta=0.5, layout="sequential")
    (sheet,) = papers_cross_energies.table(run_of(store))
    gains = [row[-2:] for row in sheet.rows]
    assert gains[0] == ["1", "-"] and gains[1][0].startswith("1.50") and gains[2] == [UNMEASURED] * 2
    values = np.concatenate([np.repeat(-1.0 + 0.1 * np.arange(6), 4), np.full(24, -3.0)])
    assert float(gains[1][1]) == pytest.approx(0.5 * abs(values.mean()) / (values.std() * 0.5), rel=0.05)


def test_runs_without_energies_have_no_such_sheet() -> None:
    store = run()
    name = add(store, "embedded-code", "continuation", outputs((3,) * 3, 12.0))
    del store.cell(name).steps["energies"]
    assert list(papers_cross_energies.table(run_of(store))) == []
    assert list(FIGURES["cross_regression_energies"](run_of(store))) == []


def test_sweeps_differ_in_one_option() -> None:
    (figure,) = FIGURES["cross_regression_thresholds"](run_of(grid()))
    sweeps = {curve.get_label(): curve[0].get_xdata().tolist() for curve in figure.axes[0].containers}
    assert sweeps == {f"mode det, {line}, layout joint": [0.0, 4.0, 8.0] for line in ("beta 0.05", "beta 0.2")}
    assert list(FIGURES["cross_regression_windows"](run_of(grid()))) == []


def test_sizes_are_read_from_the_run() -> None:
    store: Any = run()
    assert parameters(store, "llama2-70b") == pytest.approx(68.98e9)
    assert parameters(store, "embedded-code") == pytest.approx(1.05e6)
    assert parameters(store, "tabular") is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "drawn"),
    [(grid(), {"thresholds", "smoothing"}), (layered(), {"layers"})],
    ids=["thresholds", "layers"],
)
def test_a_suite_ends_with_its_figures(store: Any, drawn: set[str], tmp_path: Path) -> None:
    written = report.write(store, tmp_path)
    assert {path.stem.removeprefix("papers-") for path in written if path.suffix == ".png"} == drawn
    assert "Cross-Regression, Table 1" in (tmp_path / "papers.md").read_text()


def test_fig_1_has_a_point_a_backbone() -> None:
    store: Any = run("cross_regression_scaling")
    for backbone, accepted in (("smollm2-135m", (1,) * 6), ("llama2-7b", (3,) * 3)):
        add(store, backbone, "gsm8k", outputs(accepted, 12.0))
    (figure,) = FIGURES["cross_regression_fig1"](run_of(store))
    assert [text.get_text() for text in figure.axes[0].texts] == ["smollm2-135m", "llama2-7b"]
    assert list(FIGURES["cross_regression_fig1"](run_of(run("cross_regression_scaling")))) == []


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
    plan = {
        "report": "cross_regression_smoothing",
        "methods": [{**same, "layout": "sequential", "beta": [0.0, 0.5]}, {**same, "layout": "joint"}],
        "backbones": ["embedded-code"],
        "tasks": [{"name": "continuation", "limit": 2}],
        "temperature": [1.0],
        "max_new_tokens": 16,
        "prove": False,
        "greedy_check": {"prompts": 0},
        "warmup": 0,
    }
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(plan))
    what = ["run", str(tmp_path / "suite.yaml"), "--offline", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(stride, what, catch_exceptions=False)
    assert done.exit_code == 0, done.output
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
    """Llama 3 in the decodings of Table 3, a diffusion model, and SmolLM2, which the paper lacks."""
    store = run()
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "build"),
    [("cross_regression", decodings), ("cross_regression_thresholds", grid), ("cross_regression_layers", layered)],
)
def test_the_tables_equal_those_of_version_0_1(name: str, build: Callable[[], FakeStore]) -> None:
    """No run of the paper's suites is stored. Commit f31d04a wrote the pages from these made-up runs.

    Renewed since: rates have exact binomial intervals, other figures those of a studentized bootstrap, GSM8K names its
    rule, and masked models their two figures.
    """
    store, golden = build(), Path(__file__).parent / "golden" / f"{name}.md"
    run = run_of(store)
    sheets = []
    for table in report.contents_of(store).sheets:  # type: ignore[arg-type]  # what reports read of a store
        sheets += SHEETS[table](run) if table in SHEETS else report.printed_table(table, run)
    assert report.markdown(sheets, []) == golden.read_text(encoding="utf-8")
