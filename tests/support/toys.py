"""Runs and decodes on models of random logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, decode
from stridebench.harness.core.method import Method
from stridebench.harness.core.run import Run, open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.proof.distance import toy_drafter


def opened(
    sampling: Sampling,
    budget: int = 30,
    prompt: Sequence[int] = (0, 1),
    seed: int = 0,
    model: Any = None,
    **params: Any,
) -> Run:
    """A run on ``model``, or on a table with these parameters; a drafter is another table, and ``self`` the model."""
    model = model or Tabular("tabular", params)
    return open_run(model, toy_drafter(model), prompt, sampling, budget, SeededDraws(seed, "t", "p", 0))


def decoded(method: Method[Any], sampling: Sampling, budget: int = 30, **how: Any) -> Decode:
    return decode(method, opened(sampling, budget, **how))
