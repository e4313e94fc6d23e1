"""LANTERN++: relaxed acceptance on static trees of sampled tokens, with a bound in proportion to p(x).

Source: Park et al. 2025, LANTERN++, arXiv:2502.06352.
Symbols: x drafted tokens, q the distribution each was drawn from given its earlier siblings, p the target's, k
neighbours of a code, lambda the largest mass that they add, in units of p(x) (the released code writes 1 + lambda).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.eagle.static_tree import StaticDrafter, grow_static
from stridebench.methods.verifiers.lantern import RELAXED, Bound, Relaxed, Residual, check_relaxed, verify_relaxed
from stridebench.methods.verifiers.tree import children


@dataclass(frozen=True)
class LanternPlusPlusState:
    """A drafter with the form of its trees, and the rule that judges its drafts."""

    drafter: StaticDrafter
    rule: Relaxed


@METHODS.register("lanternpp")
@dataclass(frozen=True)
class LanternPlusPlus(Method[LanternPlusPlusState]):
    """Draft as EAGLE; accept a token by its probability and its nearest neighbours'.

    Args:
        features, tree, widths: as EAGLE; the published tree is ``naive_extend_57``.
        k: neighbours. 0: the share of the codebook that 1,000 of 16,384 codes are.
        factor: lambda; 0 is EAGLE.
        resid: as LANTERN.
    """

    features: str = "eagle1"
    tree: str = "eagle_8"
    widths: tuple[int, ...] = ()
    k: int = 0
    factor: float = 2.0
    resid: Residual = "code"

    source = "arXiv:2502.06352"
    loads: ClassVar[Mapping[str, str]] = {"features": "drafter"}
    exact_at = "factor = 0"
    requirements = frozenset({Requirement.HIDDEN, Requirement.TREE_MASK, Requirement.GRID, Requirement.CODEBOOK})
    taps = (-1,)
    mutants = RELAXED

    def __post_init__(self) -> None:
        check_relaxed("lanternpp", self.k, self.factor)

    @property
    def claim(self) -> Claim:
        return Claim.SAME_LAW if self.factor == 0 else Claim.APPROXIMATE

    def start(self, run: Run) -> LanternPlusPlusState:
        device, greedy = run.target.device, run.sampling.temperature == 0
        rule = Relaxed.over(run.capabilities, device, self.k, Bound(factor=self.factor), self.resid, greedy)
        return LanternPlusPlusState(StaticDrafter.open(run, self.features, self.tree, self.widths), rule)

    def step(self, run: Run, state: LanternPlusPlusState) -> Acceptance:
        draft = grow_static(run, state.drafter)
        logits = run.target.forward(draft)
        kids = children(draft.explicit_parents, state.drafter.shape.inner, state.drafter.width)
        return verify_relaxed(draft, logits, run.probs(logits), run.draws, state.rule, kids)

    @classmethod
    def variants(cls) -> Sequence[LanternPlusPlus]:
        lossy = [cls(widths=(2, 1), k=1, resid=resid) for resid in ("code", "relaxed", "p_minus_q")]
        return (*lossy, cls(widths=(2, 1), factor=0.0))
