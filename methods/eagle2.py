"""EAGLE-2: the tree's form follows the drafter's confidence, and its best nodes are verified.

Source: Li et al. 2024, EAGLE-2, arXiv:2406.16858, section 4.
Symbols: x drafted tokens, q the drafter's distributions, p the target's, E expansions, k children of a node, N nodes.
The confidence chooses the nodes, so they are point masses: a test of min(1, p / q), as printed elsewhere, is biased.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.run import Run
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.eagle.drafter import DynamicTreeMethod, DynamicTrees
from stridebench.methods.verifiers.tree import verify_delta


@METHODS.register("eagle2")
@dataclass(frozen=True)
class Eagle2(DynamicTreeMethod):
    """Grow a tree level by level by the products of q; verify its N best nodes as point masses.

    Args:
        features, depth, width, nodes, sizing, confidence: see `DynamicTreeMethod`. Published depth, width and nodes: 7,
            10, 59 for texts (depth 5 by default in the class); 4, 10, 58 for pictures, warped. The released
            `total_token` is one more, because it counts the root.
    """

    features: str = "eagle1"

    source = "arXiv:2406.16858, section 4"
    taps = (-1,)

    def start(self, run: Run) -> DynamicTrees:
        return self.open_drafter(run, "eagle1")

    def step(self, run: Run, state: DynamicTrees) -> Acceptance:
        tree = state.propose(run)
        p = run.probs(run.target.forward(tree.draft))
        acceptance = verify_delta(tree.draft, p, run.draws, state.sizer.extra_ids(tree.draft, tree.ranks))
        state.sizer.follow(acceptance.read())
        return acceptance

    @classmethod
    def variants(cls) -> Sequence[Eagle2]:
        return (
            cls(),
            cls(depth=2, width=2, nodes=4),
            cls(depth=2, width=2, nodes=4, confidence="warped"),
            cls(depth=1, width=2, nodes=4, sizing="measured"),
            cls(depth=1, width=3, nodes=60),
        )
