"""P-EAGLE: one pass of EAGLE-3's drafter over its last row and masks behind it drafts a chain of independent tokens.

Source: P-EAGLE, arXiv:2602.01469.
Symbols: x drafted tokens, q the drafter's distributions, p the target's, K drafts.
The first draft is EAGLE-3's, from the last token and three hidden rows of the target. The others have neither: their
K - 1 rows read the embedding of a mask and one learned hidden row, and attend to the rows before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stridebench.harness.core.capabilities import Tap
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.run import Run
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.eagle.net import taps_of
from stridebench.methods.drafters.eagle.static_tree import ChainMethod, StaticDrafter, grow_chain


@METHODS.register("p_eagle")
@dataclass(frozen=True)
class ParallelEagle(ChainMethod):
    """Draft K tokens in one pass of an EAGLE-3 drafter that fills masks; keep the prefix that the target accepts.

    Args:
        features, depth, verifier, policy: see `ChainMethod`. A policy ends a chain of which all rows were computed.
    """

    features: str = "p_eagle"
    depth: int = 4

    source = "arXiv:2602.01469"

    @property
    def taps(self) -> tuple[Tap, ...]:
        """Return layers 2, L / 2 and L - 3 of the target, or those that a published drafter names."""
        return taps_of(self.features)

    def start(self, run: Run) -> StaticDrafter:
        return self.open_chains(run, "p_eagle")

    def step(self, run: Run, state: StaticDrafter) -> Acceptance:
        draft = grow_chain(run, state)
        p = run.probs(run.target.forward(draft))
        return self.verified(run, state, draft, p)

    @classmethod
    def variants(cls) -> Sequence[ParallelEagle]:
        return (cls(depth=3), cls(depth=3, verifier="block"), cls(depth=3, policy="keep:0.6"))
