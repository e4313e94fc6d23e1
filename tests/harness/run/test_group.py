"""Cells run in batches: the decodes of every batch size, failures, resumes and verdicts."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from stridebench.harness.backbones.slots.cache import SlotCache
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.run import Run
from stridebench.harness.machine import consumption
from stridebench.harness.plan import presets
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.store import Store
from stridebench.harness.registry import METHODS
from stridebench.harness.run import attempt
from stridebench.harness.run.loading import WarmModels
from stridebench.methods.drafters.jacobi_window import JacobiWindow
from stridebench.reports.summary import summarise
from tests.support.runs import by_label, counted, finished, in_parts, plan_of, start


def by_batch(store: Store) -> dict[str, SealedCell]:
    cells = map(store.cell, store.cells())
    return {f"{c.meta.label} T={c.meta.sampling.temperature:g} B={c.meta.batch}": c for c in cells}


def table(cell: SealedCell) -> Any:
    """The records of a cell except its times and the number of rows served together."""
    steps = cell.steps[[name for name in cell.steps if not name.endswith("_ns") and name not in ("served", "switches")]]
    lists = {name: steps[name].map(list) for name in ("ranks", "energies")}
    steps = steps.assign(**lists, loss=steps["loss"].astype(str))  # a missing number is not equal to itself
    order = ["prompt", "repetition", "step"]
    texts = cell.samples[["prompt", "repetition", "status", "tokens", "agreement", "sha256"]].astype(str)
    counted_rows = ~cell.samples["warmup"].astype(bool)
    return (
        texts[counted_rows].sort_values(order[:2]).values.tolist(),
        steps[~steps["warmup"].astype(bool)].sort_values(order).values.tolist(),
    )


def test_a_sweep_runs_the_same_decodes_at_every_batch(tmp_path: Path) -> None:
    """8 prompts: batches of 3 end with one of 2, and one of 16 holds all."""
    finished(tmp_path / "run", methods=["sjd", "speculative"], temperature=1, batch=[1, 3, 16], max_new_tokens=4)
    cells = by_batch(Store.open(tmp_path / "run"))
    assert len(cells) == 3 * 4
    for name, cell in cells.items():
        alone = cells[name.rpartition("=")[0] + "=1"]
        assert table(cell) == table(alone), name
        assert len(counted(cell)) == cell.meta.expected == 8
    steps = cells["autoregressive T=1 B=3"].steps
    most = steps[~steps["warmup"].astype(bool)].groupby("prompt")["served"].max()
    assert most.to_dict() == {f"tabular/{i}": 3 if i < 6 else 2 for i in range(8)}
    assert cells["sjd T=1 B=16"].steps["served"].max() == 8
    assert set(cells["sjd T=1 B=1"].steps["served"]) == {1}


COPIERS: list[dict[str, Any]] = [
    {"name": "suffix", "factor": 4.0},
    {"name": "sam", "bias": 0},
    {"name": "ngram_mod", "ngram": 2, "shortest": 1},
]


@pytest.mark.parametrize(("batch", "copiers"), [(1, COPIERS[:1]), (3, COPIERS)])
def test_a_resumed_run_rebuilds_the_outputs_that_a_method_remembers(
    tmp_path: Path, batch: int, copiers: list[dict[str, Any]]
) -> None:
    """Five prompts; with the outputs of earlier prompts more is drafted, and at T = 0 the same is emitted."""
    remembering = [{**one, "memory": "run"} for one in copiers]
    data: dict[str, Any] = {"methods": remembering, "batch": batch, "tasks": [{"name": "tabular", "limit": 5}]}
    whole = finished(tmp_path / "whole", **data)
    plan = plan_of(**data)
    store = start(tmp_path / "parts", plan)
    in_parts(plan, store, (3, 4))
    parts = by_label(store)
    assert parts.keys() == whole.keys()
    assert all(table(parts[name]) == table(whole[name]) for name in whole)
    cold = finished(tmp_path / "cold", **{**data, "methods": copiers})
    warm = [name for name in whole if "memory=run" in name and name.endswith("T=0")]
    assert len(warm) == len(copiers)
    for name in warm:
        alone = cold[name.replace(" memory=run", "")]
        assert whole[name].steps["drafted"].sum() > alone.steps["drafted"].sum()
        assert table(whole[name])[0] == table(alone)[0]


def test_a_decode_never_remembers_its_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither another repetition nor the warm-up, which draws the numbers of the first repetition."""
    seen: list[tuple[str, list[tuple[int, ...]]]] = []
    sound = attempt.earlier_outputs

    def watched(group: Any, cell: Any, prompt: Any, repetition: int) -> list[tuple[int, ...]]:
        seen.append((prompt.id, sound(group, cell, prompt, repetition)))
        return seen[-1][1]

    monkeypatch.setattr(attempt, "earlier_outputs", watched)
    cells = finished(
        tmp_path / "run",
        methods=[{"name": "suffix", "memory": "run"}],
        tasks=[{"name": "tabular", "limit": 3}],
        repetitions=2,
        warmup=3,
        temperature=[1.0],
    )
    cell = next(cell for name, cell in cells.items() if "memory=run" in name)
    assert set(cell.samples["status"]) == {"ok"}
    rows = counted(cell)
    outputs = {prompt: {tuple(tokens) for tokens in rows.loc[prompt, "tokens"]} for prompt in set(rows.index)}
    decoded = [(prompt, len(memory)) for prompt, memory in seen]
    prompts = [f"tabular/{number}" for number in range(3)]
    first = len(decoded) - 6
    assert first == 3 and {decoded[place] for place in range(first)} == {(prompts[0], 0)}  # the warm-up
    assert decoded[first:] == [(prompt, 2 * number) for number, prompt in enumerate(prompts) for _ in range(2)]
    for prompt, memory in seen:
        assert set(memory) == set().union(*(outputs[other] for other in prompts if memory and other < prompt))


def test_one_bad_prompt_is_one_failed_row_of_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sjd = METHODS.get("sjd")
    sound = sjd.step

    def step(self: Any, run: Run, state: JacobiWindow) -> Acceptance:
        if run.draws._root.split("|")[2] == "tabular/1" and run.emitted > 1:  # type: ignore[attr-defined]
            raise RuntimeError("that prompt")
        return sound(self, run, state)

    monkeypatch.setattr(sjd, "step", step)
    rows = counted(finished(tmp_path / "run", methods=["sjd"], batch=4, warmup=0)["sjd T=0"])
    assert rows["status"].to_dict() == {f"tabular/{i}": "failed" if i == 1 else "ok" for i in range(8)}
    assert "RuntimeError: that prompt" in rows.loc["tabular/1", "error"]


def test_greedy_equality_of_a_batch_is_checked_in_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    many = SlotCache.extend_many.__func__  # type: ignore[attr-defined]
    spy = classmethod(lambda cls, caches, windows: sizes.append(len(caches)) or many(cls, caches, windows))
    monkeypatch.setattr(SlotCache, "extend_many", spy)
    tasks = [{"name": "tabular", "limit": 2}]
    data: dict[str, Any] = {"backbones": ["random-llama-1m"], "tasks": tasks, "prove": True, "max_new_tokens": 4}
    data |= {"methods": ["autoregressive"], "greedy_check": {"prompts": 2, "tokens": 4}, "warmup": 0}
    cells = finished(tmp_path / "run", batch=2, **data)
    assert cells["autoregressive T=0"].meta.verdict.greedy.startswith("2/2 equal")
    assert sizes == [2] * len(sizes) and len(sizes) > 2 * 4  # the run's own decodes, then those of the check


def test_every_sample_has_its_memory_and_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter that adds 6 mJ between two readings; a batch of three shares them."""
    readings = iter(range(0, 10**9, 6_000))
    monkeypatch.setattr(consumption.Domain, "read", lambda self: next(readings))
    monkeypatch.setattr(consumption, "domains", lambda powercap: [tmp_path])
    cells = finished(tmp_path / "run", methods=["sjd"], tasks=[{"name": "tabular", "limit": 3}], batch=3, temperature=1)
    for cell in cells.values():
        samples = counted(cell)
        assert samples["cpu_uj"].tolist() == [2_000] * 3
        assert samples["gpu_uj"].isna().all()
        told = samples["peak_bytes"].notna()
        assert (samples["peak_bytes"][told] >= samples["held_bytes"][told] * 0.98).all()
    rows = summarise(Store.open(tmp_path / "run"))
    tokens = sum(len(tokens) for tokens in counted(next(iter(cells.values())))["tokens"])
    assert rows["cpu_joules_per_token"][0] == pytest.approx(0.006 / tokens)
    assert rows["gpu_joules_per_token"].isna().all()


@pytest.mark.slow
@pytest.mark.parametrize(("room", "all_at_once"), [(0.0, False), (float("inf"), False), (float("inf"), True)])
def test_the_check_in_fp32_gives_the_weights_of_the_run_back_first_unless_cells_may_follow_and_memory_holds_both(
    room: float, all_at_once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nets: list[Any] = []
    load = presets.load

    def spied(name: str, dtype: str, *more: Any, **named: Any) -> Any:
        gc.collect()
        alive = [net for net in nets if net() is not None]
        assert dtype != "fp32" or len(alive) == (room > 0 and not all_at_once), "the copy in bf16 is still there"
        model: Any = load(name, dtype, *more, **named)
        nets.append(weakref.ref(model._net))
        return model

    monkeypatch.setattr(presets, "load", spied)
    monkeypatch.setattr("stridebench.harness.proof.verdicts.free_memory", lambda device: room)
    monkeypatch.setattr("stridebench.harness.run.group.WarmModels", lambda **named: WarmModels(all_at_once))
    backbones = [{"name": "random-llama-1m", "dtype": ["bf16"]}]
    tasks = [{"name": "tabular", "limit": 1}]
    data: dict[str, Any] = {"backbones": backbones, "tasks": tasks, "prove": True, "max_new_tokens": 4}
    data |= {"methods": ["autoregressive", "prompt_lookup"], "greedy_check": {"prompts": 1, "tokens": 4}, "warmup": 0}
    cells = finished(tmp_path / "run", **data)
    assert all(cell.meta.verdict.greedy.startswith("1/1 equal") for cell in cells.values())
    assert len(nets) == 2
