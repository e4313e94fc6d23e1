"""Decodes of one method on one model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, decode
from stridebench.harness.core.method import Method
from stridebench.harness.core.run import Run, open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt


def run_on(
    model: Any, prompt: Prompt | Sequence[int], budget: int, temperature: float = 0.0, drafter: Any = None
) -> Run:
    """Open a run whose drafters are all ``drafter``, or the model itself."""
    draws = SeededDraws(0, "t", "p", 0, model.device)
    return open_run(model, lambda name: drafter or model, prompt, Sampling(temperature), budget, draws)


def decoded(method: Method[Any], model: Any, prompt: Prompt | Sequence[int], budget: int, **settings: Any) -> Decode:
    return decode(method, run_on(model, prompt, budget, **settings))
