"""The audit of a cell at T > 0: bets on each output as it is scored, and their e-value when the cell is sealed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.audit.bets import Bets
from stridebench.harness.audit.drafters import DraftComparison, compare, limit
from stridebench.harness.audit.laws import MARGINS, filling_of
from stridebench.harness.audit.output import bets_on, drafter_logits, unguided_logits
from stridebench.harness.audit.verdict import Audit, audit
from stridebench.harness.core.canvas import Canvas
from stridebench.harness.core.capabilities import UNORDERED, Requirement
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.loop import KeptDraft, begin_method, prefill
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import warp
from stridebench.harness.core.task import Prompt
from stridebench.harness.plan.cells import Cell, Plan
from stridebench.harness.record.columns import Sample
from stridebench.harness.record.entries import CellMeta, StoredVerdict
from stridebench.harness.run.attempt import Attempt, FinishedRun, one_line
from stridebench.harness.run.loading import LoadedGroup
from stridebench.harness.run.read_prompts import ReadPrompts

MASKED = "a masked model gives no distribution of a next token"
NO_LAWS = "no pass gave a distribution of a position before it was filled"
OTHER_RULE = "it draws by its own rule, and its passes do not give the target's distribution"
EARLIER = "its outputs were scored without an audit; `stride audit RUN` makes one"


def audited_sample(
    group: LoadedGroup,
    cell: Cell,
    prompt: Prompt,
    context: Sequence[int],
    logits: Float[Tensor, "N V"],
    emitted: Sequence[int] = (),
) -> dict[str, object]:
    """Return the bets on one output, for `Sample.audit`, or ``{reason}`` if they could not be made.

    Args:
        logits: of the target, for each token of the output.
    """
    try:
        return _bets(group, cell, prompt, context, logits, emitted).plain()
    except (Exception, SystemExit) as error:  # a package's alternative may raise anything; the cell says why
        return {"reason": one_line(error, "audit: ")}


def _bets(
    group: LoadedGroup,
    cell: Cell,
    prompt: Prompt,
    context: Sequence[int],
    logits: Float[Tensor, "N V"],
    emitted: Sequence[int] = (),
) -> Bets:
    start = len(context) - len(logits)
    draft_logits = plain_logits = None
    if (name := _drafter(cell)) is not None:
        draft_logits = drafter_logits(group.backbone, group.load_drafter, name, prompt, context[start:])
    if Requirement.ANY_ORDER not in cell.method.requirements:
        plain_logits = unguided_logits(group.backbone, group.load_drafter, prompt, context[start:])
    margin = max(MARGINS[cell.dtype], MARGINS[group.backbone.dtype])
    drafts = cell.role == "method"  # each step of a baseline emits one token, so its places are no places
    return bets_on(logits, context, cell.sampling, margin, draft_logits, plain_logits, emitted if drafts else ())


def audited_canvas(group: LoadedGroup, cell: Cell, prompt: Prompt, canvas: Canvas) -> dict[str, object]:
    """Return the bets on a canvas in the order of its filling, for `Sample.audit`, or ``{reason}``.

    Positions that were filled without a pass before them are left out if one token is allowed, as at the end of a
    row. Elsewhere no sampler of the target could have drawn their tokens, so they refute a claim of its distribution.
    """
    if draws_by_other_rule(cell.method):
        return {"reason": OTHER_RULE}
    try:
        models = Models(group.backbone, group.load_drafter, prompt)
        filling = filling_of(models.canvas(canvas.end - canvas.start), canvas.history)
        if filling.logits is None:
            return {"reason": NO_LAWS}
        before = [canvas.tokens[place] for place in range(canvas.start)]
        bets = _bets(group, cell, prompt, [*before, *filling.tokens], filling.logits.double())
        unseen = filling.unseen if claims_the_target(cell) else 0
        return replace(bets, impossible=bets.impossible + unseen).plain()
    except (Exception, SystemExit) as error:  # a pass that succeeded once may fail for want of memory
        return {"reason": one_line(error, "audit: ")}


def _drafter(cell: Cell) -> str | None:
    """Return the drafter whose distributions are computed anew: the first, if it reads the target's tokens in order."""
    names, in_order = cell.method.drafters(), Requirement.ANY_ORDER not in cell.method.requirements
    return names[0] if names and in_order and cell.method.drafter_shrink == 1 else None


def audited_together(plan: Plan) -> int:
    """Number of cells of a run that claim the target's distribution and are audited."""
    return sum(claims_the_target(cell) for cell in plan.runnable)


def claims_the_target(cell: Cell) -> bool:
    """Whether a cell says that its tokens are drawn from the target's distribution."""
    return cell.method.claim is Claim.SAME_LAW and cell.sampling.temperature > 0 and not of_masked_model(cell)


def of_masked_model(cell: Cell) -> bool:
    """Return whether no distribution of a next token exists. The reference that a method names does not matter."""
    return bool(UNORDERED & cell.method.requirements)


def draws_by_other_rule(method: Method[Any]) -> bool:
    """Return whether a method is approximate and the passes that it draws from read an unfinished text."""
    return method.claim is Claim.APPROXIMATE and Requirement.ANY_ORDER in method.requirements


def audit_cell(plan: Plan, cell: Cell, samples: Sequence[Sample]) -> Audit | str | None:
    """Return the audit of a cell or why there is none, or None if it draws nothing or nothing was decoded."""
    timed = [sample for sample in samples if sample.status == "ok" and not sample.warmup and sample.tokens]
    if cell.sampling.temperature == 0 or not timed:
        return None
    if of_masked_model(cell) or all(not sample.logprobs for sample in timed):
        return MASKED
    if draws_by_other_rule(cell.method):
        return OTHER_RULE
    for sample in timed:
        if "gains" not in sample.audit:
            return str(sample.audit.get("reason", EARLIER))
    return audit([Bets.of(sample.audit) for sample in timed], audited_together(plan))


def audit_facts(result: Audit | str | None) -> CellMeta:
    """Return the facts of a cell about its audit."""
    if isinstance(result, Audit):
        return CellMeta(
            audit_log_e=result.log_e,
            audit_tokens=result.tokens,
            audit_visible_tv=result.visible_tv,
            audit_best=result.best,
            audit_near_cut=result.near,
            audit_impossible=result.impossible,
            audit_threshold=result.threshold,
            audit_needed=result.needed,
        )
    return CellMeta() if result is None else CellMeta(audit_reason=result)


def judged(cell: Cell, verdict: StoredVerdict, result: Audit | str | None, changed: str | None = None) -> StoredVerdict:
    """Return the verdict of a cell: broken if it claims the target's distribution and its audit refutes that.

    Args:
        changed: why its process computed with other weights, or None if it did not.
    """
    if changed is not None:
        return verdict.merged(StoredVerdict(word="broken", note=changed))
    refuted = isinstance(result, Audit) and result.verdict == "refuted" and claims_the_target(cell)
    return verdict.merged(StoredVerdict(word="broken", note=refutation(result))) if refuted else verdict


def refutation(result: Any) -> str:
    """What refutes a sampler, in one line."""
    if result.impossible:
        return (
            f"audit: {result.impossible} of {result.tokens + result.impossible} tokens cannot be drawn at this "
            f"setting, or were emitted before a pass gave their distribution"
        )
    return (
        f"audit: e = 1e{result.log_e / math.log(10):.1f} after {result.tokens} tokens against the target's "
        f"distribution (best bet: {result.best}); a correct sampler reaches {result.threshold:g} once in "
        f"{result.threshold:g} cells"
    )


# Drafts some steps of a decode again with fresh drafters, outside of the timing.


PROMPTS = 3
"""Prompts of a task, its first ones, whose first decode is checked."""
OTHER_ORDER = "it fills positions in another order"
EARLIER_PROMPTS = "its drafts depend on the outputs of earlier prompts"
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
) -> dict[str, object]:
    """The comparison of one decode, for `Sample.drafter`: sums over places, or ``{reason}``.

    It is empty if no draft was kept, or none was made without a drafter.

    Args:
        logits: of the target, for each token of the output.
        prompts: makes the caches; those that it lent before are not used any more.
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
        places: list[DraftComparison] = []
        for step in attempt.drafts:
            prompts.begin(attempt.prompt, context[:start])
            text = context[: step.first]
            anew = drafted_anew(group, cell, attempt, step, text, start, prompts)
            places += compare(step, anew, p[step.first - start :])
    except (Exception, SystemExit) as error:  # a method may raise anything; the cell says why
        return {"reason": one_line(error, "drafter: ")}
    finally:
        prompts.keep_only(group.backbone)
    sums = [sum(values) for values in zip(*places, strict=True)] if places else [0] * len(DraftComparison._fields)
    return {"places": len(places), **dict(zip(DraftComparison._fields, sums, strict=True))}


def uncheckable(cell: Cell, run: FinishedRun) -> str | None:
    """Return why the drafts of a method cannot be made again, or None if they can."""
    if {Requirement.ANY_ORDER, Requirement.BIDIRECTIONAL} & cell.method.requirements:
        return OTHER_ORDER
    if cell.method.remembers:
        return EARLIER_PROMPTS
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
    """
    backbone, prompt, run = group.backbone, attempt.prompt, attempt.run
    assert run is not None, "a decode that failed keeps no drafts"
    in_prompt = backbone.capabilities.grid is None and backbone.capabilities.branches == 1
    encoded = backbone.open(prompt)
    if in_prompt:
        encoded = replace(encoded, tokens=tuple(text))
    models = Models(backbone, group.load_drafter, prompt, encoded=encoded, new_cache=prompts.cache)
    emitted = step.first - start
    again = Run.of(models, cell.sampling, run.budget - (emitted if in_prompt else 0), step.draws, bool(run.eos))
    step.draws.emitted = step.first
    prefill(cell.method, again)
    state = begin_method(cell.method, again)
    if not in_prompt:
        again.target.append(torch.tensor(text[start:], device=again.target.device))
        again.target.prefill()
    cell.method.step(again, state)
    return again.target.draft


def drafter_facts(cell: Cell, samples: Iterable[Sample]) -> CellMeta:
    """Return the facts of a cell about its drafter, or none if no decode was checked."""
    results = [sample.drafter for sample in samples if sample.status == "ok" and not sample.warmup and sample.drafter]
    reasons = [str(result["reason"]) for result in results if "reason" in result]
    places = sum(result.get("places", 0) for result in results)
    if reasons or (results and not places):
        return CellMeta(drafter_reason=(reasons or [NO_STEP])[0])
    if not results:
        return CellMeta()
    total = {name: sum(result[name] for result in results) for name in DraftComparison._fields}
    return CellMeta(
        drafter_places=places,
        drafter_tv=total["distance"] / places,
        drafter_tv_limit=limit(cell.dtype, places, total["points"]),
        drafter_acceptance=total["recorded"] / places,
        drafter_acceptance_anew=total["anew"] / places,
    )
