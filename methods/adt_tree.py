"""ADT-Tree: EAGLE-2 whose tree is deep and narrow where drafts were accepted, shallow and wide where they were not.

Source: Adjacency-Adaptive Dynamical Draft Trees (ADT-Tree), section IV.
Symbols: x drafted tokens, p the target's distributions, d expansions (d + 1 levels), k children of a node, N nodes.
A tree's form depends only on what was emitted and accepted before it, so with nodes as point masses the output
distribution is unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.eagle.drafter import FeatureDrafter
from stridebench.methods.drafters.eagle.sizing import Adjacency, Alpha, Init, Rule
from stridebench.methods.drafters.eagle.trees import check_growth, grow_dynamic
from stridebench.methods.trees.structure import children
from stridebench.methods.verifiers.lantern import verify_relaxed
from stridebench.methods.verifiers.mutants import POINT_MASSES
from stridebench.methods.verifiers.neighbourhood import Bound, Relaxed, Residual, check_relaxed
from stridebench.methods.verifiers.tree import verify_delta


@dataclass
class AdaptingState:
    """A drafter, the sizes of its trees, and the rule that judges them; None: nodes are point masses."""

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
        init, first, depths, widths, step_d, step_k, beta, alpha, radius, of_neighbour, deep_only: see `Rule`.
        acceptance: exact; or lantern, with its ``k``, ``delta`` and ``resid``.

    Published for Anole: nodes 59, first (4, 10), widths 4 to 13, step_k 3; for LlamaGen widths 4 to 39, step_k 10.
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

    source = "ADT-Tree, section IV"
    exact_at = "acceptance = exact"
    taps = (-1,)
    mutants = POINT_MASSES

    def __post_init__(self) -> None:
        self._rule().check("adt_tree")
        check_growth("adt_tree", self.depths[0], self.widths[0], self.nodes)
        check_relaxed("adt_tree", self.k, self.delta)

    def _rule(self) -> Rule:
        return Rule(
            self.init,
            self.first,
            self.depths,
            self.widths,
            self.step_d,
            self.step_k,
            self.beta,
            self.alpha,
            self.radius,
            self.of_neighbour,
            self.deep_only,
        )

    @property
    def claim(self) -> Claim:
        return Claim.SAME_LAW if self.acceptance == "exact" or self.delta == 0 else Claim.APPROXIMATE

    @property
    def requirements(self) -> frozenset[Requirement]:
        always = {Requirement.HIDDEN, Requirement.TREE_MASK, Requirement.GRID}
        return frozenset(always if self.acceptance == "exact" else {*always, Requirement.CODEBOOK})

    @property
    def components(self) -> Sequence[tuple[str, str]]:
        return (("drafter", self.features),)

    def start(self, run: Run) -> AdaptingState:
        rule = None
        if self.acceptance == "lantern":
            device, greedy = run.target.device, run.sampling.temperature == 0
            rule = Relaxed.over(run.capabilities, device, self.k, Bound(delta=self.delta), self.resid, greedy)
        return AdaptingState(FeatureDrafter.open(run, self.features, "eagle1"), Adjacency(self._rule()), rule)

    def step(self, run: Run, state: AdaptingState) -> Acceptance:
        first, size = len(run.target), state.sizes.choose(run)
        draft = grow_dynamic(run, state.drafter, size.depth + 1, size.width, self.nodes).draft
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
