"""EAGLE-3: a drafter of three of the target's layers, trained to read its features.

Source: Li et al. 2025, EAGLE-3, arXiv:2503.01840, section 3; decoding as EAGLE-2.
Symbols: x drafted tokens, q the drafter's distributions, p the target's, E expansions, k children of a node, N nodes.
The drafter proposes only the ids of its small head; verification covers the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stridebench.harness.core.capabilities import Tap
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.run import Run
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.eagle.drafter import DynamicTreeMethod, DynamicTrees
from stridebench.methods.drafters.eagle.net import taps_of
from stridebench.methods.verifiers.tree import verify_delta


@METHODS.register("eagle3")
@dataclass(frozen=True)
class Eagle3(DynamicTreeMethod):
    """Grow a tree level by level by the products of q; verify its N best nodes as point masses.

    Args:
        features, depth, width, nodes, sizing, confidence: see `DynamicTreeMethod`. Published depth, width and nodes: 7,
            10, 59 (the released `total_token` of 60 counts the root).
    """

    features: str = "eagle3"

    source = "arXiv:2503.01840, section 3"

    @property
    def taps(self) -> tuple[Tap, ...]:
        """Return layers 2, L / 2 and L - 3 of the target, or those that a published drafter names."""
        return taps_of(self.features)

    def start(self, run: Run) -> DynamicTrees:
        return self.open_drafter(run, "eagle3")

    def step(self, run: Run, state: DynamicTrees) -> Acceptance:
        tree = state.propose(run)
        p = run.probs(run.target.forward(tree.draft))
        acceptance = verify_delta(tree.draft, p, run.draws, state.sizer.extra_ids(tree.draft, tree.ranks))
        state.sizer.follow(acceptance.read())
        return acceptance

    @classmethod
    def variants(cls) -> Sequence[Eagle3]:
        return (cls(), cls(depth=2, width=2, nodes=4), cls(depth=1, width=2, nodes=4, sizing="measured"))
