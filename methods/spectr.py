"""SpecTr: k independent continuations of a small model, merged into a trie and judged by k-SEQ at each node.

Source: Sun et al. 2023, arXiv:2310.15141, Algorithms 2 and 3.
Symbols: k continuations, gamma tokens of each, x drafted tokens, q the distribution each was drawn from, p the
target's.
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
from stridebench.methods.drafters.tree_shapes import BranchingDrafter
from stridebench.methods.verifiers.k_seq import (
    K_SEQ_CORRECTION_FROM_TARGET,
    K_SEQ_RESIDUAL_OF_ONE,
    K_SEQ_SIBLINGS_FORGOTTEN,
    verify_k_seq,
)
from stridebench.methods.verifiers.tree import UNWARPED_NEXT_TOKEN


@METHODS.register("spectr")
@dataclass(frozen=True)
class SpecTr(Method[BranchingDrafter]):
    """Draft k continuations at once; each accepted token keeps those that begin with it.

    Args:
        drafter: as in ``speculative``.
        k: continuations.
        gamma: tokens of each, drafted in as many passes.
    """

    drafter: str = "self"
    k: int = 4
    gamma: int = 5

    claim = Claim.SAME_LAW
    source = "arXiv:2310.15141, Algorithms 2 and 3"
    requirements = frozenset({Requirement.DRAFTER, Requirement.TREE_MASK})
    mutants = (
        K_SEQ_CORRECTION_FROM_TARGET,
        K_SEQ_RESIDUAL_OF_ONE,
        K_SEQ_SIBLINGS_FORGOTTEN,
        UNWARPED_NEXT_TOKEN,
    )

    def __post_init__(self) -> None:
        if self.k < 1 or self.gamma < 1:
            raise UsageError(
                f"spectr: k is {self.k} and gamma {self.gamma}; draft one continuation of one token or more"
            )

    def start(self, run: Run) -> BranchingDrafter:
        widths = (self.k, *[1] * (self.gamma - 1))
        return BranchingDrafter([run.open(self.drafter)], widths, replacement=True, continuations=self.k)

    def step(self, run: Run, state: BranchingDrafter) -> Acceptance:
        draft = state.propose(run)
        p = run.probs(run.target.forward(draft))
        return verify_k_seq(draft, p, run.draws, self.k)

    @classmethod
    def variants(cls) -> Sequence[SpecTr]:
        return (cls("toy", k=2, gamma=2),)
