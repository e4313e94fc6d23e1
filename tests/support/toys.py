"""Runs and decodes on models of random logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, decode
from stridebench.harness.core.method import Method
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run, open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.proof.distance import toy_drafter


def opened(
    sampling: Sampling, budget: int = 30, prompt: Any = (0, 1), seed: int = 0, model: Any = None, **params: Any
) -> Run:
    """A run on ``model``, or on a table with these parameters; a drafter is another table, and ``self`` the model."""
    model = model or Tabular("tabular", params)
    return open_run(model, toy_drafter(model), prompt, sampling, budget, SeededDraws(seed, "t", "p", 0))


def copied(
    method: Method[Any], tokens: Sequence[int], memory: Sequence[Sequence[int]] = (), budget: int = 400
) -> list[int]:
    """The draft of a method that copies from a text of ten ids, and from earlier outputs."""
    model = Tabular("tabular", {"vocabulary": 10, "context": 500})
    models = Models(model, lambda name: model, tokens, memory=memory)
    run = Run.of(models, Sampling(0.0), budget, SeededDraws(0, "t", "p", 0))
    drafted: list[int] = method.start(run).propose(run).tokens.tolist()
    return drafted


def decoded(method: Method[Any], sampling: Sampling, budget: int = 30, **how: Any) -> Decode:
    return decode(method, opened(sampling, budget, **how))
