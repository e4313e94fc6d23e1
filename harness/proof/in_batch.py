"""The exact law of one row of a batch: every outcome of its draws, while the other rows decode with seeded draws."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from harness.core.backbone import Backbone
from harness.core.batch import Batch, Slot
from harness.core.draws import Draws, SeededDraws
from harness.core.loop import decode
from harness.core.method import Method
from harness.core.models import Models
from harness.core.run import Run
from harness.errors import EnumerationLimit
from harness.proof.cases import Case
from harness.proof.enumerate import Law
from harness.proof.enumerating_draws import EnumeratingDraws

MOST = 5_000
"""Decodes of a batch in one enumeration; each starts anew, since rows on threads cannot be copied."""


@torch.no_grad()
def row_law(
    method: Method[Any], case: Case, load_drafter: Callable[[str], Backbone], draws: EnumeratingDraws | None = None
) -> Law:
    """The exact law of a row's output, given the draws of the others; the case's seed says which row.

    Raises:
        EnumerationLimit: over 5,000 outcomes.
    """
    draws = EnumeratingDraws() if draws is None else draws
    backbone, row = case.backbone(), case.seed % case.batch
    prompts = [case.prompt[: len(case.prompt) - (r - row) % len(case.prompt)] for r in range(case.batch)]
    law: Law = {}
    scripts: list[list[int]] = [[]]
    decodes = 0

    def job(number: int, slot: Slot | None) -> tuple[int, ...]:
        own: Draws = draws if number == row else SeededDraws(case.seed, "proof", str(number), 0)
        models = Models(backbone, load_drafter, prompts[number], slot=slot)
        return decode(method, Run.of(models, case.sampling, case.length, own)).tokens

    while scripts:
        draws.replay(scripts.pop(), scripts, {})
        outputs = Batch[tuple[int, ...]](case.batch).run([partial(job, number) for number in range(case.batch)])
        if failed := next((output for output in outputs if isinstance(output, Exception)), None):
            raise failed
        output = outputs[row]
        assert isinstance(output, tuple)
        law[output] = law.get(output, 0.0) + draws.weight
        decodes += 1
        if decodes + len(scripts) > MOST:
            raise EnumerationLimit(f"over {MOST} outcomes of one row in a batch of {case.batch}; take a shorter output")
    return law
