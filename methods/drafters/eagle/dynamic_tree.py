"""What EAGLE-2 and EAGLE-3 share: parameters, checks, and the drafter that grows a tree by its confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.costs import Costs
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.methods.drafters.eagle.drafter import FeatureDrafter
from stridebench.methods.drafters.eagle.published import Kind
from stridebench.methods.drafters.eagle.sizing import MeasuredSize as Size
from stridebench.methods.drafters.eagle.sizing import TreeSizer
from stridebench.methods.drafters.eagle.trees import check_growth
from stridebench.methods.verifiers.mutants import POINT_MASSES

Sizing = Literal["auto", "given", "measured"]
DEPTH, NODES = 3, 12


@dataclass(frozen=True)
class DynamicTreeMethod(Method[TreeSizer]):
    """A method whose tree grows level by level by the products of q, and keeps its N best nodes.

    Args:
        features: the drafter: shipped for the backbone at hand (NAME-BACKBONE), or a folder.
        depth: E; a tree has E + 1 levels. None: 3.
        width: k.
        nodes: N; where there are fewer candidates, all of them. None: 12.
        sizing: given: ``depth`` and ``nodes`` as they are. measured: they are the most, and each cycle takes those that
            pay best (see `TreeSizer`). auto: given where ``depth`` or ``nodes`` is named; else measured where passes
            are timed, so that its counts depend on the machine.
    """

    features: str
    depth: int | None = None
    width: int = 4
    nodes: int | None = None
    sizing: Sizing = "auto"

    claim = Claim.SAME_LAW
    requirements = frozenset({Requirement.HIDDEN, Requirement.TREE_MASK})
    mutants = POINT_MASSES

    def __post_init__(self) -> None:
        check_growth(type(self).__name__.lower(), self.largest.levels - 1, self.width, self.largest.nodes)

    @property
    def largest(self) -> Size:
        """Levels and nodes as named, or those of a method that names none."""
        return Size(1 + (DEPTH if self.depth is None else self.depth), NODES if self.nodes is None else self.nodes)

    @property
    def sizes_by_cost(self) -> bool:
        """Whether the size of a tree follows from what passes cost, where that is known."""
        return self.sizing == "measured" or (self.sizing == "auto" and self.depth is None and self.nodes is None)

    @property
    def components(self) -> Sequence[tuple[str, str]]:
        return (("drafter", self.features),)

    def probes(self) -> Mapping[str, Sequence[tuple[int, DynamicTreeMethod]]]:
        widths = sorted({1, self.width}) if self.width > 1 else (1, 2)
        trees = [(width, replace(self, sizing="given", depth=2, width=width, nodes=2 * width)) for width in widths]
        return {self.features: trees} if self.sizes_by_cost else {}

    def open_drafter(self, run: Run, kind: Kind) -> TreeSizer:
        """The drafter, which must be of this kind, and the sizes of its trees.

        Raises:
            UsageError: ``sizing`` is measured, and there is no cost table of this drafter on this machine; says how to
                make it.
        """
        drafter = FeatureDrafter.open(run, self.features, kind)
        return TreeSizer.of(drafter, self.largest, self.width, self._costs(run, drafter.name))

    def _costs(self, run: Run, drafter: str) -> Costs | None:
        if not self.sizes_by_cost:
            return None
        try:
            return run.costs(drafter)
        except UsageError:
            if self.sizing == "measured":
                raise
            return None  # of a run whose passes nobody times
