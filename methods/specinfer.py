"""SpecInfer: a tree of sampled drafts of one or more small models, verified by multi-step speculative sampling.

Source: Miao et al. 2023, arXiv:2305.09781, Algorithm 2 (multi-step speculative sampling); without replacement:
Jeon et al. 2024, recursive speculative decoding, arXiv:2402.14160. Verifier `traversal`: Weng et al. 2025,
arXiv:2505.12398.
Symbols: x drafted tokens, q the distribution each was drawn from given its earlier siblings, p the target's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.tree_shapes import (
    EARLIER_SIBLINGS_NOT_REMOVED,
    MOST_PROBABLE_SIBLINGS,
    SIBLINGS_SORTED_BY_CONFIDENCE,
    BranchingDrafter,
)
from stridebench.methods.verifiers.block import DIVIDED_BY_REFUSED_MASS, verify_traversal
from stridebench.methods.verifiers.tree import (
    EARLIER_SIBLINGS_FORGOTTEN,
    UNWARPED_NEXT_TOKEN,
    verify_multi_step,
)


@METHODS.register("specinfer")
@dataclass(frozen=True)
class SpecInfer(Method[BranchingDrafter]):
    """Draft a tree with one or more small models; walk down it by rejection sampling.

    Args:
        drafter: as in ``speculative``.
        others: more drafters, whose children follow the first one's.
        widths: children that each drafter draws below every node of a level. The paper has 1, 1, 3, 1, 1, 1, 1, 1.
        replacement: false draws siblings without replacement.
        verifier: ``siblings`` tries them one after the other, from the root down. ``traversal`` tests leaves first, and
            keeps more; its cost grows with the vocabulary.
    """

    drafter: str = "self"
    others: tuple[str, ...] = ()
    widths: tuple[int, ...] = (1, 1, 3, 1, 1, 1, 1, 1)
    replacement: bool = True
    verifier: Literal["siblings", "traversal"] = "siblings"

    claim = Claim.SAME_LAW
    source = "arXiv:2305.09781, Algorithm 2"
    requirements = frozenset({Requirement.DRAFTER, Requirement.TREE_MASK})
    mutants = (
        EARLIER_SIBLINGS_FORGOTTEN,
        EARLIER_SIBLINGS_NOT_REMOVED,
        MOST_PROBABLE_SIBLINGS,
        SIBLINGS_SORTED_BY_CONFIDENCE,
        UNWARPED_NEXT_TOKEN,
        DIVIDED_BY_REFUSED_MASS,
    )

    def __post_init__(self) -> None:
        if not self.widths or min(self.widths) < 1:
            raise UsageError(
                f"specinfer: widths are {self.widths}; give a child or more for each of one or more levels"
            )

    def drafters(self) -> Sequence[str]:
        return (self.drafter, *self.others)

    def start(self, run: Run) -> BranchingDrafter:
        if not self.replacement and max(self.widths) > run.capabilities.vocabulary:
            raise UsageError(
                f"specinfer: {max(self.widths)} siblings without replacement and a vocabulary of "
                f"{run.capabilities.vocabulary}; give smaller widths"
            )
        sessions = [run.open(name) for name in self.drafters()]
        return BranchingDrafter(sessions, self.widths, self.replacement)

    def step(self, run: Run, state: BranchingDrafter) -> Acceptance:
        draft = state.propose(run)
        p = run.probs(run.target.forward(draft))
        if self.verifier == "traversal":
            return verify_traversal(draft, p, run.draws)
        return verify_multi_step(draft, p, run.draws, inner=state.shape.inner, width=state.shape.width)

    @classmethod
    def variants(cls) -> Sequence[SpecInfer]:
        return (
            cls("toy", widths=(2, 1)),
            cls("toy", widths=(2, 1), replacement=False),
            cls("toy", ("other",), widths=(1,)),
            cls("toy", widths=(2, 1), verifier="traversal"),
            cls("toy", ("other",), widths=(1,), verifier="traversal"),
        )
