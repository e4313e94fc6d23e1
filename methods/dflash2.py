"""DFlash2: one pass gives each row of a block its candidates; each is chosen by the token that was chosen before it.

Source: z-lab/dflash, ``DFlash2DraftModel``. Verifier `block`: Sun et al. 2025, arXiv:2403.10444, Algorithm 2.
Symbols: x drafted tokens, q the drafter's distributions, which hold the candidates alone, p the target's, B rows of a
block.
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
from stridebench.methods.drafters.blocks import CORRECTION_NOT_RECORDED, BlockDrafter, draw_corrected, taps_of
from stridebench.methods.verifiers.block import CHAIN_VERIFIERS, RATIO_CAPPED_ONCE
from stridebench.methods.verifiers.rejection import CORRECTION_FROM_TARGET


@METHODS.register("dflash2")
@dataclass(frozen=True)
class DFlash2(Method[BlockDrafter]):
    """Draft B - 1 tokens in one pass of a small bidirectional drafter; a selector chooses each among a few candidates.

    Args:
        features: the drafter, with a candidate selector: trained for the backbone at hand (NAME-BACKBONE), or a folder.
        block: B; 0: as the drafter was trained, else fewer.
        verifier: ``token`` tests one draft after the other by p / q. ``block`` tests all of them together, and keeps
            more.
    """

    features: str = "dflash2"
    block: int = 0
    verifier: Literal["token", "block"] = "token"

    claim = Claim.SAME_LAW
    source = "z-lab/dflash, DFlash2DraftModel"
    loads: ClassVar[Mapping[str, str]] = {"features": "drafter"}
    requirements = frozenset({Requirement.HIDDEN})
    mutants = (CORRECTION_NOT_RECORDED, CORRECTION_FROM_TARGET, RATIO_CAPPED_ONCE)

    def __post_init__(self) -> None:
        if self.block < 0 or self.block == 1:
            raise UsageError(f"dflash2: block is {self.block}; give 2 rows or more, or 0 for those of the drafter")

    @property
    def taps(self) -> tuple[Tap, ...]:
        """Return the target's layers that the drafter reads."""
        return taps_of(self.features)

    def start(self, run: Run) -> BlockDrafter:
        return BlockDrafter.open(run, self.features, self.block, head="selector")

    def step(self, run: Run, state: BlockDrafter) -> Acceptance:
        rows = state.rows(run)
        draft = run.nothing if rows is None else draw_corrected(run, state, rows)
        p = run.probs(run.target.forward(draft))
        return CHAIN_VERIFIERS[self.verifier](draft.tokens, draft.probs, p, run.draws)

    @classmethod
    def variants(cls) -> Sequence[DFlash2]:
        return (cls(block=3), cls(block=3, verifier="block"))
