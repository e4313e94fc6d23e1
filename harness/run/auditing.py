"""The audit of a cell at T > 0: bets on each output as it is scored, and their e-value when the cell is sealed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from stridebench.harness.audit.bets import Bets
from stridebench.harness.audit.filling import filling_of
from stridebench.harness.audit.laws import MARGINS
from stridebench.harness.audit.output import bets_on, drafter_logits, unguided_logits
from stridebench.harness.audit.verdict import Audit, audit
from stridebench.harness.core.canvas import Canvas
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.models import Models
from stridebench.harness.core.task import Prompt
from stridebench.harness.plan.cells import Cell, Plan
from stridebench.harness.record.columns import Sample
from stridebench.harness.run.attempt import one_line
from stridebench.harness.run.loading import LoadedGroup

MASKED = "a masked model gives no distribution of a next token"
NO_LAWS = "no pass gave a distribution of a position before it was filled"
OTHER_RULE = "it draws by its own rule, and its passes do not give the target's distribution"
EARLIER = "its outputs were scored without an audit; `stride audit RUN` makes one"


def audited_sample(
    group: LoadedGroup, cell: Cell, prompt: Prompt, context: Sequence[int], logits: Float[Tensor, "N V"]
) -> dict[str, Any]:
    """The bets on one output, for `Sample.audit`; ``{reason}`` where they could not be made.

    Args:
        context: prompt and output ids.
        logits: of the target, for each token of the output.
    """
    start = len(context) - len(logits)
    try:
        name = _drafter(cell)
        draft_logits = None
        if name is not None:
            draft_logits = drafter_logits(group.backbone, group.load_drafter, name, prompt, context[start:])
        plain_logits = None
        if Requirement.ANY_ORDER not in cell.method.requirements:
            plain_logits = unguided_logits(group.backbone, group.load_drafter, prompt, context[start:])
        margin = max(MARGINS[cell.dtype], MARGINS[group.backbone.dtype])
        return bets_on(logits, context, cell.sampling, margin, draft_logits, plain_logits).plain()
    except (Exception, SystemExit) as error:  # a package's alternative may raise anything; the cell says why
        return {"reason": one_line(error, "audit: ")}


def audited_canvas(group: LoadedGroup, cell: Cell, prompt: Prompt, canvas: Canvas) -> dict[str, Any]:
    """The bets on a canvas in the order of its filling, for `Sample.audit`; ``{reason}`` where there are none.

    Positions that were filled without a pass before them are left out where one token is allowed, as at the end of a
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
        bets = audited_sample(group, cell, prompt, [*before, *filling.tokens], filling.logits.double())
        if filling.unseen and claims_the_target(cell) and "gains" in bets:
            bets["impossible"] += filling.unseen
        return bets
    except (Exception, SystemExit) as error:  # a pass that succeeded once may fail for want of memory
        return {"reason": one_line(error, "audit: ")}


def _drafter(cell: Cell) -> str | None:
    """The drafter whose distributions are computed anew: the first, where it reads the target's tokens in order."""
    names, in_order = cell.method.drafters(), Requirement.ANY_ORDER not in cell.method.requirements
    return names[0] if names and in_order and cell.method.drafter_shrink == 1 else None


def audited_together(plan: Plan) -> int:
    """Number of cells of a run that claim the target's distribution and are audited."""
    return sum(claims_the_target(cell) for cell in plan.runnable)


def claims_the_target(cell: Cell) -> bool:
    """Whether a cell says that its tokens are drawn from the target's distribution."""
    return cell.method.claim is Claim.SAME_LAW and cell.sampling.temperature > 0 and not of_masked_model(cell)


def of_masked_model(cell: Cell) -> bool:
    """Whether there is no distribution of a next token. What a method names as its reference does not matter."""
    return Requirement.BIDIRECTIONAL in cell.method.requirements


def draws_by_other_rule(method: Method[Any]) -> bool:
    """Return whether a method is approximate and the passes that it draws from read an unfinished text."""
    return method.claim is Claim.APPROXIMATE and Requirement.ANY_ORDER in method.requirements


def audit_cell(plan: Plan, cell: Cell, samples: Sequence[Sample]) -> Audit | str | None:
    """The audit of a cell, or why there is none; None where it draws nothing or nothing was decoded."""
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


def columns(result: Audit | str | None) -> dict[str, Any]:
    """The entries of a cell's meta."""
    if isinstance(result, Audit):
        return result.columns
    return {} if result is None else {"audit_reason": result}


def judged(
    cell: Cell, verdict: Mapping[str, Any], result: Audit | str | None, changed: str | None = None
) -> dict[str, Any]:
    """The verdict of a cell, which is broken where it claims the target's distribution and its audit refutes that.

    Args:
        changed: why its process computed with other weights; None: it did not.
    """
    if changed is not None:
        return {**verdict, "word": "broken", "note": changed}
    refuted = isinstance(result, Audit) and result.verdict == "refuted" and claims_the_target(cell)
    return {**verdict, **({"word": "broken", "note": refutation(result)} if refuted else {})}


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
