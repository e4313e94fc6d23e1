"""Prompt lookup decoding: the drafter is the text so far.

Source: Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding; transformers' ``prompt_lookup_num_tokens``.
Symbols: x copied tokens, p the target's distributions. Copies are point masses, so they are accepted with p(x).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.ngram import NgramDrafter
from stridebench.methods.verifiers.mutants import CORRECTION_FROM_TARGET
from stridebench.methods.verifiers.rejection import verify_chain


@METHODS.register("prompt_lookup")
@dataclass(frozen=True)
class PromptLookup(Method[NgramDrafter]):
    """Copy what followed an earlier occurrence of the last tokens.

    Args:
        length: tokens copied.
        max_ngram: longest suffix looked up; shorter ones follow, down to one token.
        variant: "transformers" clips a copy at the end of the text; "original" requires all ``length`` tokens.
        prefer: the first occurrence or the last.
    """

    length: int = 10
    max_ngram: int = 2
    variant: Literal["transformers", "original"] = "transformers"
    prefer: Literal["first", "last"] = "first"

    claim = Claim.SAME_LAW
    source = "github.com/apoorvumang/prompt-lookup-decoding"
    mutants = (CORRECTION_FROM_TARGET,)

    def __post_init__(self) -> None:
        if self.length < 1 or self.max_ngram < 1:
            raise UsageError(f"prompt_lookup: length {self.length}, max_ngram {self.max_ngram}; both start at 1")

    def start(self, run: Run) -> NgramDrafter:
        sizes = tuple(range(self.max_ngram, 0, -1))
        return NgramDrafter(sizes, self.length, self.variant == "original", self.prefer == "last")

    def step(self, run: Run, state: NgramDrafter) -> Acceptance:
        draft = state.propose(run)
        p = run.probs(run.target.forward(draft))
        return verify_chain(draft.tokens, None, p, run.draws)

    @classmethod
    def variants(cls) -> Sequence[PromptLookup]:
        return (cls(), cls(length=2, max_ngram=1, variant="original", prefer="last"))
