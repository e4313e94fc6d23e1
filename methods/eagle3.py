"""EAGLE-3: a drafter of three of the target's layers, which learned to read its own features.

Source: Li et al. 2025, EAGLE-3, arXiv:2503.01840, section 3; decoding as EAGLE-2.
Symbols: x drafted tokens, q drafter's law, p target's law, E expansions, k children a node, N nodes kept.
It proposes the ids of its own small head alone; verification makes up for the others.
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


@METHODS.register("eagle3")
@dataclass(frozen=True)
class Eagle3(Method[TreeSizer]):
    """Grow a tree level by level by the products of q; read its N best nodes, walk down them as point masses.

    Args:
        features: the drafter, of the package for the backbone at hand (NAME-BACKBONE), or a folder.
        depth: E; a tree has E + 1 levels. width: k. nodes: N; where there are fewer candidates, all of them.
            Published: 7, 10, 60.
        sizing: given; or measured: depth and nodes are the most, and each cycle has those that pay best (`TreeSizer`).
    """

    features: str = "eagle3"
    depth: int = 3
    width: int = 4
    nodes: int = 12
    sizing: Sizing = "given"

    claim = Claim.SAME_LAW
    source = "arXiv:2503.01840, section 3"
    requirements = frozenset({Requirement.HIDDEN, Requirement.TREE_MASK})
    taps = (2, "middle", -4)
    mutants = POINT_MASSES

    def __post_init__(self) -> None:
        check_growth("eagle3", self.depth, self.width, self.nodes)

    @property
    def components(self) -> Sequence[tuple[str, str]]:
        return (("drafter", self.features),)

    def start(self, run: Run) -> TreeSizer:
        drafter = FeatureDrafter.open(run, self.features, "eagle3")
        return TreeSizer.open(run, drafter, Size(self.depth + 1, self.nodes), self.width, self.sizing)

    def step(self, run: Run, state: TreeSizer) -> Acceptance:
        tree = state.propose(run)
        p = run.probs(run.target.forward(tree.draft))
        acceptance = verify_delta(tree.draft, p, run.draws, state.extra_ids(tree))
        state.follow(acceptance.read())
        return acceptance

    @classmethod
    def variants(cls) -> Sequence[Eagle3]:
        return (cls(), cls(depth=2, width=2, nodes=4), cls(depth=1, width=2, nodes=4, sizing="measured"))
