"""LANTERN: EAGLE-2 on pictures, where a draft is accepted by the mass of the codes that look like it.

Source: Jang et al. 2024, LANTERN, arXiv:2410.03355, section 4.
Symbols: x drafted tokens, p target's law, k neighbours of a code, delta the most mass that they lend.
delta bounds how far one acceptance may move p, not the output's law, which a second or third sibling moves again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.core.capabilities import Requirement
from harness.core.draft import Acceptance
from harness.core.method import Claim, Method
from harness.core.run import Run
from harness.registry import METHODS
from methods.drafters.eagle.drafter import FeatureDrafter
from methods.drafters.eagle.growth import check_growth, check_relaxed
from methods.drafters.eagle.trees import grow_dynamic
from methods.verifiers.lantern import Relaxed, Residual, verify_relaxed
from methods.verifiers.mutants import RELAXED


@dataclass(frozen=True)
class Relaxing:
    """A drafter, and the rule that judges its drafts."""

    drafter: FeatureDrafter
    rule: Relaxed


@METHODS.register("lantern")
@dataclass(frozen=True)
class Lantern(Method[Relaxing]):
    """Draft as EAGLE-2; accept a token by its own probability and its nearest neighbours'.

    Args:
        features, depth, width, nodes: as EAGLE-2; published 4, 10, 59. k: neighbours; 0: a share of the codebook, that
            of 1,000 of 16,384 codes. delta: as above; 0 is EAGLE-2. Released 0.1; in ADT-Tree's tables 0.4.
        resid: what a refusal leaves (see `Relaxed`). The released code leaves so little of p that its pictures drift to
            where fewer drafts pass than without neighbours.
    """

    features: str = "eagle1"
    depth: int = 3
    width: int = 4
    nodes: int = 12
    k: int = 0
    delta: float = 0.1
    resid: Residual = "relaxed"

    source = "arXiv:2410.03355, section 4"
    exact_at = "delta = 0"
    requirements = frozenset({Requirement.HIDDEN, Requirement.TREE_MASK, Requirement.GRID, Requirement.CODEBOOK})
    taps = (-1,)
    mutants = RELAXED

    def __post_init__(self) -> None:
        check_growth("lantern", self.depth, self.width, self.nodes)
        check_relaxed("lantern", self.k, self.delta)

    @property
    def claim(self) -> Claim:
        return Claim.SAME_LAW if self.delta == 0 else Claim.APPROXIMATE

    @property
    def components(self) -> Sequence[tuple[str, str]]:
        return (("drafter", self.features),)

    def start(self, run: Run) -> Relaxing:
        rule = Relaxed.over(run.capabilities, run.target.device, self.k, self.delta, False, self.resid)
        return Relaxing(FeatureDrafter.open(run, self.features, "eagle1"), rule)

    def step(self, run: Run, state: Relaxing) -> Acceptance:
        draft = grow_dynamic(run, state.drafter, self.depth + 1, self.width, self.nodes)
        logits = run.target.forward(draft)
        greedy = run.sampling.temperature == 0
        inner, width = len(draft) + 1, min(self.width, run.capabilities.vocabulary)
        return verify_relaxed(
            draft, logits, run.probs(logits), run.draws, state.rule, inner=inner, width=width, greedy=greedy
        )

    @classmethod
    def variants(cls) -> Sequence[Lantern]:
        lossy = [cls(k=1, delta=0.4, resid=resid) for resid in ("code", "relaxed", "p_minus_q")]
        return (*lossy, cls(delta=0.0))
