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
from stridebench.methods.drafters.draft_model import OTHER_PROBS_RECORDED, ModelDrafter
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
        gamma: drafts a step.
        verifier: ``token`` tests one draft after the other by p / q. ``block`` tests all of them together, and keeps
            more. ``match`` keeps the drafts that a sample of the target repeats. ``coupled`` does so too, and the
            drafter draws by the same random numbers.
    """

    drafter: str = "self"
    gamma: int = 5
    verifier: str = "token"

    claim = Claim.SAME_LAW
    source = "arXiv:2211.17192, Algorithm 1"
    requirements = frozenset({Requirement.DRAFTER})
    mutants = (
        CORRECTION_FROM_TARGET,
        DRAFT_ACCEPTED_TOO_OFTEN,
        OTHER_PROBS_RECORDED,
        RATIO_CAPPED_ONCE,
        STOP_WITH_TOKEN_RESIDUAL,
        COMPARED_WITH_NEIGHBOUR,
    )

    def __post_init__(self) -> None:
        if self.gamma < 1:
            raise UsageError(f"speculative: gamma is {self.gamma}; draft at least one token")
        if self.verifier not in VERIFIERS:
            raise UsageError(f"speculative: verifier is {self.verifier!r}; known: {', '.join(VERIFIERS)}")

    def start(self, run: Run) -> ModelDrafter:
        return ModelDrafter(run.open(self.drafter), self.gamma, self.verifier == "coupled")

    def step(self, run: Run, state: ModelDrafter) -> Acceptance:
        draft = state.propose(run)  # x ~ q, gamma times
        p = run.probs(run.target.forward(draft))  # gamma + 1 distributions in one pass
        if self.verifier in BY_RATIO:
            return BY_RATIO[self.verifier](draft.tokens, draft.probs, p, run.draws)
        q = draft.probs if state.coupled else None
        return verify_match(draft.tokens, q, p, run.draws, first=len(run.target))

    @classmethod
    def variants(cls) -> Sequence[Speculative]:
        return (cls("toy", 3), cls("self", 2), *(cls("toy", 3, verifier) for verifier in VERIFIERS[1:]))
