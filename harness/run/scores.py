"""Whether what a task's scorers return keeps the contract of `stridebench.harness.core.task`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, SupportsFloat

from stridebench.harness.core.task import SetScore, Task
from stridebench.harness.errors import ContractError
from stridebench.harness.record.columns import SCORER_FAILED


def checked_scores(task: Task, scores: object) -> dict[str, float]:
    """The scores of one output as plain numbers.

    Raises:
        ContractError: a name is missing or unknown, or a value is not a finite number.
    """
    owner = f"{type(task).__name__}.score"
    if not isinstance(scores, Mapping):
        raise ContractError(f"{owner} returned {scores!r:.200}; return a number for each of its metrics")
    missing = [name for name in task.metrics if name not in scores and name not in task.optional_metrics]
    unknown = [str(name) for name in scores if name not in task.metrics]
    if missing or unknown:
        lacks = f"lacks {', '.join(missing)}" if missing else f"names {', '.join(unknown)}"
        raise ContractError(f"the answer of {owner} {lacks}; metrics: {', '.join(task.metrics)}")
    return {str(name): _number(owner, name, value) for name, value in scores.items()}


def checked_set_scores(task: Task, scores: object, outputs: int) -> dict[str, SetScore]:
    """The scores of a set of outputs. One that is left out, and is not optional, has that as its reason.

    Raises:
        ContractError: they are no mapping of names to `SetScore`, a name is unknown, or a value is not finite.
    """
    owner = f"{type(task).__name__}.score_set"
    if not isinstance(scores, Mapping):
        raise ContractError(f"{owner} returned {scores!r:.200}; return a SetScore for each metric")
    unknown = [str(name) for name in scores if name not in task.set_metrics]
    if unknown:
        raise ContractError(f"{owner} names {', '.join(unknown)}; set_metrics: {', '.join(task.set_metrics)}")
    lacking = f"{SCORER_FAILED}the answer of {owner} lacks it"
    missing = [name for name in task.set_metrics if name not in scores and name not in task.optional_set_metrics]
    checked = {str(name): _checked(owner, name, score) for name, score in scores.items()}
    return checked | {name: SetScore(None, outputs, reason=lacking) for name in missing}


def _checked(owner: str, name: str, score: Any) -> SetScore:
    if not isinstance(score, SetScore):
        raise ContractError(f"{owner} returned {score!r:.200} for {name!r}; return a SetScore")
    numbers = (score.value, score.low, score.high)
    value, low, high = (None if number is None else _number(owner, name, number) for number in numbers)
    n, failures = (int(_number(owner, name, count)) for count in (score.n, score.failures))
    if min(n, failures) < 0:
        raise ContractError(f"{owner} returned {score!r:.200} for {name!r}; n and failures are counts")
    return SetScore(value, n, failures, low, high, str(score.reason))


def _number(owner: str, name: object, value: Any) -> float:
    """A finite number as Python's own; a text that reads as one is none, and neither is an array."""
    try:
        if isinstance(value, str | bytes | complex) or getattr(value, "shape", ()) != ():
            raise TypeError
        if not isinstance(value, SupportsFloat) or not math.isfinite(number := float(value)):
            raise ValueError
    except Exception as error:  # a class of a plugin may raise anything
        raise ContractError(f"{owner} returned {value!r:.200} for {name!r}, not a finite number") from error
    return number
