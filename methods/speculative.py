"""Speculative sampling with an independent draft model.

Source: Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1. Verifiers: `block` of Sun et al. 2025, arXiv:2403.10444,
Algorithm 2; `match`, and `coupled` of Daliri et al. 2024, arXiv:2408.07978.
Symbols: x drafted tokens, q the drafter's distributions, p the target's, gamma draft length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.draft_model import (
    DROPPED_FOR_ITS_PROBABILITY,
    OTHER_PROBS_RECORDED,
    DraftLength,
    ModelDrafter,
)
from stridebench.methods.verifiers.block import RATIO_CAPPED_ONCE, STOP_WITH_TOKEN_RESIDUAL, verify_block
from stridebench.methods.verifiers.match import COMPARED_WITH_NEIGHBOUR, verify_match
from stridebench.methods.verifiers.rejection import CORRECTION_FROM_TARGET, DRAFT_ACCEPTED_TOO_OFTEN, verify_chain

BY_RATIO = {"token": verify_chain, "block": verify_block}
VERIFIERS = (*BY_RATIO, "match", "coupled")


@METHODS.register("speculative")
@dataclass(frozen=True)
class Speculative(Method[ModelDrafter]):
    """Draft gamma tokens with a small model; keep the prefix the target accepts.

    Args:
        drafter: a backbone of the same vocabulary. ``self`` is the target itself (a check, never a gain);
            ``self:layers=N`` is the target with N of its layers.
        gamma: drafts a step, or the most if a policy ends them before.
        verifier: ``token`` tests one draft after the other by p / q. ``block`` tests all of them together, and keeps
            more. ``match`` keeps the drafts that a sample of the target repeats. ``coupled`` does so too, and the
            drafter draws by the same random numbers.
        policy: where a draft ends. ``conf:t`` ends it before a position whose most probable token has less than t.
            ``keep:t`` ends it behind a token of less than t. ``p_min:t`` is ``conf`` with the most probable tokens as
            drafts. ``entropy`` ends it before a position of high entropy. ``ema`` drafts one more than was accepted
            lately. ``table:1=8,4=3`` is for batches: 8 tokens for one decode, 3 from four on.
    """

    drafter: str = "self"
    gamma: int = 5
    verifier: str = "token"
    policy: str = ""

    claim = Claim.SAME_LAW
    source = "arXiv:2211.17192, Algorithm 1"
    requirements = frozenset({Requirement.DRAFTER})
    mutants = (
        CORRECTION_FROM_TARGET,
        DRAFT_ACCEPTED_TOO_OFTEN,
        OTHER_PROBS_RECORDED,
        DROPPED_FOR_ITS_PROBABILITY,
        RATIO_CAPPED_ONCE,
        STOP_WITH_TOKEN_RESIDUAL,
        COMPARED_WITH_NEIGHBOUR,
    )

    def __post_init__(self) -> None:
        if self.gamma < 1:
            raise UsageError(f"speculative: gamma is {self.gamma}; draft at least one token")
        if self.verifier not in VERIFIERS:
            raise UsageError(f"speculative: verifier is {self.verifier!r}; known: {', '.join(VERIFIERS)}")
        if self._length().name == "p_min" and self.verifier == "coupled":
            raise UsageError(
                "speculative: policy p_min drafts the most probable tokens, and a coupled drafter draws its own; "
                "take conf, or verifier match"
            )

    def _length(self) -> DraftLength:
        return DraftLength.of("speculative", self.policy, self.gamma)

    def start(self, run: Run) -> ModelDrafter:
        return ModelDrafter(run.open(self.drafter), self.gamma, self._length(), self.verifier == "coupled")

    def step(self, run: Run, state: ModelDrafter) -> Acceptance:
        draft = state.propose(run)  # x ~ q, gamma times
        p = run.probs(run.target.forward(draft))  # gamma + 1 distributions in one pass
        if self.verifier in BY_RATIO:
            acceptance = BY_RATIO[self.verifier](draft.tokens, draft.probs, p, run.draws)
        else:
            q = draft.probs if state.coupled else None
            acceptance = verify_match(draft.tokens, q, p, run.draws, first=len(run.target))
        state.length.follow(len(draft), acceptance)
        return acceptance

    @classmethod
    def variants(cls) -> Sequence[Speculative]:
        verifiers = [cls("toy", 3, verifier) for verifier in VERIFIERS[1:]]
        by_law = [cls("toy", 3, "block", policy) for policy in ("conf:0.6", "keep:0.6", "entropy:0.6")]
        return (cls("toy", 3), cls("self", 2), *verifiers, *by_law, cls("toy", 3, policy="p_min:0.5"))
