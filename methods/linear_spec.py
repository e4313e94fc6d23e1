"""LinearSpec: one model drafts a block of masks in one pass that sees both sides, and verifies it causally.

Source: Nemotron-Labs-Diffusion, arXiv:2607.05722, linear self-speculation. Verifier `block`: Sun et al. 2025,
arXiv:2403.10444, Algorithm 2.
Symbols: x drafted tokens, q and p the distributions of the model's two masks, B rows of a block.
Both passes are of the whole model, so a step is two passes of the target, and must emit two tokens to gain anything.
Entries of the first pass leave the cache before the second one. The published decoding is greedy. Rows of a pass are
drawn independently here, each from its own q, so it is exact at every temperature. The model must be tuned for both
masks: `stride train backbone blocks-embedded-code` makes one. The target's distribution is that of its causal mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.method import Claim, Method, Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.blocks import (
    DRAFT_ENTRIES_STAY,
    MOST_PROBABLE_TOKENS,
    draw_rows,
    fill_masks,
    masks_left,
    read_masks,
)
from stridebench.methods.verifiers.block import CHAIN_VERIFIERS, RATIO_CAPPED_ONCE
from stridebench.methods.verifiers.rejection import CORRECTION_FROM_TARGET

VERIFIED_BOTH_WAYS = Mutant(
    f"{__name__}:LinearSpec.step",
    "run.target.forward(draft)",
    "run.target.forward(draft, mutual=True)",
    "the pass that verifies sees both sides too",
)
SEVERAL_PASSES_DRAWN = Mutant(
    f"{__name__}:LinearSpec._draft",
    'Draft(fill_masks(run, masks, "threshold", self.threshold, greedy=True))',
    '(lambda x: Draft(x, run.probs(read_masks(run, masks))))(fill_masks(run, masks, "threshold", self.threshold))',
    "drafts of several passes are drawn, and judged as if the first pass had drawn them",
)


@METHODS.register("linear_spec")
@dataclass(frozen=True)
class LinearSpec(Method[None]):
    """Draft B - 1 tokens by the model's mask of both sides; keep the prefix that its causal mask accepts.

    Args:
        block: B, the last emitted token included; published 32.
        verifier: ``token`` tests one draft after the other by p / q. ``block`` tests all of them together, and keeps
            more.
        threshold: 0: one pass drafts. Else passes fill the masks whose most probable token has that probability, and
            one at least, as in the released code. What a later pass fills depends on what an earlier one chose to fill,
            so these drafts are the most probable tokens, as point masses, at every temperature.
    """

    block: int = 8
    verifier: Literal["token", "block"] = "token"
    threshold: float = 0.0

    claim = Claim.SAME_LAW
    source = "arXiv:2607.05722"
    requirements = frozenset({Requirement.TREE_MASK, Requirement.BOTH_MASKS})
    mutants = (
        VERIFIED_BOTH_WAYS,
        DRAFT_ENTRIES_STAY,
        MOST_PROBABLE_TOKENS,
        SEVERAL_PASSES_DRAWN,
        CORRECTION_FROM_TARGET,
        RATIO_CAPPED_ONCE,
    )

    def __post_init__(self) -> None:
        if self.block < 2 or not 0 <= self.threshold <= 1:
            raise UsageError(
                f"linear_spec: block is {self.block} and threshold {self.threshold:g}; give 2 rows or more, and 0 to 1"
            )

    def start(self, run: Run) -> None:
        masks_left(run, self.block)  # so that a wrong model is an error before the first step

    def step(self, run: Run, state: None) -> Acceptance:
        draft = self._draft(run, masks_left(run, self.block))
        p = run.probs(run.target.forward(draft))
        return CHAIN_VERIFIERS[self.verifier](draft.tokens, draft.probs, p, run.draws)

    def _draft(self, run: Run, masks: int) -> Draft:
        if not masks:
            return run.nothing
        if self.threshold > 0:
            return Draft(fill_masks(run, masks, "threshold", self.threshold, greedy=True))
        return draw_rows(run, read_masks(run, masks))

    @classmethod
    def variants(cls) -> Sequence[LinearSpec]:
        return (cls(block=3), cls(block=3, verifier="block"), cls(block=3, threshold=0.6))
