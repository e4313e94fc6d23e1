"""Medusa: heads on the target's last row guess several tokens ahead; their best ones form a tree, verified in one pass.

Source: Cai et al. 2024, Medusa, arXiv:2401.10774.
Symbols: x drafted tokens, p the target's distributions, epsilon and alpha the threshold of typical acceptance.
The first level follows the last emitted token, which the released code has as the root of its tree of 64 rows.
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
from stridebench.methods.drafters.heads.drafter import HeadDrafter
from stridebench.methods.verifiers.tree import POINT_MASSES, verify_delta
from stridebench.methods.verifiers.typical import threshold, verify_redrawn, verify_typical

Rule = Literal["exact", "typical", "nucleus"]


@METHODS.register("medusa")
@dataclass(frozen=True)
class Medusa(Method[None]):
    """Draft a static tree with the heads; keep the nodes that the rule of acceptance accepts.

    Args:
        heads: shipped for the backbone at hand (NAME-BACKBONE), or a folder.
        tree: a published one by name, or "" for the best tree of ``nodes`` nodes by the measured accuracy of the heads.
        nodes: of that tree.
        levels: heads that are used; 0: all, or as many as the tree is deep.
        acceptance: exact: a draw from p at each node, followed while it is in the tree; greedy decoding at T = 0.
            typical: p(x) above min(epsilon, alpha exp(-H(p))). nucleus: biased as released, see `verify_redrawn`; top-p
            is the run's.
        epsilon, alpha: of typical acceptance.
        greedy: with typical acceptance the token after the path is the most probable one at every temperature, as
            released; false draws it from p.
    """

    heads: str = "medusa"
    tree: str = ""
    nodes: int = 12
    levels: int = 0
    acceptance: Rule = "exact"
    epsilon: float = 0.09
    alpha: float = 0.3
    greedy: bool = True

    source = "arXiv:2401.10774"
    loads: ClassVar[Mapping[str, str]] = {"heads": "drafter"}
    exact_at = "acceptance = exact; all at T = 0"
    requirements = frozenset({Requirement.HIDDEN, Requirement.TREE_MASK})
    taps = (-1,)
    mutants = POINT_MASSES

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.levels < 0:
            raise UsageError(f"medusa: nodes is {self.nodes} and levels {self.levels}; give 1 or more, and 0 or more")
        if not (0 < self.epsilon < 1 and self.alpha > 0):
            raise UsageError(
                f"medusa: epsilon is {self.epsilon:g} and alpha {self.alpha:g}; give one from 0 to 1, and one above 0"
            )

    @property
    def claim(self) -> Claim:
        return Claim.SAME_LAW if self.acceptance == "exact" else Claim.APPROXIMATE

    def start(self, run: Run) -> None:
        self._drafter(run)

    def step(self, run: Run, state: None) -> Acceptance:
        drafter = self._drafter(run)
        draft = drafter.propose(run)
        p = run.probs(run.target.forward(draft))
        if self.acceptance == "exact":
            return verify_delta(draft, p, run.draws)
        if self.acceptance == "typical":
            limit = threshold(p, self.epsilon, self.alpha)
            return verify_typical(draft, p, run.draws, limit, greedy=self.greedy)
        return verify_redrawn(draft, p, run.draws, min(len(drafter.shape.sizes), len(draft)))

    def _drafter(self, run: Run) -> HeadDrafter:
        return HeadDrafter.open(run, self.heads, self.tree, self.nodes, self.levels)

    @classmethod
    def variants(cls) -> Sequence[Medusa]:
        return (
            cls(nodes=6, levels=3),
            cls(nodes=4, levels=2, acceptance="typical"),
            cls(nodes=4, levels=2, acceptance="typical", greedy=False),
            cls(nodes=3, levels=2, acceptance="nucleus"),
        )
