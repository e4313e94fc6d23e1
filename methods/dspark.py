"""DSpark: rows of a block in one pass, corrected from left to right by the token before, and cut by their confidence.

Source: DSpark, arXiv:2607.05147. Verifier `block`: Sun et al. 2025, arXiv:2403.10444, Algorithm 2.
Symbols: x drafted tokens, q the drafter's distributions, p the target's, B rows of a block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from stridebench.harness.core.capabilities import Requirement, Tap
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.blocks import (
    CORRECTION_NOT_RECORDED,
    DROPPED_FOR_ITS_CONFIDENCE,
    BlockDrafter,
    draw_corrected,
    taps_of,
)
from stridebench.methods.verifiers.block import CHAIN_VERIFIERS, RATIO_CAPPED_ONCE
from stridebench.methods.verifiers.rejection import CORRECTION_FROM_TARGET


@METHODS.register("dspark")
@dataclass(frozen=True)
class DSpark(Method[BlockDrafter]):
    """Draft B tokens in one pass of a small bidirectional drafter, whose rank-r head lets each see the one before it.

    Args:
        features: the drafter, with a Markov head: trained for the backbone at hand (NAME-BACKBONE), or a folder.
        block: B; 0: as the drafter was trained, else fewer.
        verifier: ``token`` tests one draft after the other by p / q. ``block`` tests all of them together, and keeps
            more.
        confidence: a draft ends before the first row that the confidence head gives less than this; 0: it never does.
    """

    features: str = "dspark"
    block: int = 0
    verifier: Literal["token", "block"] = "token"
    confidence: float = 0.0

    claim = Claim.SAME_LAW
    source = "arXiv:2607.05147"
    loads: ClassVar[Mapping[str, str]] = {"features": "drafter"}
    requirements = frozenset({Requirement.HIDDEN})
    mutants = (CORRECTION_NOT_RECORDED, DROPPED_FOR_ITS_CONFIDENCE, CORRECTION_FROM_TARGET, RATIO_CAPPED_ONCE)

    def __post_init__(self) -> None:
        if self.block < 0 or not 0 <= self.confidence < 1:
            raise UsageError(
                f"dspark: block is {self.block} and confidence {self.confidence:g}; give 1 row or more, or 0 for those "
                f"of the drafter, and a confidence from 0 to below 1"
            )

    @property
    def taps(self) -> tuple[Tap, ...]:
        """Return the target's layers that the drafter reads."""
        return taps_of(self.features)

    def start(self, run: Run) -> BlockDrafter:
        return BlockDrafter.open(run, self.features, self.block, head="markov", confidence=self.confidence > 0)

    def step(self, run: Run, state: BlockDrafter) -> Acceptance:
        rows = state.rows(run)
        draft = run.nothing if rows is None else draw_corrected(run, state, rows, self.confidence)
        p = run.probs(run.target.forward(draft))
        return CHAIN_VERIFIERS[self.verifier](draft.tokens, draft.probs, p, run.draws)

    @classmethod
    def variants(cls) -> Sequence[DSpark]:
        return (cls(block=3), cls(block=3, verifier="block"), cls(block=3, confidence=0.5))
