"""ADT-Tree: EAGLE-2 whose tree is deep and narrow if drafts were accepted, shallow and wide if they were not.

Source: Adjacency-Adaptive Dynamical Draft Trees (ADT-Tree), section IV, eq. 2, and section V, eqs. 6-8. Where the text
leaves a choice (the first tree, starts of rows, weights), the parameters state ours; the released repository holds no
adaptation.
Symbols: x drafted tokens, p the target's distributions, d expansions (d + 1 levels), k children of a node, N nodes,
alpha used share of the tree before.
A tree's form depends only on what was emitted and accepted before it, so with nodes as point masses the output
distribution is unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, NamedTuple

from stridebench.harness.core.capabilities import Grid, Requirement
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.eagle.drafter import Confidence, FeatureDrafter, check_growth, grow_dynamic
from stridebench.methods.verifiers.lantern import Bound, Relaxed, Residual, check_relaxed, verify_relaxed
from stridebench.methods.verifiers.tree import POINT_MASSES, children, verify_delta

Init = Literal["horizontal", "vertical", "random", "flock"]
Alpha = Literal["loops", "levels", "printed"]


class Size(NamedTuple):
    """d and k of the tree of one step, and the share of it that was used."""

    depth: int
    width: int
    alpha: float = 0.0


@dataclass
class Adjacency:
    """Sizes of the trees so far.

    Args:
        rule: the method's parameters.
        cells: size of the tree that gave each position.
        last: size of the previous step, or None before the first.
    """

    rule: ADTTree
    cells: dict[int, Size] = field(default_factory=dict)
    last: Size | None = None

    def choose(self, run: Run) -> Size:
        """Return the size of the next tree."""
        rule, vocabulary = self.rule, run.capabilities.vocabulary
        if self.last is None:
            return Size(rule.first[0], min(rule.first[1], vocabulary))
        grid = run.capabilities.grid
        assert grid is not None, "the method needs a grid"
        near = self._near(run, grid, len(run.target), self.last)
        alpha = near.alpha if rule.of_neighbour and rule.init == "vertical" else self.last.alpha
        return rule.moved(near, alpha, vocabulary)

    def follow(self, first: int, size: Size, accepted: int, grid: Grid) -> None:
        """Note what a step at position ``first`` used."""
        forced = [grid.forced(position) is not None for position in range(first, first + size.depth + 1)]
        free = accepted - sum(forced[:accepted])
        self.last = size._replace(alpha=self.rule.used(size, free, sum(forced)))
        self.cells |= dict.fromkeys(range(first, first + accepted + 1), self.last)

    def _near(self, run: Run, grid: Grid, position: int, last: Size) -> Size:
        """Return the size that the next tree starts from."""
        rule = self.rule
        if rule.init == "random":
            spans = [high - low + 1 for low, high in (rule.depths, rule.widths)]
            d, k = (
                int(run.draws.integers(1, span, "init")) for span in spans
            )  # read before any pass: the host needs it
            return Size(rule.depths[0] + d, rule.widths[0] + k)
        if rule.init == "flock":
            return self._flock(grid, position) or last
        neighbour = grid.left(position) if rule.init == "horizontal" else grid.above(position)
        return last if neighbour is None else self.cells.get(neighbour, last)

    def _flock(self, grid: Grid, position: int) -> Size | None:
        """Eqs. 6-8: the mean over past cells around, by (radius - rows between + 1) / radius, scaled to sum to one."""
        centre, radius = grid.cell(position), self.rule.radius
        if centre is None:
            return None
        row, column = centre
        weighted = []
        for past in range(max(grid.start, position - int(radius + 1) * grid.stride), position):
            cell = grid.cell(past)
            if cell is None or past not in self.cells or (cell[0] - row) ** 2 + (cell[1] - column) ** 2 > radius**2:
                continue
            weighted.append((max(0.0, (radius - (row - cell[0]) + 1) / radius), self.cells[past]))
        total = sum(weight for weight, _ in weighted)
        if total == 0:
            return None
        mean = [sum(weight * size[axis] for weight, size in weighted) / total for axis in (0, 1)]
        return Size(round(mean[0]), round(mean[1]))


@dataclass
class AdaptingState:
    """A drafter, the sizes of its trees, and the rule that judges them, or None if nodes are point masses."""

    drafter: FeatureDrafter
    sizes: Adjacency
    rule: Relaxed | None


@METHODS.register("adt_tree")
@dataclass(frozen=True)
class ADTTree(Method[AdaptingState]):
    """Choose d and k for the current cell, grow and verify the tree, note how much of it was used.

    Args:
        features: the drafter: shipped for the backbone at hand (NAME-BACKBONE), or a folder.
        nodes: N.
        init: which tree a size starts from. horizontal: the one that gave the cell to the left. vertical: the cell
            above. random: uniform within the bounds. flock: TokenFlock, the mean of past cells within ``radius``,
            weighted by rows between. The previous tree if there is no such cell.
        radius: of flock, in cells.
        first: d and k of the first tree.
        depths, widths: bounds, ends included.
        step_d, step_k: l_d, l_k.
        beta: alpha from which a tree grows deeper and narrower; below it, shallower and wider.
        alpha: loops: accepted / d. levels: accepted / (d + 1). printed: (accepted + 1) / d. Forced ends do not count.
        of_neighbour: vertical takes alpha from the cell above as well.
        deep_only: widths are bounded only if d > 1.
        acceptance: exact, or lantern.
        k, delta, resid: as LANTERN, if that is the acceptance.
        confidence: as EAGLE-2.

    Published for Anole: nodes 58, first (4, 10), widths 4 to 13, step_k 3; for LlamaGen widths 4 to 39, step_k 10.
    """

    features: str = "eagle1"
    nodes: int = 16
    init: Init = "horizontal"
    first: tuple[int, int] = (3, 4)
    depths: tuple[int, int] = (1, 9)
    widths: tuple[int, int] = (2, 8)
    step_d: int = 1
    step_k: int = 2
    beta: float = 1.0
    alpha: Alpha = "loops"
    radius: float = 3.0
    of_neighbour: bool = False
    deep_only: bool = False
    acceptance: Literal["exact", "lantern"] = "exact"
    k: int = 0
    delta: float = 0.1
    resid: Residual = "relaxed"
    confidence: Confidence = "raw"

    source = "ADT-Tree, section IV"
    loads: ClassVar[Mapping[str, str]] = {"features": "drafter"}
    exact_at = "acceptance = exact"
    taps = (-1,)
    mutants = POINT_MASSES

    def __post_init__(self) -> None:
        for word, low, high in (("depths", *self.depths), ("widths", *self.widths)):
            if not 1 <= low <= high:
                raise UsageError(f"adt_tree: {word} are {low} to {high}; give bounds from 1, the lower one first")
        if min(self.step_d, self.step_k) < 0 or min(self.first) < 1 or not self.radius > 0:
            raise UsageError(
                f"adt_tree: steps are {self.step_d} and {self.step_k}, first {self.first}, radius {self.radius:g}; "
                f"give steps from 0, a first tree from (1, 1) and a radius above 0"
            )
        check_growth("adt_tree", self.depths[0], self.widths[0], self.nodes)
        check_relaxed("adt_tree", self.k, self.delta)

    def moved(self, base: Size, alpha: float, vocabulary: int) -> Size:
        """Apply eq. 2 within the bounds."""
        sign = 1 if alpha >= self.beta else -1
        moved = base.depth + sign * self.step_d
        depth = min(max(moved, self.depths[0]), self.depths[1])
        low, high = (1, vocabulary) if self.deep_only and moved <= 1 else self.widths
        return Size(depth, min(max(base.width - sign * self.step_k, low), high, vocabulary))

    def used(self, size: Size, accepted: int, forced: int = 0) -> float:
        """Return alpha of a tree with ``accepted`` free drafts accepted and ``forced`` levels without a choice."""
        levels = size.depth + (self.alpha == "levels")
        return (accepted + (self.alpha == "printed")) / max(1, levels - forced)

    @property
    def claim(self) -> Claim:
        return Claim.SAME_LAW if self.acceptance == "exact" or self.delta == 0 else Claim.APPROXIMATE

    @property
    def requirements(self) -> frozenset[Requirement]:
        always = {Requirement.HIDDEN, Requirement.TREE_MASK, Requirement.GRID}
        return frozenset(always if self.acceptance == "exact" else {*always, Requirement.CODEBOOK})

    def start(self, run: Run) -> AdaptingState:
        rule = None
        if self.acceptance == "lantern":
            device, greedy = run.target.device, run.sampling.temperature == 0
            rule = Relaxed.over(run.capabilities, device, self.k, Bound(delta=self.delta), self.resid, greedy)
        return AdaptingState(FeatureDrafter.open(run, self.features, "eagle1"), Adjacency(self), rule)

    def step(self, run: Run, state: AdaptingState) -> Acceptance:
        first, size = len(run.target), state.sizes.choose(run)
        draft = grow_dynamic(run, state.drafter, size.depth + 1, size.width, self.nodes, self.confidence).draft
        logits = run.target.forward(draft)
        p = run.probs(logits)
        if state.rule is None:
            acceptance = verify_delta(draft, p, run.draws)
        else:
            kids = children(draft.explicit_parents, len(draft) + 1, size.width)
            acceptance = verify_relaxed(draft, logits, p, run.draws, state.rule, kids)
        grid = run.capabilities.grid
        assert grid is not None, "the method needs a grid"
        state.sizes.follow(first, size, len(acceptance.read().path), grid)
        return acceptance

    @classmethod
    def variants(cls) -> Sequence[ADTTree]:
        small = cls(nodes=6, first=(2, 2), widths=(1, 3), step_k=1)
        exact = [replace(small, init=init) for init in ("horizontal", "vertical", "flock")]
        random = cls(init="random", depths=(1, 2), widths=(1, 2), first=(1, 2), step_k=1, nodes=4)
        return (*exact, random, replace(small, acceptance="lantern", k=1, delta=0.4))
