"""SpecTr: k independent continuations of a small model, merged into a trie and judged by k-SEQ at each node.

Source: Sun et al. 2023, arXiv:2310.15141, Algorithms 2 and 3.
Symbols: k continuations, gamma tokens of each, x drafted tokens, q the law each was drawn from, p target's law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from harness.core.capabilities import Requirement
from harness.core.draft import Acceptance, Draft
from harness.core.method import Claim, Method, Mutant
from harness.core.run import Run
from harness.errors import UsageError
from harness.registry import METHODS
from methods.trees.sampled import BranchingDrafter
from methods.trees.structure import trie
from methods.verifiers.k_seq import verify_k_seq
from methods.verifiers.mutants import EARLY_CLOSING

VERIFIER = "methods.verifiers.k_seq:"


@METHODS.register("spectr")
@dataclass(frozen=True)
class SpecTr(Method[BranchingDrafter]):
    """Draft k continuations at once; each accepted token keeps those that begin with it.

    Args:
        drafter: as in ``speculative``. k: continuations. gamma: tokens of each, drafted in as many passes.
    """

    drafter: str = "self"
    k: int = 4
    gamma: int = 5

    claim = Claim.SAME_LAW
    source = "arXiv:2310.15141, Algorithms 2 and 3"
    requirements = frozenset({Requirement.DRAFTER, Requirement.TREE_MASK})
    mutants = (
        Mutant(VERIFIER + "k_seq", "residual(rows, capped * used)", "rows", "the correction is drawn from p"),
        Mutant(VERIFIER + "k_seq", "residual(rows, capped * used)", "residual(rows, capped)", "as if n were 1"),
        Mutant(
            VERIFIER + "merge", "(whole / rest)", "whole", "a node's odds forget that its elder siblings were refused"
        ),
        EARLY_CLOSING,
    )

    def __post_init__(self) -> None:
        if self.k < 1 or self.gamma < 1:
            raise UsageError(
                f"spectr: k is {self.k} and gamma {self.gamma}; draft one continuation of one token or more"
            )

    def start(self, run: Run) -> BranchingDrafter:
        widths = (self.k, *[1] * (self.gamma - 1))
        return BranchingDrafter([run.open(self.drafter)], widths, replacement=True)

    def step(self, run: Run, state: BranchingDrafter) -> Acceptance:
        draft = self._merged(state.propose(run))
        p = run.probs(run.target.forward(draft))
        return verify_k_seq(draft, p, run.draws, self.k)

    def _merged(self, draft: Draft) -> Draft:
        """Tokens of one beginning hang from one node."""
        if not len(draft):
            return draft
        parents, first = trie(draft.tokens.view(-1, self.k))
        return replace(draft, parents=parents, repeats=first != torch.arange(len(draft), device=first.device))

    @classmethod
    def variants(cls) -> Sequence[SpecTr]:
        return (cls("toy", k=2, gamma=2),)
