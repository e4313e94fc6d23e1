"""Blockwise parallel decoding: heads propose the next k tokens, and the pass that checks them makes the next proposals.

Source: Stern et al. 2018, arXiv:1811.03115, sections 3-5.
Symbols: x proposed tokens, p the target's distributions, z its logits.
Predict and verify are merged as in section 4, so that a step is one pass. The base model's token of a block is the
bonus or correction token of the step before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.method import Claim, Method, Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.heads.drafter import HeadDrafter
from stridebench.methods.verifiers.rejection import CORRECTION_FROM_TARGET, acceptance_probs, judge

Rule = Literal["exact", "top", "distance"]


PROPOSALS_JUDGED_BY_NEIGHBOUR_ROW = Mutant(
    f"{__name__}:Blockwise.accept_probs",
    "accept_probs = acceptance_probs(x, None, p)",
    "accept_probs = acceptance_probs(x, None, p.roll(1, 0))",
    "proposals are compared with the row of their neighbour",
)


@METHODS.register("blockwise")
@dataclass(frozen=True)
class Blockwise(Method[None]):
    """Keep the longest prefix of the proposals that the rule accepts.

    Args:
        heads: shipped for the backbone at hand (NAME-BACKBONE), or a folder; any that Medusa reads will do.
        levels: heads that are used, k - 1; 0: all.
        rule: exact: x is the most probable token; above T = 0, x is a draw from p. top: x is among the ``top`` most
            probable ones. distance: x is within ``distance`` of the most probable id, where ids are ordinal.
        top: tokens that the rule top accepts.
        distance: largest distance of ids that the rule distance accepts.
        least: tokens that a step emits at least, the bonus or correction token included; proposals up to it are
            accepted without a test.
    """

    heads: str = "medusa"
    levels: int = 0
    rule: Rule = "exact"
    top: int = 2
    distance: int = 2
    least: int = 1

    source = "arXiv:1811.03115, sections 3-5"
    loads: ClassVar[Mapping[str, str]] = {"heads": "drafter"}
    exact_at = "rule = exact and least = 1"
    requirements = frozenset({Requirement.HIDDEN})
    taps = (-1,)
    mutants = (CORRECTION_FROM_TARGET, PROPOSALS_JUDGED_BY_NEIGHBOUR_ROW)

    def __post_init__(self) -> None:
        if self.levels < 0 or self.top < 1 or self.distance < 0 or self.least < 1:
            raise UsageError(
                f"blockwise: levels is {self.levels}, top {self.top}, distance {self.distance}, least {self.least}; "
                f"give 0, 1, 0 and 1 or more"
            )

    @property
    def claim(self) -> Claim:
        return Claim.SAME_LAW if self.rule == "exact" and self.least == 1 else Claim.APPROXIMATE

    def start(self, run: Run) -> None:
        self._drafter(run)

    def step(self, run: Run, state: None) -> Acceptance:
        draft = self._drafter(run).propose(run)
        z = run.target.forward(draft)
        p = run.probs(z)
        return judge(self.accept_probs(draft.tokens, z, p), draft.tokens, None, p, run.draws)

    def accept_probs(
        self, x: Int[Tensor, " K"], z: Float[Tensor, "K+1 V"], p: Float[Tensor, "K+1 V"]
    ) -> Float[Tensor, " K"]:
        """Return the acceptance probability of each proposal, once those before it are accepted."""
        zx = z[: len(x)].gather(1, x[:, None])
        if self.rule == "exact":
            accept_probs = acceptance_probs(x, None, p)
        elif self.rule == "top":
            accept_probs = ((z[: len(x)] > zx).sum(1) < self.top).to(p.dtype)
        else:
            accept_probs = ((x - z[: len(x)].argmax(1)).abs() <= self.distance).to(p.dtype)
        return torch.cat([torch.ones_like(accept_probs[: self.least - 1]), accept_probs[self.least - 1 :]])

    def _drafter(self, run: Run) -> HeadDrafter:
        return HeadDrafter.open(run, self.heads, "chain", levels=self.levels)

    @classmethod
    def variants(cls) -> Sequence[Blockwise]:
        return (cls(levels=3), cls(levels=2, rule="top"), cls(levels=2, rule="distance", distance=1), cls(least=2))
