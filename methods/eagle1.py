"""EAGLE: a drafter of the target's own hidden rows grows a static tree of sampled tokens.

Source: Li et al. 2024, EAGLE, arXiv:2401.15077, section 3.
Symbols: x drafted tokens, q the law each was drawn from given its elder siblings, p target's law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.core.capabilities import Requirement
from harness.core.draft import Acceptance
from harness.core.method import Claim, Method, Mutant
from harness.core.run import Run
from harness.errors import UsageError
from harness.registry import METHODS
from methods.drafters.eagle.trees import StaticDrafter, grow_static
from methods.verifiers.mutants import EARLY_CLOSING, ELDERS_FORGOTTEN
from methods.verifiers.tree import verify_multi_step


@METHODS.register("eagle1")
@dataclass(frozen=True)
class Eagle1(Method[StaticDrafter]):
    """Draft a tree of a known form, siblings without replacement; walk down it by rejection sampling.

    At T = 0 siblings are the drafter's likeliest tokens, and the path is that of argmaxima.

    Args:
        features: the drafter, of the package for the backbone at hand (NAME-BACKBONE), or a folder.
        tree: by name: eagle_8 is cheap on a CPU, eagle_25 is the released ``mc_sim_7b_63``.
        widths: children of each node level by level, in the place of a tree by name.
    """

    features: str = "eagle1"
    tree: str = "eagle_8"
    widths: tuple[int, ...] = ()

    claim = Claim.SAME_LAW
    source = "arXiv:2401.15077, section 3"
    requirements = frozenset({Requirement.HIDDEN, Requirement.TREE_MASK})
    taps = (-1,)
    mutants = (
        ELDERS_FORGOTTEN,
        Mutant(
            "methods.drafters.eagle.trees:drawn",
            "return Level(found.tokens[parents, ranks], ",
            "found = found._replace(tokens=found.tokens.gather(1, run.probs(logits).gather(1, found.tokens).argsort(1, "
            "descending=True))); return Level(found.tokens[parents, ranks], ",
            "sampled siblings are put in the order of their confidence",
        ),
        Mutant(
            "methods.trees.sampled:siblings",
            "tokens = draws.distinct(q, count, ",
            "tokens = q.topk(count).indices if count else draws.distinct(q, count, ",
            "the ratio test on the k best tokens, which nobody drew",
        ),
        EARLY_CLOSING,
    )

    def __post_init__(self) -> None:
        if any(width < 1 for width in self.widths):
            raise UsageError(f"eagle1: widths are {self.widths}; give a child or more for each level")

    @property
    def components(self) -> Sequence[tuple[str, str]]:
        return (("drafter", self.features),)

    def start(self, run: Run) -> StaticDrafter:
        return StaticDrafter.open(run, self.features, self.tree, self.widths)

    def step(self, run: Run, state: StaticDrafter) -> Acceptance:
        draft = grow_static(run, state)
        p = run.probs(run.target.forward(draft))
        return verify_multi_step(draft, p, run.draws, inner=state.shape.inner, width=state.width)

    @classmethod
    def variants(cls) -> Sequence[Eagle1]:
        return (cls(widths=(2, 1)), cls(widths=(2,)))
