"""DDTree: the best nodes of the tree that a block drafter's independent rows span, verified in one pass.

Source: DDTree, arXiv:2604.12989, Algorithm 1; the drafter is DFlash's, arXiv:2602.06036.
Symbols: x drafted tokens, q the drafter's distributions, p the target's, B rows of a block, N nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from stridebench.harness.core.capabilities import Requirement, Tap
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.blocks import BlockDrafter, best_tree, taps_of
from stridebench.methods.verifiers.tree import POINT_MASSES, verify_delta


@METHODS.register("ddtree")
@dataclass(frozen=True)
class DDTree(Method[BlockDrafter]):
    """Draft the N most probable prefixes under the product of a block's rows; verify them as point masses.

    Args:
        features: the drafter, as in ``dflash``: trained for the backbone at hand (NAME-BACKBONE), or a folder.
        block: B; 0: as the drafter was trained, else fewer.
        nodes: N.
    """

    features: str = "dflash"
    block: int = 0
    nodes: int = 16

    claim = Claim.SAME_LAW
    source = "arXiv:2604.12989, Algorithm 1"
    loads: ClassVar[Mapping[str, str]] = {"features": "drafter"}
    requirements = frozenset({Requirement.HIDDEN, Requirement.TREE_MASK})
    mutants = POINT_MASSES

    def __post_init__(self) -> None:
        if self.block < 0 or self.block == 1 or self.nodes < 1:
            raise UsageError(
                f"ddtree: block is {self.block} and nodes {self.nodes}; give 2 rows or more, or 0 for those of the "
                f"drafter, and a node or more"
            )

    @property
    def taps(self) -> tuple[Tap, ...]:
        """Return the target's layers that the drafter reads."""
        return taps_of(self.features)

    def start(self, run: Run) -> BlockDrafter:
        return BlockDrafter.open(run, self.features, self.block)

    def step(self, run: Run, state: BlockDrafter) -> Acceptance:
        rows = state.rows(run)
        draft = run.nothing if rows is None else best_tree(rows, min(self.nodes, run.space)).draft
        p = run.probs(run.target.forward(draft))
        return verify_delta(draft, p, run.draws)

    @classmethod
    def variants(cls) -> Sequence[DDTree]:
        return (cls(block=4, nodes=6), cls(block=3, nodes=2))
