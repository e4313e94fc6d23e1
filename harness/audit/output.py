"""Audits an output: one pass of the model over it gives the distribution that each of its tokens claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.audit.bets import Bets, added_up, bet
from stridebench.harness.audit.laws import laws_of
from stridebench.harness.audit.outcomes import outcomes_of
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.models import Models
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.core.session import Session
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import ContractError, UsageError

UNGUIDED = "self:guidance=1"
"""The variant of a backbone that is not guided, by its name as a drafter."""
ROWS = 256
"""Rows of a large vocabulary that are held in fp64 at a time."""


def forced_logits(session: Session, output: Sequence[int]) -> Float[Tensor, "N V"]:
    """Logits for each token of an output, from one pass behind the session's tokens.

    Args:
        session: of the prompt alone.
        output: at least one id.
    """
    session.prefill()
    return session.forward(Draft(torch.tensor(output[:-1], dtype=torch.long, device=session.device)))


def target_logits(backbone: Backbone, prompt: Prompt | Sequence[int], output: Sequence[int]) -> Float[Tensor, "N V"]:
    """Logits of a backbone for each token of an output, with a fresh cache."""
    return forced_logits(Models(backbone, lambda name: backbone, prompt).target(), output)


def drafter_logits(
    backbone: Backbone,
    load_drafter: Callable[[str], Backbone],
    name: str,
    prompt: Prompt | Sequence[int],
    output: Sequence[int],
) -> Float[Tensor, "N V"]:
    """Logits of a drafter for each token of an output, given the tokens before it alone."""
    return forced_logits(Models(backbone, load_drafter, prompt).drafter(name, 1), output)


def unguided_logits(
    backbone: Backbone,
    load_drafter: Callable[[str], Backbone],
    prompt: Prompt | Sequence[int],
    output: Sequence[int],
) -> Float[Tensor, "N V"] | None:
    """Logits of a guided backbone without its guidance; None where it has none or cannot leave it out."""
    if backbone.capabilities.guidance == 1 or backbone.toy_drafters:
        return None
    try:
        return drafter_logits(backbone, load_drafter, UNGUIDED, prompt, output)
    except UsageError:
        return None


def bets_on(
    logits: Float[Tensor, "N V"],
    context: Sequence[int],
    sampling: Sampling,
    margin: float,
    draft_logits: Float[Tensor, "N V"] | None = None,
    plain_logits: Float[Tensor, "N V"] | None = None,
) -> Bets:
    """The bets on an output.

    Args:
        logits: of the target, for the last N tokens of ``context``.
        context: prompt and output.
        margin: distance of a logit from a cut of top-k or top-p within which nothing is bet; see `laws.MARGINS`.
        draft_logits: of a drafter, whose draws are warped as the target's.
        plain_logits: of the target without its guidance.

    Raises:
        UsageError: T = 0. ContractError: an alternative of a package breaks the contract, or logits are not finite.
    """
    if not torch.isfinite(logits.amax(-1)).all():  # -inf stands for a token that is not allowed
        raise ContractError(
            "the logits of the target are NaN or infinite, so no token can be held against them: check the weights, or "
            "audit in fp32 or bf16"
        )
    start, parts = len(context) - len(logits), []
    for first in range(0, len(logits), ROWS):
        laws = laws_of(logits[first : first + ROWS], sampling, margin)
        size, place = len(laws.probs), start + first
        tokens = torch.tensor(context[place : place + size], device=laws.probs.device)[:, None]
        q, plain = (
            None if table is None else warp(table[first : first + ROWS], sampling)
            for table in (draft_logits, plain_logits)
        )
        near, probs = (table.gather(1, tokens)[:, 0].cpu().numpy() for table in (laws.near, laws.probs))
        outcomes = outcomes_of(laws, context, place, sampling.top_p, q, plain, start)
        parts.append(bet(outcomes, tokens[:, 0].cpu().numpy(), near, probs))
    return added_up(parts)
