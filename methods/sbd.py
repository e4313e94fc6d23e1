"""Set block decoding: one model fills a block of masks over several passes, several positions a pass, unverified.

Source: Gat et al. 2025, arXiv:2509.04185; rules `threshold` and `factor` of Wu et al. 2025 (Fast-dLLM),
arXiv:2505.22618, `entropy` of Ben-Hamu et al. 2025, arXiv:2505.24857.
Symbols: B rows of a block, gamma the sum of entropies that a pass may fill.
The rows of a block see the text, which is read causally, and each other. Positions that a pass fills are drawn from
their own distributions, not given each other, and the model's two masks are two distributions: the output is not that
of the causal mask, whatever the rule. A full block is read once more, causally. That pass writes its entries, so the
cache is exact, and its last row gives the next token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.method import Claim, Method, Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.blocks import (
    DRAFT_ENTRIES_STAY,
    FAILED_ONE_FILLED_TOO,
    RULES,
    fill_masks,
    masks_left,
    rule_of,
)
from stridebench.methods.verifiers.rejection import judge

NAMES = tuple(name for name in RULES if name != "joint")
READ_BOTH_WAYS = Mutant(
    f"{__name__}:SetBlockDecoding.step",
    "run.target.forward(draft)",
    "run.target.forward(draft, mutual=True)",
    "the entries of a full block are of the pass that sees both sides",
)
NEXT_TOKEN_GREEDY = Mutant(
    f"{__name__}:SetBlockDecoding.step",
    "p = run.probs(",
    "p = (lambda rows: torch.nn.functional.one_hot(rows.argmax(1), rows.shape[1]).to(rows.dtype))(",
    "first_token_argmax: the token behind a full block is the most probable one above T = 0 (Fast-dLLM v2)",
)


@METHODS.register("sbd")
@dataclass(frozen=True)
class SetBlockDecoding(Method[None]):
    """Fill B - 1 masks by a rule, then read them causally for the token behind them.

    Args:
        block: B, the last emitted token included.
        rule: how many positions a pass fills, one at least. ``entropy:0.15``: those that follow no more than that sum
            of entropies, lowest first. ``threshold:0.9``: those whose token has that probability, as in block
            diffusion. ``factor:1``: n of them while (n + 1) (1 - the smallest probability) is less. ``static:2``: so
            many.
    """

    block: int = 8
    rule: str = "entropy:0.15"

    claim = Claim.APPROXIMATE
    source = "arXiv:2509.04185"
    requirements = frozenset({Requirement.TREE_MASK, Requirement.BOTH_MASKS})
    mutants = (READ_BOTH_WAYS, NEXT_TOKEN_GREEDY, FAILED_ONE_FILLED_TOO, DRAFT_ENTRIES_STAY)

    def __post_init__(self) -> None:
        rule = rule_of(self.rule)
        if self.block < 2 or rule is None or rule[0] not in NAMES:
            known = ", ".join(f"{known}:{RULES[known]:g}" for known in NAMES)
            raise UsageError(
                f"sbd: block is {self.block} and rule {self.rule!r}; give 2 rows or more, and one of {known}, or "
                f"another number"
            )

    def start(self, run: Run) -> None:
        masks_left(run, self.block)  # so that a wrong model is an error before the first step

    def step(self, run: Run, state: None) -> Acceptance:
        rule = rule_of(self.rule)
        assert rule is not None  # `__post_init__` has seen it
        tokens = fill_masks(run, masks_left(run, self.block), *rule)
        draft = Draft(tokens)
        p = run.probs(run.target.forward(draft))
        return judge(torch.ones_like(p[: len(tokens), 0]), tokens, None, p, run.draws)

    @classmethod
    def variants(cls) -> Sequence[SetBlockDecoding]:
        return (cls(block=3), cls(block=3, rule="threshold:0.6"), cls(block=3, rule="factor:1.5"), cls(2, "static:1"))
