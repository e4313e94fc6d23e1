"""DFlash: a drafter fills a block of masks in one pass; its rows are drawn independently and verified as a chain.

Source: DFlash, arXiv:2602.06036. Verifier `block`: Sun et al. 2025, arXiv:2403.10444, Algorithm 2.
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
    DRAWN_IN_LESS_PRECISION,
    MOST_PROBABLE_TOKENS,
    BlockDrafter,
    draw_rows,
    taps_of,
)
from stridebench.methods.verifiers.block import CHAIN_VERIFIERS, RATIO_CAPPED_ONCE
from stridebench.methods.verifiers.rejection import CORRECTION_FROM_TARGET


@METHODS.register("dflash")
@dataclass(frozen=True)
class DFlash(Method[BlockDrafter]):
    """Draft B - 1 tokens in one pass of a small bidirectional drafter; keep the prefix that the target accepts.

    Args:
        features: the drafter: trained for the backbone at hand (NAME-BACKBONE), or a folder. A Markov head or a
            candidate selector is not asked here; ``dspark`` and ``dflash2`` draw by them.
        block: B; 0: as the drafter was trained, else fewer.
        verifier: ``token`` tests one draft after the other by p / q. ``block`` tests all of them together, and keeps
            more.
        greedy: draft the most probable tokens at every temperature, as point masses.
    """

    features: str = "dflash"
    block: int = 0
    verifier: Literal["token", "block"] = "token"
    greedy: bool = False

    claim = Claim.SAME_LAW
    source = "arXiv:2602.06036"
    loads: ClassVar[Mapping[str, str]] = {"features": "drafter"}
    requirements = frozenset({Requirement.HIDDEN})
    mutants = (MOST_PROBABLE_TOKENS, DRAWN_IN_LESS_PRECISION, CORRECTION_FROM_TARGET, RATIO_CAPPED_ONCE)

    def __post_init__(self) -> None:
        if self.block < 0 or self.block == 1:
            raise UsageError(f"dflash: block is {self.block}; give 2 rows or more, or 0 for those of the drafter")

    @property
    def taps(self) -> tuple[Tap, ...]:
        """Return the target's layers that the drafter reads."""
        return taps_of(self.features)

    def start(self, run: Run) -> BlockDrafter:
        return BlockDrafter.open(run, self.features, self.block)

    def step(self, run: Run, state: BlockDrafter) -> Acceptance:
        rows = state.rows(run)
        draft = run.nothing if rows is None else draw_rows(run, rows.logits, greedy=self.greedy)
        p = run.probs(run.target.forward(draft))
        return CHAIN_VERIFIERS[self.verifier](draft.tokens, draft.probs, p, run.draws)

    @classmethod
    def variants(cls) -> Sequence[DFlash]:
        return (cls(block=4), cls(block=3, verifier="block"), cls(block=3, greedy=True))
