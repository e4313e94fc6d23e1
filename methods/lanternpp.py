"""LANTERN++: relaxed acceptance on static trees of sampled tokens, with a bound in proportion to p(x).

Source: Park et al. 2025, LANTERN++, arXiv:2502.06352.
Symbols: x drafted tokens, q the law each was drawn from given its elder siblings, p target's law, k neighbours of a
code, lambda the most mass that they lend, in units of p(x) (the released code writes 1 + lambda).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.core.capabilities import Requirement
from harness.core.draft import Acceptance
from harness.core.method import Claim, Method
from harness.core.run import Run
from harness.registry import METHODS
from methods.drafters.eagle.growth import check_relaxed
from methods.drafters.eagle.trees import StaticDrafter, grow_static
from methods.verifiers.lantern import Relaxed, Residual, verify_relaxed
from methods.verifiers.mutants import RELAXED


@dataclass(frozen=True)
class Relaxing:
    """A drafter with the form of its trees, and the rule that judges its drafts."""

    drafter: StaticDrafter
    rule: Relaxed


@METHODS.register("lanternpp")
@dataclass(frozen=True)
class LanternPlusPlus(Method[Relaxing]):
    """Draft as EAGLE; accept a token by its own probability and its nearest neighbours'.

    Args:
        features, tree, widths: as EAGLE; the published tree is ``naive_extend_57``. k: neighbours; 0: a share of the
            codebook, that of 1,000 of 16,384 codes. factor: lambda; 0 is EAGLE. resid: as LANTERN.
    """

    features: str = "eagle1"
    tree: str = "eagle_8"
    widths: tuple[int, ...] = ()
    k: int = 0
    factor: float = 2.0
    resid: Residual = "code"

    source = "arXiv:2502.06352"
    exact_at = "factor = 0"
    requirements = frozenset({Requirement.HIDDEN, Requirement.TREE_MASK, Requirement.GRID, Requirement.CODEBOOK})
    taps = (-1,)
    mutants = RELAXED

    def __post_init__(self) -> None:
        check_relaxed("lanternpp", self.k, self.factor)

    @property
    def claim(self) -> Claim:
        return Claim.SAME_LAW if self.factor == 0 else Claim.APPROXIMATE

    @property
    def components(self) -> Sequence[tuple[str, str]]:
        return (("drafter", self.features),)

    def start(self, run: Run) -> Relaxing:
        rule = Relaxed.over(run.capabilities, run.target.device, self.k, self.factor, True, self.resid)
        return Relaxing(StaticDrafter.open(run, self.features, self.tree, self.widths), rule)

    def step(self, run: Run, state: Relaxing) -> Acceptance:
        form, draft = state.drafter, grow_static(run, state.drafter)
        logits = run.target.forward(draft)
        greedy = run.sampling.temperature == 0
        return verify_relaxed(
            draft,
            logits,
            run.probs(logits),
            run.draws,
            state.rule,
            inner=form.shape.inner,
            width=form.width,
            greedy=greedy,
        )

    @classmethod
    def variants(cls) -> Sequence[LanternPlusPlus]:
        lossy = [cls(widths=(2, 1), k=1, resid=resid) for resid in ("code", "relaxed", "p_minus_q")]
        return (*lossy, cls(widths=(2, 1), factor=0.0))
