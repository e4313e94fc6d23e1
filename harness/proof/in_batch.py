"""The exact law of a batch: of one row while the others decode with seeded draws, or of all rows jointly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch

from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.batch import Batch, Slot
from stridebench.harness.core.draws import Draws, SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.method import Method
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run
from stridebench.harness.errors import EnumerationLimit
from stridebench.harness.platform.one_core import on_one_core
from stridebench.harness.proof.cases import Case
from stridebench.harness.proof.enumerate import Law
from stridebench.harness.proof.enumerating_draws import EnumeratingDraws

MOST = 5_000
"""Decodes of a batch in one enumeration; each starts anew, since rows on threads cannot be copied."""
BETWEEN = -1
"""Stands between the outputs of two rows in a joint output; no id is negative."""


def row_law(
    method: Method[Any], case: Case, load_drafter: Callable[[str], Backbone], draws: EnumeratingDraws | None = None
) -> Law:
    """The exact law of a row's output, given the draws of the others; the case's seed says which row.

    Raises:
        EnumerationLimit: over 5,000 outcomes.
    """
    row = case.seed % case.batch
    return _law(
        method, case, load_drafter, {row: EnumeratingDraws() if draws is None else draws}, prompts_of(case, row)
    )


def joint_law(
    method: Method[Any], case: Case, load_drafter: Callable[[str], Backbone], draws: EnumeratingDraws | None = None
) -> Law:
    """The exact law of all outputs of a batch together, as `joined`: every outcome of the draws of every row.

    Raises:
        EnumerationLimit: over 5,000 outcomes.
    """
    first = EnumeratingDraws() if draws is None else draws
    rows = {row: first.sharing() if row else first for row in range(case.batch)}
    return _law(method, case, load_drafter, rows, prompts_of(case))


def prompts_of(case: Case, row: int = 0) -> list[tuple[int, ...]]:
    """The prompts of a batch: the case's own for ``row``, beginnings of it for the others."""
    return [case.prompt[: len(case.prompt) - (number - row) % len(case.prompt)] for number in range(case.batch)]


def joined(outputs: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Outputs of several rows as one, with -1 between them."""
    first, *others = outputs
    return sum(((BETWEEN, *output) for output in others), first)


@torch.inference_mode()
def _law(
    method: Method[Any],
    case: Case,
    load_drafter: Callable[[str], Backbone],
    rows: Mapping[int, EnumeratingDraws],
    prompts: list[tuple[int, ...]],
) -> Law:
    """The law of the outputs of ``rows``, whose draws share a script; the other rows draw from seeds."""
    backbone, script = case.backbone(), next(iter(rows.values())).script
    law: Law = {}
    scripts: list[list[int]] = [[]]
    decodes = 0

    def job(number: int, slot: Slot | None) -> tuple[int, ...]:
        own: Draws = rows[number] if number in rows else SeededDraws(case.seed, "proof", str(number), 0)
        models = Models(backbone, load_drafter, prompts[number], slot=slot)
        return decode(method, Run.of(models, case.sampling, case.length, own), watched=False).tokens

    with on_one_core():  # the rows take turns, and are handed over thousands of times
        while scripts:
            script.replay(scripts.pop(), scripts)
            for draws in rows.values():
                draws.begin({})
            results = Batch[tuple[int, ...]](case.batch).run([partial(job, number) for number in range(case.batch)])
            if failed := next((result for result in results if isinstance(result, Exception)), None):
                raise failed
            outputs = [result for result in results if isinstance(result, tuple)]
            output = joined(outputs[row] for row in rows)
            law[output] = law.get(output, 0.0) + script.weight
            decodes += 1
            if decodes + len(scripts) > MOST:
                of = "one row" if len(rows) < case.batch else "all rows"
                raise EnumerationLimit(
                    f"over {MOST} outcomes of {of} in a batch of {case.batch}; take a shorter output"
                )
    return law
