"""Runs with a budget: costs are measured, the choice is stored, and a resumed run goes on with it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import stridebench
from stridebench import execution
from stridebench.harness.core.costs import Passes
from stridebench.harness.errors import StoreError, UsageError
from stridebench.harness.plan.budget import apply, choose
from stridebench.harness.plan.cells import Plan
from stridebench.harness.plan.estimate import CellCost, CellCosts, cost_key
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.store import Store
from stridebench.harness.run import measuring
from stridebench.harness.run.loading import Options
from stridebench.harness.run.measuring import TOKENS_OF_TEXT, MeasuredCosts, measure
from tests.support.cli import stride
from tests.support.runs import Stop, plan_of
from tests.support.shape_checks import without_shape_checks

SUITE: dict[str, Any] = {
    "methods": ["jacobi", "prompt_lookup"],
    "backbones": "tabular",
    "tasks": [{"name": "tabular", "limit": 12}],
    "prove": False,
    "warmup": 0,
    "progress": False,
}


@pytest.fixture
def given_costs(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Every prompt takes a second, one of `jacobi` three, and nothing else takes any time. The measured plans."""
    plans: list[Plan] = []

    def given(plan: Plan, *_: object) -> MeasuredCosts:
        plans.append(plan)
        cells = {cost_key(cell): CellCost(3.0 if cell.name == "jacobi" else 1.0, 0.0) for cell in plan.runnable}
        return MeasuredCosts(CellCosts(cells, {}, small_pass_s=0.0), {})

    monkeypatch.setattr(execution, "measure", given)
    return plans


def counts(path: Path) -> dict[str, int]:
    """Counted decodes of each finished cell, by label."""
    store = Store.open(path)
    return {store.meta(name).label: int((~store.cell(name).samples["warmup"]).sum()) for name in store.cells()}


def test_the_choice_is_run_stored_and_shown(tmp_path: Path, given_costs: list[Plan]) -> None:
    less = stridebench.run(**SUITE, budget="16s", out=tmp_path / "less")
    assert counts(less.path) == {"autoregressive": 7, "prompt_lookup": 7}
    rows = less.table.set_index("label")
    assert rows.loc["jacobi", "status"] == "skipped" and "budget of 16 s" in rows.loc["jacobi", "reason"]
    suite = Store.open(less.path).manifest.suite.stored()
    assert suite["chosen"]["prompts"] == 7 and suite["tasks"][0]["limit"] == 7 and len(given_costs) == 1


def test_a_resumed_run_goes_on_with_the_stored_choice(
    tmp_path: Path, given_costs: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if nothing but the folder is named. A run without a budget is another one."""
    path = tmp_path / "run"
    with monkeypatch.context() as stopped, without_shape_checks(), pytest.raises(StoreError, match="stop here"):
        stopped.setattr("stridebench.running.RunProgress", lambda *_, **__: _Stopped())
        stridebench.run(**SUITE, budget="45s", out=path)
    assert Store.open(path).cells() == []
    for names in ({**SUITE, "budget": "10m"}, {"progress": False}):
        stridebench.run(**names, out=path, resume=True)
        assert counts(path) == {"autoregressive": 8, "jacobi": 8, "prompt_lookup": 8}
    with pytest.raises(StoreError, match="already holds a run"):
        stridebench.run(**SUITE, budget="45s", out=path)
    assert len(given_costs) == 1
    with pytest.raises(StoreError, match="another run"):
        stridebench.run(**{**SUITE, "limit": 3}, out=path, resume=True)


class _Stopped(Stop):
    def __init__(self) -> None:
        super().__init__(5)

    def __enter__(self) -> _Stopped:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def test_a_limit_takes_the_place_of_the_budget_of_a_suite(tmp_path: Path) -> None:
    suite = tmp_path / "mine.yaml"
    suite.write_text("{methods: [jacobi], backbones: [tabular], tasks: [tabular], budget: 1m, prove: false}")
    assert stride("run", str(suite), "--limit", "2", "--out", str(tmp_path / "run")).code == 0
    assert counts(tmp_path / "run") == {"autoregressive": 2, "jacobi": 2}
    both = stride("run", str(suite), "--limit", "2", "--budget", "1m", "--out", str(tmp_path / "other"))
    assert both.code == 2 and "give one of them" in both.err and not (tmp_path / "other").exists()


def test_measured_costs_are_of_every_cell_that_runs() -> None:
    plan = plan_of(methods=["jacobi", {"name": "speculative", "drafter": "tabular"}], max_new_tokens=4 * TOKENS_OF_TEXT)
    began = time.monotonic()
    with without_shape_checks():
        measured = measure(plan, Options(), began)
    took = time.monotonic() - began
    costs = measured.costs
    assert set(costs.cells) == {cost_key(cell) for cell in plan.runnable}
    assert all(0 < cost.token_s < took and 0 <= cost.prompt_s < took for cost in costs.cells.values())
    assert 0 < costs.small_pass_s < took and 0 < costs.spent_s <= took and set(costs.loads) == {plan.cells[0].group}


def test_the_run_takes_the_threads_that_were_measured_for_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = Passes(1, ((1, 5.0), (2, 7.0)), ((1, 5.0), (2, 6.0)), {}, busy=False)

    def given(plan: Plan, *_: object) -> MeasuredCosts:
        cells = {cost_key(cell): CellCost(0.1, 0.0) for cell in plan.runnable}
        return MeasuredCosts(CellCosts(cells, {}), {plan.runnable[0].group: passes})

    monkeypatch.setattr(execution, "measure", given)
    pictures = {"methods": ["sjd"], "backbones": "embedded-digits-l", "tasks": [{"name": "digits", "limit": 2}]}
    with without_shape_checks():
        run = stridebench.run(**{**SUITE, **pictures}, max_new_tokens=4, budget="10m", out=tmp_path / "run")
    store = Store.open(run.path)
    assert [Passes.of(store.notes.passes("embedded-digits-l", "fp32")), store.meta(run.cells[0]).threads] == [passes, 1]


class _Ticks:
    """A clock that is a second later at each reading."""

    def __init__(self) -> None:
        self._now = 0

    def monotonic(self) -> float:
        self._now += 1
        return self._now


@pytest.fixture
def other_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes have a load of 5.3 on two cores."""
    monkeypatch.setattr(measuring.noise, "load_and_cores", lambda: (5.3, 2))


def test_measuring_that_takes_half_of_the_budget_before_a_method_is_an_error_and_writes_nothing(
    tmp_path: Path, other_load: None
) -> None:
    with pytest.raises(
        UsageError,
        match=r"measuring 1 of 3 cells took .* of the budget of 1 s.*a load of 5.3 on 2 cores.*; "
        r"give --budget \d+s or more, or --limit",
    ):
        stridebench.run(**SUITE, budget=0.001, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_cells_that_half_of_the_budget_does_not_reach_are_dropped_and_the_reason_names_the_load(
    monkeypatch: pytest.MonkeyPatch, other_load: None
) -> None:
    """Each decode takes a second: the baseline, the floor and `jacobi` end 5, 6 and 7 seconds after the begin."""
    unmeasured = {}
    for seconds in (1000, 13):
        tasks = [{"name": "tabular", "sampling": {"temperature": 1}}]
        plan = plan_of(methods=["jacobi", "prompt_lookup"], tasks=tasks, max_new_tokens=4, budget=seconds)
        monkeypatch.setattr(measuring, "time", _Ticks())
        with without_shape_checks():
            costs = measure(plan, Options(), 0.0).costs
        unmeasured[seconds] = {key[0] for key in costs.unmeasured}
    assert unmeasured == {1000: set(), 13: {"prompt_lookup"}}
    chosen = choose(plan, replace(costs, spent_s=0.0), 1000)
    (reason,) = chosen.dropped.values()
    assert "measuring the other cells took half of the budget" in reason and "a load of 5.3 on 2 cores" in reason
    assert {cell.name for cell in apply(plan, chosen).runnable} == {"autoregressive", "jacobi"}


def test_a_cell_costs_what_its_fast_steps_do() -> None:
    """A burst of load in half of the steps changes nothing."""
    quiet, stalled = (
        SealedCell(
            "cell",
            CellMeta(),
            pd.DataFrame(),
            steps=pd.DataFrame({"wall_ns": walls, "emitted": 1, "overshoot": 0}),
            requests=pd.DataFrame(),
        )
        for walls in ([10**6] * 16, [10**6, 10**9] * 8)
    )
    assert measuring._token_s(stalled) == measuring._token_s(quiet) == 1e-3
