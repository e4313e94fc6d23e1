"""The estimate of a dry run: tokens by budget or picture, seconds by the size of the weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stridebench.harness.plan import presets
from stridebench.harness.plan.compatibility import picture_tokens
from stridebench.harness.plan.estimate import (
    BANDWIDTH,
    PASS_S,
    PROOF,
    REPORT,
    REPORT_CELL,
    CellCost,
    CellCosts,
    Forecast,
    assumed,
    cost_key,
    estimate,
)
from tests.support.runs import plan_of


@pytest.mark.parametrize(("budget", "length"), [(4096, 16 * 17), (40, 40)])
def test_a_picture_has_the_tokens_of_its_grid_and_no_more_than_the_budget(budget: int, length: int) -> None:
    plan = plan_of(
        methods=["sjd"],
        backbones=["embedded-image"],
        tasks=[{"name": "emoji_scenes", "limit": 3}],
        max_new_tokens=budget,
        repetitions=2,
    )
    most = estimate(plan)
    assert (most.decodes, most.tokens, most.unsized) == (2 * 3 * 2, 2 * 3 * 2 * length, ())


def test_the_length_of_a_picture_is_that_of_the_loaded_model() -> None:
    name = "embedded-image-8x8"
    assert presets.load(name, "fp32").capabilities.grid.length == picture_tokens(presets.resolve(name))


def test_seconds_grow_with_the_bytes_of_the_weights() -> None:
    common = {"methods": ["prompt_lookup"], "tasks": [{"name": "humaneval", "limit": 1}]}
    bf16, fp32 = (
        estimate(plan_of(**common, backbones=[{"name": "smollm2-135m", "dtype": dtype}])).seconds
        for dtype in ("bf16", "fp32")
    )
    assert bf16 is not None and fp32 is not None and 0 < bf16 < fp32


def test_a_backbone_without_a_stated_size_gives_no_seconds() -> None:
    plan = plan_of(methods=["prompt_lookup"], backbones=["hub:org/model"], tasks=[{"name": "humaneval", "limit": 2}])
    most = estimate(plan)
    assert most.seconds is None and most.tokens == 2 * 2 * 6


def test_seconds_of_a_users_folder_follow_from_its_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    header = json.dumps({"__metadata__": {"format": "pt"}, "weight": {"shape": [1000, 3000]}, "bias": {"shape": [8]}})
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode())
    common = {"methods": ["prompt_lookup"], "tasks": [{"name": "humaneval", "limit": 1}], "max_new_tokens": 10}
    plan = plan_of(**common, backbones=[{"name": str(tmp_path), "dtype": "fp32"}])
    costs = assumed(plan)
    assert costs is not None
    (token_s,) = {cost.token_s for cost in costs.cells.values()}
    assert token_s == pytest.approx(PASS_S + 4 * 3_000_008 / BANDWIDTH)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 20)
    assert estimate(plan).seconds is None


def test_a_forecast_adds_decodes_warm_ups_proofs_checks_loads_and_the_report() -> None:
    """Counted by hand: two cells, three prompts of ten tokens, and the fp32 weights are read for the check."""
    plan = plan_of(
        methods=["prompt_lookup"],
        backbones=[{"name": "smollm2-135m", "dtype": "bf16"}],
        tasks=[{"name": "edits", "limit": 3}],
        max_new_tokens=10,
        prove=True,
        greedy_check={"prompts": 1, "tokens": 4},
    )
    plain, method = plan.runnable
    own = {cost_key(plain): CellCost(1.0, 0.1), cost_key(method): CellCost(2.0, 0.05)}
    forecast = Forecast(plan, CellCosts(own, {plain.group: 7.0}, small_pass_s=0.01, spent_s=20.0))
    decodes = 3 * (1.0 + 10 * 0.1) + 3 * (2.0 + 10 * 0.05)
    rests = (1.0 + 8 * 0.1) + (2.0 + 8 * 0.05) + PROOF * 0.01 + 2 * (1.0 + 4 * 0.1)
    expected = 20 + decodes + rests + 2 * 7.0 + (REPORT + 2 * REPORT_CELL) * 0.01
    assert forecast.total(plan.runnable) == pytest.approx(expected)
    one_prompt = expected - 2 * decodes / 3
    assert forecast.total(plan.runnable, prompts=1) == pytest.approx(one_prompt)
    short = Forecast(plan, CellCosts(own, {plain.group: 7.0}, small_pass_s=0.01, spent_s=20.0), tokens=0.5)
    assert short.total(plan.runnable) == pytest.approx(expected - 3 * 5 * (0.1 + 0.05))
