"""EAGLE-2: the tree's form follows the drafter's confidence, whose best nodes are read.

Source: Li et al. 2024, EAGLE-2, arXiv:2406.16858, section 4.
Symbols: x drafted tokens, q drafter's law, p target's law, E expansions, k children a node, N nodes kept.
The confidence chose the nodes, so they are point masses: a test of min(1, p / q), as printed elsewhere, is biased.
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
from methods.drafters.eagle.growth import check_growth
from methods.drafters.eagle.measured_sizing import Size, Sizing, TreeSizer
from methods.verifiers.mutants import POINT_MASSES
from methods.verifiers.tree import verify_delta


@METHODS.register("eagle2")
@dataclass(frozen=True)
class Eagle2(Method[TreeSizer]):
    """Grow a tree level by level by the products of q; read its N best nodes, walk down them as point masses.

    Args:
        features: the drafter, of the package for the backbone at hand (NAME-BACKBONE), or a folder.
        depth: E; a tree has E + 1 levels. width: k. nodes: N; where there are fewer candidates, all of them.
            Published: 7, 10, 60 for texts (5 by default in the class), 4, 10, 59 for pictures.
        sizing: given; or measured: depth and nodes are the most, and each cycle has those that pay best (`TreeSizer`).
    """

    features: str = "eagle1"
    depth: int = 3
    width: int = 4
    nodes: int = 12
    sizing: Sizing = "given"

    claim = Claim.SAME_LAW
    source = "arXiv:2406.16858, section 4"
    requirements = frozenset({Requirement.HIDDEN, Requirement.TREE_MASK})
    taps = (-1,)
    mutants = POINT_MASSES

    def __post_init__(self) -> None:
        check_growth("eagle2", self.depth, self.width, self.nodes)

    @property
    def components(self) -> Sequence[tuple[str, str]]:
        return (("drafter", self.features),)

    def start(self, run: Run) -> TreeSizer:
        drafter = FeatureDrafter.open(run, self.features, "eagle1")
        return TreeSizer.open(run, drafter, Size(self.depth + 1, self.nodes), self.width, self.sizing)

    def step(self, run: Run, state: TreeSizer) -> Acceptance:
        tree = state.propose(run)
        p = run.probs(run.target.forward(tree.draft))
        acceptance = verify_delta(tree.draft, p, run.draws, state.extra_ids(tree))
        state.follow(acceptance.read())
        return acceptance

    @classmethod
    def variants(cls) -> Sequence[Eagle2]:
        return (
            cls(),
            cls(depth=2, width=2, nodes=4),
            cls(depth=1, width=2, nodes=4, sizing="measured"),
            cls(depth=1, width=3, nodes=60),
        )
