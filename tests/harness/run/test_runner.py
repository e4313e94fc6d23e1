"""Runs of real cells: which cells run, which are skipped, which rows fail, and the verdicts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch

from stridebench.harness.core.cache import Window
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.draft import Path as TokenPath
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.method import Claim
from stridebench.harness.core.run import Run, open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import component
from stridebench.harness.errors import StoreError, WeightsError
from stridebench.harness.plan import presets
from stridebench.harness.plan.compatibility import incompatibility
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.metrics import METRICS, totals, value
from stridebench.harness.record.store import Store
from stridebench.harness.registry import METHODS, TASKS, Registry
from stridebench.harness.run.executors import groups, serial
from stridebench.harness.run.loading import Options, Progress
from tests.support.cli import stride
from tests.support.one_by_one import OneByOne, register
from tests.support.runs import by_label, counted, finished, in_parts, plan_of, start


@pytest.fixture()
def plug(monkeypatch: pytest.MonkeyPatch) -> Callable[[Registry[Any], str, type[Any]], None]:
    """Register a class for one test."""

    return partial(register, monkeypatch)


FAILING = tuple(TASKS.get("tabular")().prompts()[1].tokens or ())


class Stumbles(OneByOne):
    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        if tuple(run.target.tokens[: len(FAILING)]) == FAILING and run.emitted == 2:
            raise RuntimeError("the third token of that prompt")
        return super().token(run, p)


class KnowsTheText(OneByOne):
    """Decodes greedily before its first step, and drafts what it knows."""

    def start(self, run: Run) -> Any:
        first = len(run.target)
        for _ in range(run.budget):
            run.target.append(run.target.forward()[0].argmax()[None])
        text = run.target.tokens[first:]
        run.target.sync(run.target.tokens[:first])
        return text

    def step(self, run: Run, state: Any) -> Acceptance:
        tokens = torch.tensor(state[: run.room - 1])
        last = run.target.forward(Draft(tokens))[-1].argmax()
        count = torch.tensor(len(tokens))
        return Acceptance(TokenPath(torch.arange(len(tokens)), count, count.double()), last)


class StumblesAtOnce(OneByOne):
    def start(self, run: Run) -> None:
        raise KeyError("nothing works")


class Biased(OneByOne):
    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        return p[0].argmax()


class BiasedOnLargeModels(OneByOne):
    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        return super().token(run, p) if p.shape[-1] <= 300 else p[0].argmin()


class OutOfVocabulary(OneByOne):
    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        return torch.tensor(p.shape[-1])


class NeedsAGrid(OneByOne):
    requirements = frozenset({Requirement.GRID})


class GreedyOnly(OneByOne):
    claim = Claim.SAME_GREEDY


READY = [spec.name for spec in presets.by_name().values() if spec.ready()]
LIKE_ANOTHER = (
    *("random-smollm2-135m", "random-llama-5m", "embedded-image-small", "embedded-image-8x8", "embedded-digits-s"),
    *("embedded-sudoku-masked-cosine", "embedded-sudoku-masked-log-linear"),
)
"""Backbones whose architecture and requirements are those of another one; their pairs run with ``-m audit``."""
MARKS = {name: pytest.mark.audit if name in LIKE_ANOTHER else () for name in READY}
PAIRS = [pytest.param(name, backbone, marks=MARKS[backbone]) for name in METHODS for backbone in READY]


@pytest.fixture(scope="module")
def loaded() -> Callable[[str], Any]:
    """Backbones that need no download, each loaded once."""
    models: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in models:
            tabular = "tabular" in presets.resolve(name).adapter
            models[name] = presets.load(name, "fp64" if tabular else "fp32", fetch=False)
        return models[name]

    return get


def prompt_of(backbone):
    """A prompt of the kind that a backbone reads."""
    spec = presets.resolve(backbone)
    tasks = {"mesh": "shapes", "speech": "utterances", "image": "digits" if "digits" in backbone else "emoji_scenes"}
    name = tasks.get(spec.modality())
    return TASKS.get(name)().prompts()[0] if name else Prompt("p", tokens=(1, 2, 1))


@pytest.mark.parametrize(("name", "backbone"), PAIRS)
def test_pairs_that_the_matrix_lists_run(name, backbone, loaded):
    method, model = METHODS.get(name)(), loaded(backbone)
    reason = incompatibility(method, presets.resolve(backbone))
    if reason is not None:
        assert all(need.name in reason for need in method.requirements - model.capabilities.meets)
        return
    draws = SeededDraws(0, "matrix", "prompt", 0, model.device)
    with torch.inference_mode():
        run = open_run(model, lambda text: presets.drafter(model, text), prompt_of(backbone), Sampling(1.0), 4, draws)
        toys = run.models.backbone.toy_drafters
        if not toys and any(untrained(kind, component, model) for kind, component in method.components):
            with pytest.raises(WeightsError, match="stride train"):
                decode(method, run)
            return
        tokens = decode(method, run).tokens
        assert len(tokens) == 4 or (0 < len(tokens) < 4 and tokens[-1] in model.capabilities.eos)


def untrained(kind, name, model):
    """Whether a component is absent for this backbone; a run skips such a cell with the error as its reason."""
    try:
        component(kind, name, model.name, model.fingerprint)
    except WeightsError:
        return True
    return False


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS[name]) for name in READY])
def test_a_loaded_backbone_meets_the_requirements_of_its_preset(name, loaded):
    assert loaded(name).capabilities.meets == presets.resolve(name).meets()


def test_an_unmet_requirement_is_a_skip_that_names_it(tmp_path, plug):
    plug(METHODS, "needs_a_grid", NeedsAGrid)
    rows = {row["name"]: row for row in stride("list", "matrix", "--json").document if row["backbone"] == "tabular"}
    assert rows["needs_a_grid"]["outcome"] == "cannot" and "GRID" in rows["needs_a_grid"]["reason"]
    words = ("--method", "needs_a_grid", "--method", "sjd", "--backbone", "tabular", "--task", "tabular")
    result = stride("run", *words, "--set", "prove=false", "--limit", 2, "--out", tmp_path / "run", "--json")
    assert (result.code, result.document["done"], result.document["skipped"]) == (0, 2, 1)
    rows = stride("report", tmp_path / "run", "--json").document
    assert [(row["label"], row["reason"]) for row in rows if row["status"] != "done"] == [
        ("needs_a_grid", "the backbone does not offer GRID")
    ]


def test_a_greedy_claim_is_skipped_above_zero_with_that_reason(tmp_path, plug):
    plug(METHODS, "greedy_only", GreedyOnly)
    plan = plan_of(methods=["greedy_only"], temperature=[0, 1])
    reasons = {cell.sampling.temperature: cell.skip for cell in plan.cells if cell.role == "method"}
    assert reasons[0] is None and "T = 0" in str(reasons[1])


@pytest.mark.parametrize("drafter", ["tabular", "self:layers=99"])
def test_an_absent_drafter_skips_its_cell_only(tmp_path, drafter):
    methods = ["prompt_lookup", {"name": "speculative", "drafter": drafter}]
    plan = plan_of(methods=methods, backbones=["random-llama-1m"], tasks=[{"name": "tabular", "limit": 2}])
    store = start(tmp_path / "run", plan)
    serial(plan, store, Options(fetch=False))
    rows = [(c.name, c.skip or store.cell(c.id).meta.reason) for c in plan.cells]
    assert [name for name, reason in rows if reason is None] == ["autoregressive", "prompt_lookup"]
    assert "drafter" in rows[-1][1]


def test_cells_with_the_same_reason_are_reported_once(tmp_path):
    messages = []

    class Recorded(Progress):
        def say(self, text: str) -> None:
            messages.append(text)

    methods = [{"name": "speculative", "drafter": "tabular"}]
    plan = plan_of(methods=methods, backbones=["random-llama-1m"], temperature=[0, 1])
    serial(plan, start(tmp_path / "run", plan), Options(fetch=False, progress=Recorded()))
    assert [text.partition(": ")[0] for text in messages if text.startswith("skipped")] == ["skipped 2 cells"]


def test_one_bad_prompt_is_one_failed_row_and_the_others_finish(tmp_path, plug):
    plug(METHODS, "stumbles", Stumbles)
    words = ("--method", "stumbles", "--method", "sjd", "--backbone", "tabular", "--task", "tabular")
    result = stride("run", *words, "--max-new-tokens", 6, "--set", "prove=false", "--out", tmp_path / "run", "--json")
    assert result.code == 1
    assert result.document == {
        "run": str(tmp_path / "run"),
        "cells": 3,
        "done": 3,
        "failed": 1,
        "malformed": 0,
        "skipped": 0,
    }
    cells = by_label(Store.open(tmp_path / "run"))
    rows = counted(cells["stumbles T=0"])
    assert rows["status"].to_dict() == {f"tabular/{i}": "failed" if i == 1 else "ok" for i in range(8)}
    assert "RuntimeError: the third token of that prompt" in rows.loc["tabular/1", "error"]
    assert "\n" not in rows.loc["tabular/1", "error"]
    assert set(counted(cells["sjd T=0"])["status"]) == {"ok"}


def test_failed_samples_are_counted_without_the_warm_up(tmp_path, plug):
    plug(METHODS, "stumbles_at_once", StumblesAtOnce)
    words = ("--method", "stumbles_at_once", "--backbone", "tabular", "--task", "tabular", "--limit", 2)
    result = stride("run", *words, "--set", "prove=false", "--out", tmp_path / "run", "--json")
    assert (result.code, result.document["failed"]) == (1, 2)


def test_a_token_outside_the_vocabulary_is_a_failed_row(tmp_path, plug):
    plug(METHODS, "out_of_vocabulary", OutOfVocabulary)
    cells = finished(tmp_path / "run", methods=["out_of_vocabulary"])
    rows = counted(cells["out_of_vocabulary T=0"])
    assert set(rows["status"]) == {"failed"} and rows["error"].str.contains("vocabulary").all()


def test_a_failed_baseline_leaves_the_others_without_agreement(tmp_path, monkeypatch):
    """After a resume too: there is nothing to agree with."""
    baseline = METHODS.get("autoregressive")
    sound = baseline.step

    def step(self: Any, run: Run, state: None) -> Acceptance:
        if tuple(run.target.tokens[: len(FAILING)]) == FAILING:
            raise RuntimeError("that prompt")
        return sound(self, run, state)

    monkeypatch.setattr(baseline, "step", step)
    cells = finished(tmp_path / "run", methods=["sjd"])
    assert counted(cells["autoregressive T=0"]).loc["tabular/1", "status"] == "failed"
    rows = counted(cells["sjd T=0"])
    assert set(rows["status"]) == {"ok"} and rows["agreement"].notna().sum() == 7
    assert rows.loc[["tabular/1"], ["agreement", "diverged_at"]].isna().all(axis=None)


@pytest.mark.slow
def test_a_biased_method_with_a_claim_of_exactness_is_broken(tmp_path, plug):
    plug(METHODS, "biased", Biased)
    words = ("--method", "biased", "--backbone", "tabular", "--task", "tabular", "--limit", 2, "-t", 1)
    result = stride("run", *words, "--max-new-tokens", 6, "--out", tmp_path / "run", "--json")
    assert result.code == 1 and result.document["failed"] == 0
    rows = stride("report", tmp_path / "run", "--json").document
    assert [(row["label"], row["verdict"]) for row in rows] == [
        ("autoregressive", "exact"),
        ("autoregressive (other seeds)", "exact"),
        ("biased", "broken"),
    ]
    assert rows[-1]["total_variation"] > 1e-3
    assert "broken" in stride("report", tmp_path / "run").out


def test_a_method_exact_on_small_models_only_is_broken_by_greedy_outputs(tmp_path, plug):
    plug(METHODS, "biased_on_large", BiasedOnLargeModels)
    tasks = [{"name": "tabular", "limit": 2}]
    cells = finished(
        tmp_path / "run",
        methods=["biased_on_large"],
        backbones=["random-llama-1m"],
        tasks=tasks,
        prove=True,
        greedy_check={"prompts": 2, "tokens": 4},
    )
    verdicts = {label: cell.meta.verdict for label, cell in cells.items()}
    assert verdicts["autoregressive T=0"].word == "exact"
    assert verdicts["autoregressive T=0"].greedy.startswith("2/2 equal")
    assert verdicts["biased_on_large T=0"].word == "broken"
    assert verdicts["biased_on_large T=0"].total_variation < 1e-12


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_a_method_of_each_kind_gets_the_verdict_of_its_claim(tmp_path):
    """Another law or the same, without a drafter and with one. `test_prove` proves every method."""
    methods = ["lantern", "prompt_lookup", "speculative"]
    cells = finished(tmp_path / "run", methods=methods, prove=True, tasks=[{"name": "tabular", "limit": 1}])
    for label, cell in cells.items():
        word = "approximate" if cell.meta.claim == "APPROXIMATE" else "exact"
        assert cell.meta.verdict.word == word, label


def test_prompts_longer_than_the_context_fail_and_the_others_finish(tmp_path):
    tasks = [{"name": "tabular", "length": [3, 80], "limit": 1}]
    cells = finished(tmp_path / "run", methods=["sjd"], tasks=tasks)
    store = Store.open(tmp_path / "run")
    states = {store.cell(name).meta.task_params["length"]: counted(store.cell(name)) for name in store.cells()}
    assert cells and set(states[3]["status"]) == {"ok"} and set(states[80]["status"]) == {"failed"}


def test_what_a_method_does_in_start_is_stored_and_charged(tmp_path, plug):
    """Six tokens in one step, after six passes in start: seven passes, and no gain."""
    plug(METHODS, "knows_the_text", dataclass(frozen=True)(KnowsTheText))
    cells = finished(tmp_path / "run", methods=["knows_the_text"], temperature=[0])
    cell = cells["knows_the_text T=0"]
    assert set(counted(cell)["start_nfe"]) == {6} and (counted(cell)["start_ns"] > 0).all()
    sums = totals(cell.samples, cell.steps)
    assert set(sums["steps"]) == {1} and set(sums["nfe"]) == {7}
    assert value(METRICS["scr"], sums) == pytest.approx(6 / 7)
    assert set(counted(cells["autoregressive T=0"])["start_nfe"]) == {0}


def test_cells_pair_by_seed_and_warm_ups_are_separate(tmp_path):
    cells = finished(tmp_path / "run", methods=["sjd"], temperature=[0, 1], repetitions=2, warmup=1)
    for cell in cells.values():
        assert len(cell.samples) == 8 * 2 + 1 and cell.samples["warmup"].sum() == 1
        rows = cell.samples[~cell.samples["warmup"].astype(bool)]
        assert sorted(set(rows["repetition"])) == [0, 1]
        assert rows["logprobs"].map(len).equals(rows["tokens"].map(len))
    greedy = counted(cells["sjd T=0"])
    assert set(greedy["agreement"]) == {1.0} and greedy["diverged_at"].isna().all()
    assert counted(cells["sjd T=1"])["agreement"].isna().all()
    one = cells["autoregressive T=1"].samples
    pairs = one[~one["warmup"].astype(bool)].groupby("prompt")["sha256"].nunique()
    assert pairs.max() == 2  # a repetition has seeds of its own
    same, floor = (counted(cells[f"autoregressive{words} T=1"])["sha256"].tolist() for words in ("", " (other seeds)"))
    assert sum(a == b for a, b in zip(same, floor, strict=True)) < len(same)  # so has the second set


def test_a_task_is_decoded_as_often_as_its_entry_says(tmp_path):
    tasks = [{"name": "tabular", "prompts_count": 2, "repetitions": 3}, {"name": "tabular", "prompts_count": 1}]
    store = start(tmp_path, plan := plan_of(methods=["sjd"], tasks=tasks, temperature=[1], warmup=0))
    serial(plan, store, Options())
    counts = [(store.cell(cell.id).meta.expected, len(counted(store.cell(cell.id)))) for cell in plan.cells]
    assert sorted(counts) == [(1, 1)] * 3 + [(6, 6)] * 3


@dataclass(frozen=True)
class Stopping(TASKS.get("tabular")):  # type: ignore[misc]
    """Outputs end where the tokens 2 and 0 were emitted; their text is their numbers."""

    stops = ("2 0",)


@pytest.mark.slow
def test_every_method_ends_an_output_at_the_stop_of_its_task(tmp_path, plug):
    """The token that completes a stop is the last one; without one an output has its budget."""
    plug(TASKS, "stopping", Stopping)
    methods = ["sjd", {"name": "speculative", "gamma": 4}]
    plain = finished(tmp_path / "a", methods=methods, tasks=["tabular"], temperature=[0, 1], max_new_tokens=12)
    cut = finished(tmp_path / "b", methods=methods, tasks=["stopping"], temperature=[0, 1], max_new_tokens=12)
    lengths = set()
    for label, cell in cut.items():
        for row in counted(cell).itertuples():
            text = " ".join(map(str, row.tokens))
            assert row.status == "ok" and "2 0" not in text[:-1], label
            assert text.endswith("2 0") or len(row.tokens) == 12
            lengths.add(len(row.tokens))
        if label.endswith("T=0"):
            whole = counted(plain[label])["tokens"]
            for prompt, tokens in counted(cell)["tokens"].items():
                assert list(whole[prompt])[: len(tokens)] == list(tokens)
    assert min(lengths) < 12


def test_a_resumed_run_ends_with_the_counts_of_an_uninterrupted_one(tmp_path, plug):
    """A baseline may be sealed already: its outputs are then read from the sealed cell."""
    data: dict[str, Any] = {"methods": ["sjd"], "temperature": [0, 1]}
    uninterrupted = finished(tmp_path / "whole", **data)
    plan = plan_of(**data)
    store = start(tmp_path / "parts", plan)

    in_parts(plan, store, (1, 9, 20))
    parts = by_label(store)
    assert parts.keys() == uninterrupted.keys()
    for label, cell in uninterrupted.items():
        columns = ["prompt", "repetition", "warmup", "status", "tokens", "agreement", "diverged_at", "sha256"]
        resumed, expected = parts[label].samples[columns], cell.samples[columns]
        assert resumed.astype(str).equals(expected.astype(str)), label


@pytest.mark.parametrize("same_weights", [True, False])
def test_a_run_does_not_resume_with_other_weights(tmp_path, same_weights):
    plan = plan_of(methods=["sjd"], tasks=[{"name": "tabular", "limit": 1}])
    store = start(tmp_path / "run", plan)
    serial(plan, store, Options())
    baseline, method = store.cells()
    shutil.rmtree(store.path / "cells" / method)
    if same_weights:
        serial(plan, store, Options())
        assert store.sealed(method)
        return
    store.update(baseline, CellMeta(fingerprint="0" * 64))
    with pytest.raises(StoreError, match=r"made with other weights of tabular .* start another run folder"):
        serial(plan, store, Options())
    assert not store.sealed(method)


def test_groups_are_backbones_and_types_in_order():
    plan = plan_of(methods=["sjd"], backbones=["tabular", {"name": "random-llama-1m", "dtype": ["fp32", "bf16"]}])
    assert groups(plan) == [("tabular", "fp64"), ("random-llama-1m", "fp32"), ("random-llama-1m", "bf16")]


def test_a_component_of_other_weights_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"fingerprint": "aaaa"}')
    folder = component("heads", str(tmp_path), "b", "aaaa")
    assert folder == component("heads", str(tmp_path)) == tmp_path
    with pytest.raises(WeightsError, match=r"trained for other weights \(aaaa\) than those of b \(cccc\)"):
        component("heads", str(tmp_path), "b", "cccc")
    (tmp_path / "config.json").write_text("{}")
    assert component("heads", str(tmp_path), "b", "cccc") == tmp_path


def test_log_probabilities_are_the_targets_for_each_token_of_the_output(tmp_path):
    """Computed again from the full sequence, at T = 1 for every temperature of the decode."""
    for label, cell in finished(tmp_path / "run", methods=["sjd"], temperature=[0, 1]).items():
        model = presets.load("tabular", cell.meta.dtype)
        rows = counted(cell)
        for prompt in TASKS.get("tabular")().prompts():
            row, start = rows.loc[prompt.id], len(prompt.tokens)
            ids = torch.tensor([*prompt.tokens, *row["tokens"]])
            logits = model.cache().extend(Window(ids, torch.arange(len(ids)), 0, None, len(ids))).logits
            expected = logits.double().log_softmax(-1)[start - 1 : -1].gather(1, ids[start:, None])[:, 0]
            assert list(row["logprobs"]) == pytest.approx(expected.tolist(), abs=1e-9), label
