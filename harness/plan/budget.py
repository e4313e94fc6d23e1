"""A time budget: from the costs of a plan's cells to the prompts, tokens and cells that end within it.

Nothing here is measured or random: the same costs give the same choice. A run stores its choice in its suite.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stridebench.harness.errors import UsageError, number_of
from stridebench.harness.plan.cells import Cell, Plan
from stridebench.harness.plan.estimate import CellCosts, Forecast, assumed, cost_key, scaled
from stridebench.harness.plan.expand import expand
from stridebench.harness.plan.resolve import load, resolve_again, shipped
from stridebench.harness.plan.suite import Chosen, duration_words

LEAST = 6
"""Prompts of a cell at least, if its task has so many: an interval of fewer says nothing."""
SHARES = (1.0, 0.75, 0.5)
"""Shares of the token budget of texts, in the order in which they are tried before a cell is dropped."""
RESERVE = 0.1
"""The share of a budget that is kept for what was not measured."""


def choose(plan: Plan, costs: CellCosts, seconds: float) -> Chosen:
    """Return what fits into a budget.

    Texts get shorter before a cell is dropped, the dearest cells go first, and the time that is left is for prompts.
    The last method of a model goes only if no other model has more than one. Cells without a measured cost are dropped.

    Raises:
        UsageError: not even the cheapest cell fits.
    """
    allowed = seconds * (1 - RESERVE)
    forecasts = {share: Forecast(plan, costs, share) for share in SHARES}
    dropped = [cell for cell in plan.runnable if cost_key(cell) in costs.unmeasured]
    kept = [cell for cell in plan.runnable if cell not in dropped]
    while not (fitting := [share for share in SHARES if forecasts[share].total(kept, LEAST) <= allowed]):
        shortest = forecasts[SHARES[-1]]
        dearest = max(_leaves(kept), key=lambda cell: _price(shortest, cell, plan))
        left = _without(kept, dearest)
        if not left:
            raise _too_small(seconds, shortest.total(kept, LEAST), dearest, costs)
        dropped += [cell for cell in kept if cell not in left]
        kept = left
    share = fitting[0]
    forecast, most = forecasts[share], max(len(plan.prompts[cell.task]) for cell in kept)
    fits = (count for count in range(most, LEAST, -1) if forecast.total(kept, count) <= allowed)
    prompts = next(fits, LEAST)
    shorter = {cell: replace(cell, max_new_tokens=scaled(plan, cell, share)).id for cell in dropped}
    reasons = {
        name: f"measuring the other cells took half of the budget of {duration_words(seconds)}{costs.others}"
        if cost_key(cell) in costs.unmeasured
        else _reason(forecast, cell, plan, seconds)
        for cell, name in shorter.items()
    }
    return Chosen(prompts=prompts, tokens=share, seconds=round(forecast.total(kept, prompts), 1), dropped=reasons)


def apply(plan: Plan, chosen: Chosen) -> Plan:
    """Return the plan of a choice. Its suite has the prompts and tokens as if the file had said so."""
    data: dict[str, Any] = plan.suite.suite.model_dump()
    there: dict[str, int] = {}
    for use, prompts in plan.prompts.items():
        there[use.name] = max(there.get(use.name, 0), len(prompts))
    for entry, task in zip(data["tasks"], plan.suite.suite.tasks, strict=True):
        entry["limit"] = min(chosen.prompts, there[entry["name"]]) or entry.get("limit")
        budget = task.max_new_tokens or plan.suite.suite.max_new_tokens
        if chosen.tokens < 1 and all(use.task.modality == "text" for use in task.uses):
            entry["max_new_tokens"] = max(1, round(chosen.tokens * budget))
    data["chosen"] = chosen.model_dump()
    return expand(resolve_again(data))


def foreseen(plan: Plan) -> Plan:
    """Return what would be chosen on the machine of a dry run, which measures nothing, or the plan without a budget."""
    suite = plan.suite.suite
    costs = assumed(plan) if suite.budget is not None and suite.chosen is None and plan.runnable else None
    return plan if costs is None or suite.budget is None else apply(plan, choose(plan, costs, suite.budget))


def described(plan: Plan) -> list[str]:
    """Return what was chosen for a plan, in lines."""
    suite = plan.suite.suite
    chosen = suite.chosen
    if chosen is None or suite.budget is None:
        return []
    shorter = "" if chosen.tokens == 1 else f", texts of {chosen.tokens:.0%} of their tokens"
    cells = number_of(len(plan.runnable), "cell")
    line = (
        f"budget of {duration_words(suite.budget)}: {cells} of {number_of(chosen.prompts, 'prompt')}{shorter}, "
        f"about {duration_words(chosen.seconds)} with proofs and report"
    )
    methods = [cell for cell in plan.cells if cell.role == "method"]
    names = {cell.id: f"{cell.label}, {cell.task.name}, T = {cell.sampling.temperature:g}" for cell in methods}
    return [line, *(f"dropped: {names[cell]}: {why}" for cell, why in chosen.dropped.items() if cell in names)]


def _leaves(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells that may go next: baselines that no method is compared with, and methods.

    While a model has several methods, those that are the last of theirs stay.
    """
    needed = {cell.setting for cell in cells if cell.role == "method"}
    alone = [cell for cell in cells if cell.role == "baseline" and cell.setting not in needed]
    methods = [cell for cell in cells if cell.role == "method"]
    count = Counter(cell.backbone for cell in methods)
    several = [cell for cell in methods if count[cell.backbone] > 1]
    return [*alone, *(several or methods)]


def _without(cells: Sequence[Cell], gone: Cell) -> list[Cell]:
    """Return the cells without one, and without the baseline and floor that were there for it alone."""
    left = [cell for cell in cells if cell != gone]
    last = not any(cell.role == "method" and cell.setting == gone.setting for cell in left)
    return [cell for cell in left if not (last and cell.setting == gone.setting)]


def _price(forecast: Forecast, cell: Cell, plan: Plan) -> float:
    count = min(LEAST, len(plan.prompts[cell.task])) * plan.repetitions(cell.task)
    return count * forecast.decode(cell) + forecast.rest(cell)


def _reason(forecast: Forecast, cell: Cell, plan: Plan, seconds: float) -> str:
    price = duration_words(_price(forecast, cell, plan))
    return f"it does not fit into the budget of {duration_words(seconds)}: {LEAST} prompts take about {price} here"


def _too_small(seconds: float, needed: float, cell: Cell, costs: CellCosts) -> UsageError:
    one = costs.cells.get(cost_key(cell))
    measured = f", at {one.token_s:.2g} s a token and {duration_words(costs.spent_s)} of measuring" if one else ""
    return UsageError(
        f"a budget of {duration_words(seconds)} is too small for one cell: {cell.label} on {cell.backbone} and "
        f"{cell.task.name} takes about {duration_words(needed)} here with its baseline, proof and report{measured}"
        f"{costs.others}; give --budget {option_of(needed / (1 - RESERVE))} or more"
    )


def option_of(seconds: float) -> str:
    """Return a budget of at least so many seconds, as one types it."""
    least = math.ceil(seconds) + 1
    return f"{least}s" if least < 120 else f"{least // 60 + 1}m"


def refuse_moving_prompts(words: Sequence[str]) -> None:
    """Check that runs of a suite with these options have the same prompts, so that they can be compared."""
    options = {word.split("=")[0] for word in words}
    suite = words[0] if words and (words[0] in shipped() or words[0].endswith((".yaml", ".yml"))) else None
    kept = suite is not None and "--limit" not in options and load(suite).suite.budget is not None
    if kept or "--budget" in options:
        text = "runs that are compared need the same prompts, and a budget chooses others each time"
        raise UsageError(f"{text}; give --limit instead of a budget")
