"""LANTERN: EAGLE-2 on pictures, where a draft is accepted by the mass of the codes that look like it.

Source: Jang et al. 2024, LANTERN, arXiv:2410.03355, section 4.
Symbols: x drafted tokens, p the target's distributions, k neighbours of a code, delta the largest mass that they add.
delta bounds how far one acceptance moves p. It does not bound the output distribution, which a second or third sibling
moves again.
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
from stridebench.methods.drafters.eagle.drafter import Confidence, FeatureDrafter, check_growth, grow_dynamic
from stridebench.methods.verifiers.lantern import RELAXED, Bound, Relaxed, Residual, check_relaxed, verify_relaxed
from stridebench.methods.verifiers.tree import children


@dataclass(frozen=True)
class LanternState:
    """A drafter, and the rule that judges its drafts."""

    drafter: FeatureDrafter
    rule: Relaxed


@METHODS.register("lantern")
@dataclass(frozen=True)
class Lantern(Method[LanternState]):
    """Draft as EAGLE-2; accept a token by its probability and its nearest neighbours'.

    Args:
        features, depth, width, nodes, confidence: as EAGLE-2. Published depth, width and nodes: 4, 10, 58, and depth
            5 for Lumina-mGPT.
        k: neighbours. 0: the share of the codebook that 1,000 of 16,384 codes are.
        delta: as above; 0 is EAGLE-2. Released 0.1; in ADT-Tree's tables 0.4.
        resid: the residual after a rejection (see `Relaxed`). The released code leaves so little of p that its pictures
            drift to where fewer drafts are accepted than without neighbours.
    """

    features: str = "eagle1"
    depth: int = 3
    width: int = 4
    nodes: int = 12
    k: int = 0
    delta: float = 0.1
    resid: Residual = "relaxed"
    confidence: Confidence = "raw"

    source = "arXiv:2410.03355, section 4"
    loads: ClassVar[Mapping[str, str]] = {"features": "drafter"}
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

    def start(self, run: Run) -> LanternState:
        device, greedy = run.target.device, run.sampling.temperature == 0
        rule = Relaxed.over(run.capabilities, device, self.k, Bound(delta=self.delta), self.resid, greedy)
        return LanternState(FeatureDrafter.open(run, self.features, "eagle1"), rule)

    def step(self, run: Run, state: LanternState) -> Acceptance:
        draft = grow_dynamic(run, state.drafter, self.depth + 1, self.width, self.nodes, self.confidence).draft
        logits = run.target.forward(draft)
        kids = children(draft.explicit_parents, len(draft) + 1, min(self.width, run.capabilities.vocabulary))
        return verify_relaxed(draft, logits, run.probs(logits), run.draws, state.rule, kids)

    @classmethod
    def variants(cls) -> Sequence[Lantern]:
        lossy = [cls(k=1, delta=0.4, resid=resid) for resid in ("code", "relaxed", "p_minus_q")]
        return (*lossy, cls(delta=0.0), cls(depth=1, nodes=4, delta=0.0, confidence="warped"))
