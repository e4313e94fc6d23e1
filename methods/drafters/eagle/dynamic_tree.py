"""What EAGLE-2 and EAGLE-3 share: parameters, checks, and the drafter that grows a tree by its confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.core.capabilities import Requirement
from harness.core.method import Claim, Method
from harness.core.run import Run
from methods.drafters.eagle.drafter import FeatureDrafter
from methods.drafters.eagle.measured_sizing import Size, Sizing, TreeSizer
from methods.drafters.eagle.shape import Kind
from methods.drafters.eagle.trees import check_growth
from methods.verifiers.mutants import POINT_MASSES


@dataclass(frozen=True)
class DynamicTreeMethod(Method[TreeSizer]):
    """A method whose tree grows level by level by the products of q, and keeps its N best nodes.

    Args:
        features: the drafter: shipped for the backbone at hand (NAME-BACKBONE), or a folder.
        depth: E; a tree has E + 1 levels.
        width: k.
        nodes: N; where there are fewer candidates, all of them.
        sizing: given: ``depth`` and ``nodes`` as they are. measured: they are the most, and each cycle takes those that
            pay best (see `TreeSizer`).
    """

    features: str
    depth: int = 3
    width: int = 4
    nodes: int = 12
    sizing: Sizing = "given"

    claim = Claim.SAME_LAW
    requirements = frozenset({Requirement.HIDDEN, Requirement.TREE_MASK})
    mutants = POINT_MASSES

    def __post_init__(self) -> None:
        check_growth(type(self).__name__.lower(), self.depth, self.width, self.nodes)

    @property
    def components(self) -> Sequence[tuple[str, str]]:
        return (("drafter", self.features),)

    def probes(self) -> Mapping[str, Sequence[tuple[int, DynamicTreeMethod]]]:
        widths = sorted({1, self.width}) if self.width > 1 else (1, 2)
        trees = [(width, replace(self, sizing="given", depth=2, width=width, nodes=2 * width)) for width in widths]
        return {} if self.sizing == "given" else {self.features: trees}

    def open_drafter(self, run: Run, kind: Kind) -> TreeSizer:
        """The drafter, which must be of this kind, and the sizes of its trees."""
        drafter = FeatureDrafter.open(run, self.features, kind)
        return TreeSizer.open(run, drafter, Size(self.depth + 1, self.nodes), self.width, self.sizing)
