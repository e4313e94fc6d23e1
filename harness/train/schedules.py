"""How long a recipe for any backbone trains: in steps, in passes over its passages, or as its paper did.

`--set epochs=N` counts passes over the passages. `--set schedule=paper` gives the settings of `Recipe.paper`; other
settings of the command line replace those. `--set schedule=printed` gives those of `Recipe.printed`, data included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stridebench.harness.errors import UsageError
from stridebench.harness.train.data import TaskPlan
from stridebench.harness.train.loop import Recipe
from stridebench.harness.train.pictures import PicturePlan


def expanded(name: str, recipe: Recipe, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with a schedule replaced by what it stands for.

    Raises:
        UsageError: there is no such schedule.
    """
    own = dict(settings)
    if (schedule := own.pop("schedule", None)) is None:
        return own
    known = {word: values for word in ("paper", "printed") if (values := getattr(recipe, word))}
    if schedule not in known:
        there = f"the {'one schedule is' if len(known) == 1 else 'schedules are'} {' and '.join(known)}"
        none = f"the recipe {name} has none; give steps and rate"
        raise UsageError(f"--set schedule={schedule}: {there if known else none}")
    return {**known[schedule], **own}


def settled(name: str, recipe: Recipe, plan: TaskPlan | PicturePlan, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with epochs and shares replaced by ``steps`` and ``warmup``.

    Args:
        name: of the recipe.
        recipe: with its default settings.
        plan: of the passages, which are counted and not made.
        settings: of the command line.

    Raises:
        UsageError: the steps of the recipe do not count passages.
    """
    own = dict(settings)
    epochs, share = own.pop("epochs", None), own.pop("warmup_share", None)
    if epochs is not None and "steps" not in own:
        own["steps"] = _steps(name, recipe, plan, epochs, own.get(recipe.per_step))
    if share is not None and "warmup" not in own:
        own["warmup"] = max(1, round(share * own["steps"]))
    return own


def _steps(name: str, recipe: Recipe, plan: TaskPlan | PicturePlan, epochs: Any, together: Any) -> int:
    if not recipe.per_step:
        raise UsageError(f"--set epochs={epochs}: a step of the recipe {name} counts no passages; give steps")
    if isinstance(epochs, bool) or not isinstance(epochs, int | float) or not epochs > 0:
        raise UsageError(f"--set epochs={epochs!r}: give a number above 0")
    train, _ = plan.sides()
    passages = len(train) * max(1, getattr(plan, "prefixes", 0))
    return max(1, math.ceil(epochs * passages / int(together or getattr(recipe, recipe.per_step))))
