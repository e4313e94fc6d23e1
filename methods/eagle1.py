"""EAGLE: a drafter of the target's hidden rows grows a static tree of sampled tokens.

Source: Li et al. 2024, EAGLE, arXiv:2401.15077, section 3. Verifiers: `block` of Sun et al. 2025, arXiv:2403.10444;
`traversal` of Weng et al. 2025, arXiv:2505.12398.
Symbols: x drafted tokens, q the distribution each was drawn from given its earlier siblings, p the target's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.draft_model import DraftLength
from stridebench.methods.drafters.eagle.static_tree import (
    DEEPEST,
    DROPPED_FOR_ITS_PROBABILITY,
    SIBLINGS_SORTED_BY_CONFIDENCE,
    StaticDrafter,
    grow_static,
)
from stridebench.methods.drafters.tree_shapes import MOST_PROBABLE_SIBLINGS
from stridebench.methods.verifiers.block import (
    DIVIDED_BY_REFUSED_MASS,
    RATIO_CAPPED_ONCE,
    verify_block,
    verify_traversal,
)
from stridebench.methods.verifiers.tree import (
    EARLIER_SIBLINGS_FORGOTTEN,
    UNWARPED_NEXT_TOKEN,
    verify_multi_step,
)


@METHODS.register("eagle1")
@dataclass(frozen=True)
class Eagle1(Method[StaticDrafter]):
    """Draft a tree of fixed form, siblings without replacement; walk down it by rejection sampling.

    At T = 0 siblings are the drafter's most probable tokens, and the path is that of argmaxima.

    Args:
        features: the drafter: shipped for the backbone at hand (NAME-BACKBONE), or a folder.
        tree: by name. eagle_8 is cheap on a CPU; eagle_25 is the released ``mc_sim_7b_63``.
        widths: children of each node level by level, instead of a tree by name; (1, 1, 1) is a chain of three.
        verifier: ``siblings`` tries them one after the other, from the root down. ``traversal`` tests leaves first, and
            keeps more at T > 0. ``block`` is traversal on a chain.
        policy: where a chain ends, as in ``speculative``.
    """

    features: str = "eagle1"
    tree: str = "eagle_8"
    widths: tuple[int, ...] = ()
    verifier: Literal["siblings", "traversal", "block"] = "siblings"
    policy: str = ""

    claim = Claim.SAME_LAW
    source = "arXiv:2401.15077, section 3"
    loads: ClassVar[Mapping[str, str]] = {"features": "drafter"}
    requirements = frozenset({Requirement.HIDDEN, Requirement.TREE_MASK})
    taps = (-1,)
    mutants = (
        EARLIER_SIBLINGS_FORGOTTEN,
        SIBLINGS_SORTED_BY_CONFIDENCE,
        MOST_PROBABLE_SIBLINGS,
        UNWARPED_NEXT_TOKEN,
        DIVIDED_BY_REFUSED_MASS,
        RATIO_CAPPED_ONCE,
        DROPPED_FOR_ITS_PROBABILITY,
    )

    def __post_init__(self) -> None:
        if any(width < 1 for width in self.widths):
            raise UsageError(f"eagle1: widths are {self.widths}; give a child or more for each level")
        for name, value in (("verifier", self.verifier), ("policy", self._length().name)):
            if value not in ("", "siblings", "traversal") and (not self.widths or max(self.widths) > 1):
                raise UsageError(f"eagle1: {name} {value} is for chains; give widths of 1, such as (1, 1, 1)")
        if self._length().name == "p_min":
            raise UsageError("eagle1: policy p_min is for drafts that are not drawn; take conf")

    def _length(self) -> DraftLength:
        return DraftLength.of("eagle1", self.policy, len(self.widths) or DEEPEST)

    def start(self, run: Run) -> StaticDrafter:
        return StaticDrafter.open(run, self.features, self.tree, self.widths, self._length())

    def step(self, run: Run, state: StaticDrafter) -> Acceptance:
        draft = grow_static(run, state)
        p = run.probs(run.target.forward(draft))
        if self.verifier == "siblings":
            acceptance = verify_multi_step(draft, p, run.draws, inner=state.shape.inner, width=state.width)
        elif self.verifier == "traversal":
            acceptance = verify_traversal(draft, p, run.draws)
        else:
            acceptance = verify_block(draft.tokens, draft.probs, p, run.draws)
        state.length.follow(len(draft), acceptance)
        return acceptance

    @classmethod
    def variants(cls) -> Sequence[Eagle1]:
        chains = [cls(widths=(1, 1), verifier="block"), cls(widths=(1, 1), policy="keep:0.6")]
        return (cls(widths=(2, 1)), *chains, cls(widths=(2,)), cls(widths=(2, 1), verifier="traversal"))
