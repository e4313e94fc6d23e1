"""Hydra: heads that read the tokens drafted before them, so that the levels of a tree fit each other.

Source: Ankner et al. 2024, Hydra, arXiv:2402.05109.
Symbols: x drafted tokens, p the target's distributions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.hydra import HydraDrafter
from stridebench.methods.verifiers.tree import POINT_MASSES, verify_delta
from stridebench.methods.verifiers.typical import threshold, verify_typical


@METHODS.register("hydra")
@dataclass(frozen=True)
class Hydra(Method[None]):
    """Draft a static tree with the heads, each level from the tokens above it; keep the nodes that the rule accepts.

    Args:
        heads: a folder as published, such as that of ankner/hydra-vicuna-7b-v1.3.
        tree: a published one by name, or "" for a tree of ``nodes`` nodes.
        nodes: of that tree.
        acceptance: exact: a draw from p at each node, followed while it is in the tree. typical: p(x) above
            min(epsilon, alpha exp(-H(p))); the token after the path is the most probable one, as released.
        epsilon, alpha: of typical acceptance.
    """

    heads: str = "hydra"
    tree: str = ""
    nodes: int = 12
    acceptance: Literal["exact", "typical"] = "exact"
    epsilon: float = 0.09
    alpha: float = 0.3

    source = "arXiv:2402.05109"
    loads: ClassVar[Mapping[str, str]] = {"heads": "drafter"}
    exact_at = "acceptance = exact; all at T = 0"
    requirements = frozenset({Requirement.HIDDEN, Requirement.TREE_MASK})
    taps = (-1,)
    one_branch = True
    mutants = POINT_MASSES

    def __post_init__(self) -> None:
        if self.nodes < 1 or not (0 < self.epsilon < 1 and self.alpha > 0):
            raise UsageError(
                f"hydra: nodes is {self.nodes}, epsilon {self.epsilon:g} and alpha {self.alpha:g}; give 1 or more, one "
                f"from 0 to 1, and one above 0"
            )

    @property
    def claim(self) -> Claim:
        return Claim.SAME_LAW if self.acceptance == "exact" else Claim.APPROXIMATE

    def start(self, run: Run) -> None:
        self._drafter(run).read_prompt(run)

    def step(self, run: Run, state: None) -> Acceptance:
        draft = self._drafter(run).propose(run)
        p = run.probs(run.target.forward(draft))
        if self.acceptance == "exact":
            return verify_delta(draft, p, run.draws)
        return verify_typical(draft, p, run.draws, threshold(p, self.epsilon, self.alpha), greedy=True)

    def _drafter(self, run: Run) -> HydraDrafter:
        return HydraDrafter.open(run, self.heads, self.tree, self.nodes)

    @classmethod
    def variants(cls) -> Sequence[Hydra]:
        return (cls(nodes=4), cls(nodes=3, acceptance="typical"))
