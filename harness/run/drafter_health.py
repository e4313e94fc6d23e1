"""Drafts some steps of a decode again with drafters that have read nothing else, outside of what is timed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.audit.drafters import Compared, compare, limit
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.loop import KeptDraft, begin_method, prefill
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import warp
from stridebench.harness.core.task import Prompt
from stridebench.harness.plan.cells import Cell
from stridebench.harness.record.columns import Sample
from stridebench.harness.run.attempt import Attempt, FinishedRun, one_line
from stridebench.harness.run.loading import LoadedGroup
from stridebench.harness.run.read_prompts import ReadPrompts

PROMPTS = 3
"""Prompts of a task, its first ones, whose first decode is checked."""
OTHER_ORDER = "it fills positions in another order"
NO_DRAFTER = "its drafts come from the text or from earlier passes, not from a drafter"
NO_STEP = "no checked step drafted anything that can be compared"
TRAINED = ("drafter", "heads")
"""Kinds of components that draft from the target's rows."""


def is_checked(prompts: Sequence[Prompt], prompt: Prompt, repetition: int) -> bool:
    """Whether the drafts of a decode are kept, to be made again."""
    return repetition == 0 and prompt.id in [other.id for other in prompts[:PROMPTS]]


def checked_sample(
    group: LoadedGroup,
    cell: Cell,
    attempt: Attempt,
    context: Sequence[int],
    logits: Float[Tensor, "N V"],
    prompts: ReadPrompts,
) -> dict[str, Any]:
    """The comparison of one decode, for `Sample.drafter`: sums over places, or ``{reason}``.

    It is empty where no draft was kept, or none was made without a drafter.

    Args:
        attempt: the decode, which is over.
        context: prompt and output.
        logits: of the target, for each token of the output.
        prompts: makes the caches; what it lent before is used no more.
    """
    if not attempt.drafts or attempt.run is None:
        return {}
    reason = uncheckable(cell, attempt.run)
    if reason == NO_DRAFTER and not any(len(step.draft) for step in attempt.drafts):
        return {}
    if reason is not None:
        return {"reason": reason}
    start = len(context) - len(logits)
    try:
        p = warp(logits, cell.sampling)
        places: list[Compared] = []
        for step in attempt.drafts:
            prompts.begin(attempt.prompt, context[:start])
            text = context[: step.first]
            anew = drafted_anew(group, cell, attempt, step, text, start, prompts)
            places += compare(step, anew, p[step.first - start :])
    except (Exception, SystemExit) as error:  # a method may raise anything; the cell says why
        return {"reason": one_line(error, "drafter: ")}
    finally:
        prompts.keep_only(group.backbone)
    sums = [sum(values) for values in zip(*places, strict=True)] if places else [0] * len(Compared._fields)
    return {"places": len(places), **dict(zip(Compared._fields, sums, strict=True))}


def uncheckable(cell: Cell, run: FinishedRun) -> str | None:
    """Why the drafts of a method cannot be made anew; None: they can."""
    if {Requirement.ANY_ORDER, Requirement.BIDIRECTIONAL} & cell.method.requirements:
        return OTHER_ORDER
    if not run.opened and not any(kind in TRAINED for kind, _ in cell.method.components):
        return NO_DRAFTER
    return None


def drafted_anew(
    group: LoadedGroup,
    cell: Cell,
    attempt: Attempt,
    step: KeptDraft,
    text: Sequence[int],
    start: int,
    prompts: ReadPrompts,
) -> Draft:
    """The draft of a step, by new models and a new state that read the text up to the step.

    The text is the prompt of the new decode, so that the method starts behind it. A picture's tokens cannot be part of
    a prompt, because its places are counted from the prompt's end; they are appended after the start.

    Args:
        attempt: the decode whose step it is.
        text: prompt and output before the step.
        start: length of the prompt.
        prompts: makes the caches.
    """
    backbone, prompt, run = group.backbone, attempt.prompt, attempt.run
    assert run is not None, "a decode that failed keeps no drafts"
    in_prompt = backbone.capabilities.grid is None and backbone.capabilities.branches == 1
    encoded = backbone.open(prompt)
    if in_prompt:
        encoded = replace(encoded, tokens=tuple(text))
    models = Models(backbone, group.load_drafter, prompt, encoded=encoded, new_cache=prompts.cache)
    emitted = step.first - start
    again = Run.of(models, cell.sampling, run.budget - (emitted if in_prompt else 0), step.draws)
    again.eos = run.eos
    step.draws.emitted = step.first
    prefill(cell.method, again)
    state = begin_method(cell.method, again)
    if not in_prompt:
        again.target.append(torch.tensor(text[start:], device=again.target.device))
        again.target.prefill()
        again.emitted = emitted
    cell.method.step(again, state)
    return again.target.draft


def columns(cell: Cell, samples: Iterable[Sample]) -> dict[str, Any]:
    """The entries of a cell's meta; none where no decode was checked."""
    results = [sample.drafter for sample in samples if sample.status == "ok" and not sample.warmup and sample.drafter]
    reasons = [str(result["reason"]) for result in results if "reason" in result]
    places = sum(result.get("places", 0) for result in results)
    if reasons or (results and not places):
        return {"drafter_reason": (reasons or [NO_STEP])[0]}
    return _means(cell, results, places) if results else {}


def _means(cell: Cell, results: Sequence[Mapping[str, Any]], places: int) -> dict[str, Any]:
    total = {name: sum(result[name] for result in results) for name in Compared._fields}
    return {
        "drafter_places": places,
        "drafter_tv": total["distance"] / places,
        "drafter_tv_limit": limit(cell.dtype, places, total["points"]),
        "drafter_acceptance": total["recorded"] / places,
        "drafter_acceptance_anew": total["anew"] / places,
    }
