"""A budget chooses prompts, tokens and cells by given costs; the plan that it makes is the one that is stored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stridebench.harness.errors import UsageError
from stridebench.harness.plan import budget, resolve
from stridebench.harness.plan.budget import LEAST, RESERVE, apply, choose, described, foreseen
from stridebench.harness.plan.cells import Plan
from stridebench.harness.plan.estimate import CellCost, CellCosts, Forecast, cost_key
from stridebench.harness.plan.expand import expand
from tests.support.runs import plan_of


def plan(seconds: str = "10m", **data: object) -> Plan:
    """Two tasks of texts and two methods; nothing is loaded."""
    suite = {
        "methods": ["prompt_lookup", {"name": "jacobi", "tasks": "edits"}],
        "backbones": [{"name": "smollm2-135m", "dtype": "bf16"}],
        "tasks": [{"name": "edits", "limit": 20, "max_new_tokens": 40}, {"name": "humaneval", "limit": 10}],
        "max_new_tokens": 20,
        "budget": seconds,
    }
    return plan_of(**{**suite, **data})


def costs(of: Plan, **token_s: float) -> CellCosts:
    """A token takes 0.1 s, or as long as is said of a method; passes of small models and loads take nothing."""
    cells = {cost_key(cell): CellCost(0.0, token_s.get(cell.name, 0.1)) for cell in of.runnable}
    return CellCosts(cells, {}, small_pass_s=0.0)


def expected(of: Plan, prices: CellCosts, prompts: int | None = None, tokens: float = 1.0) -> float:
    return Forecast(of, prices, tokens).total(of.runnable, prompts)


def test_a_large_budget_takes_all_prompts_and_a_smaller_one_the_most_that_fit() -> None:
    whole = plan()
    prices = costs(whole)
    chosen = choose(whole, prices, 10_000)
    assert (chosen.prompts, chosen.tokens, chosen.dropped) == (20, 1.0, {})
    for prompts in (19, 11, LEAST):
        just = expected(whole, prices, prompts) / (1 - RESERVE) + 1e-6
        assert choose(whole, prices, just).prompts == prompts
        assert choose(whole, prices, just) == choose(whole, prices, just)
        assert choose(whole, prices, just - 0.01).prompts < prompts or prompts == LEAST


def test_texts_get_shorter_before_a_cell_is_dropped() -> None:
    whole = plan()
    prices = costs(whole)
    for tokens in (0.75, 0.5):
        just = expected(whole, prices, LEAST, tokens) / (1 - RESERVE) + 1e-6
        chosen = choose(whole, prices, just)
        assert (chosen.prompts, chosen.tokens, chosen.dropped) == (LEAST, tokens, {})


def test_the_dearest_cells_go_first_and_take_along_baselines_that_only_they_need() -> None:
    whole = plan()
    prices = costs(whole, jacobi=0.4)
    every = expected(whole, prices, LEAST, 0.5)
    chosen = choose(whole, prices, (every - 1) / (1 - RESERVE))
    assert len(chosen.dropped) == 1 and next(iter(chosen.dropped)).startswith("jacobi")
    part = apply(whole, chosen)
    assert {cell.label: cell.skip for cell in part.cells if cell.skip} == {"jacobi": chosen.dropped[part.cells[2].id]}
    price = LEAST * 40 * 0.4 + 8 * 0.4  # with the warm-up
    assert f"6 prompts take about {price:.0f} s here" in str(part.cells[2].skip)
    fewer = choose(whole, prices, 40)
    left = {(cell.name, cell.task.name) for cell in apply(whole, fewer).runnable}
    assert left == {("autoregressive", "humaneval"), ("prompt_lookup", "humaneval")}


def test_the_last_method_of_a_model_goes_when_no_other_model_has_two() -> None:
    whole = plan(
        methods=["prompt_lookup", {"name": "sjd", "window": [8, 16], "backbones": "embedded-digits-l"}],
        backbones=[{"name": "smollm2-135m", "dtype": "bf16"}, "embedded-digits-l"],
        tasks=[
            {"name": "edits", "limit": 20, "backbones": ["smollm2-135m"]},
            {"name": "digits", "limit": 9, "max_new_tokens": 64, "backbones": ["embedded-digits-l"]},
        ],
    )
    prices = costs(whole, prompt_lookup=9.0)
    every = expected(whole, prices, LEAST, 0.5) / (1 - RESERVE)
    seen = []
    for percent in (2, 16, 17, 18, 99):
        part = apply(whole, choose(whole, prices, percent / 100 * every))
        methods = [cell.backbone for cell in part.runnable if cell.role == "method"]
        seen.append((methods.count("smollm2-135m"), methods.count("embedded-digits-l")))
    assert list(dict.fromkeys(seen)) == [(0, 1), (1, 1), (1, 2)]


def test_the_plan_of_a_choice_is_that_of_its_stored_suite() -> None:
    whole = plan("2m")
    chosen = choose(whole, costs(whole, jacobi=0.4), 60)
    part = apply(whole, chosen)
    counts = {use.name: len(prompts) for use, prompts in part.prompts.items()}
    assert counts == {"edits": chosen.prompts, "humaneval": min(10, chosen.prompts)}
    again = expand(resolve.resolve_again(part.suite.suite.model_dump(mode="json")))
    assert again.manifest() == part.manifest()
    assert [cell.skip for cell in again.cells] == [cell.skip for cell in part.cells]
    first, *dropped = described(part)
    assert first.startswith(f"budget of 2 min: {len(part.runnable)} cells of {chosen.prompts} prompts")
    assert len(dropped) == sum(cell.role == "method" for cell in part.cells if cell.skip)


def test_a_budget_that_is_too_small_for_one_cell_says_how_much_one_takes() -> None:
    whole = plan()
    prices = costs(whole)
    with pytest.raises(
        UsageError, match=r"a budget of 10 s is too small for one cell: .*; give --budget (\d+)s or more"
    ) as error:
        choose(whole, prices, 10)
    assert "at 0.1 s a token" in str(error.value)
    with pytest.raises(UsageError, match=r"at 0\.1 s a token and 3 s of measuring; a load of 5\.3; give --budget"):
        choose(whole, replace(prices, spent_s=3.0, others="; a load of 5.3"), 10)
    enough = int(str(error.value).rpartition("--budget ")[2].split("s")[0])
    assert len(apply(whole, choose(whole, prices, enough)).runnable) == 2
    with pytest.raises(UsageError, match=r"--budget 10m or more$"):
        choose(whole, costs(whole, autoregressive=5, prompt_lookup=2.5, jacobi=9), 10)


def test_pictures_keep_their_tokens() -> None:
    pictures = plan(
        methods=["sjd"], backbones=["embedded-digits-l"], tasks=[{"name": "digits", "limit": 9, "max_new_tokens": 64}]
    )
    prices = costs(pictures)
    just = expected(pictures, prices, LEAST) / (1 - RESERVE) + 1e-6
    assert choose(pictures, prices, just).tokens == 1.0
    part = apply(pictures, budget.Chosen(prompts=7, tokens=0.5))
    assert {cell.max_new_tokens for cell in part.cells} == {64} and len(part.prompts[part.cells[0].task]) == 7


def test_a_dry_run_foresees_the_plan_of_a_known_size_and_leaves_others_alone() -> None:
    part = foreseen(plan("3m"))
    assert part.suite.suite.chosen is not None and part.suite.suite.chosen.seconds < 180
    assert foreseen(part) is part
    unknown = plan(backbones=["hub:org/model"])
    assert foreseen(unknown) is unknown
    without = plan(budget=None)
    assert foreseen(without) is without


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("4m", 240), ("1.5h", 5400), (30, 30)])
def test_a_budget_is_a_time(text: object, seconds: float) -> None:
    assert plan_of(methods=["jacobi"], budget=text).suite.suite.budget == seconds


@pytest.mark.parametrize("text", ["4x", "-1m", "0", "nan", "inf", True, [4]])
def test_other_budgets_are_refused(text: object) -> None:
    with pytest.raises(UsageError, match="a budget is a time such as 90s, 4m or 1h"):
        plan_of(methods=["jacobi"], budget=text)
