"""Prompt lookup decoding: the drafter is the text so far.

Source: Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding; transformers' ``prompt_lookup_num_tokens``.
Symbols: x copied tokens, p the target's distributions. Copies are point masses, so they are accepted with p(x).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.draft_model import DraftLength
from stridebench.methods.verifiers.rejection import CORRECTION_FROM_TARGET, verify_chain


@dataclass
class NgramDrafter:
    """An index of all n-grams read so far, extended by the new tokens only.

    Args:
        sizes: n-gram lengths to look up, longest first.
        length: tokens to copy.
        complete: only occurrences that ``length`` tokens follow count.
        last: the latest occurrence, else the earliest.
        policy: of the length, up to ``length``.
        index: where the continuation of each n-gram starts.
        read: by size, n-grams indexed so far.
    """

    sizes: tuple[int, ...]
    length: int
    complete: bool
    last: bool
    policy: DraftLength = field(default_factory=DraftLength)
    index: dict[tuple[int, ...], int] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)

    def propose(self, run: Run) -> Draft:
        """Return point masses on the copied tokens; none if nothing matches or no room is left."""
        tokens = run.target.tokens
        self._learn(tokens)
        room = min(self.policy.limit(run, self.length), run.room - 1)
        for size in self.sizes:
            start = self.index.get(tuple(tokens[-size:])) if size < len(tokens) else None
            if start is not None and room > 0:
                copied = tokens[start : start + room]
                return Draft(torch.tensor(copied, dtype=torch.long, device=run.target.device))
        return run.nothing

    def _learn(self, tokens: list[int]) -> None:
        """Index each n-gram by where its continuation starts, once enough of it is there."""
        behind = self.length if self.complete else 1
        for size in self.sizes:
            begin = self.read.get(size, 0)
            end = max(begin, len(tokens) - size - behind + 1)
            for start in range(begin, end):
                gram = tuple(tokens[start : start + size])
                if self.last or gram not in self.index:
                    self.index[gram] = start + size
            self.read[size] = end


@METHODS.register("prompt_lookup")
@dataclass(frozen=True)
class PromptLookup(Method[NgramDrafter]):
    """Copy what followed an earlier occurrence of the last tokens.

    Args:
        length: tokens copied, or the most if there is a policy.
        max_ngram: longest suffix looked up; shorter ones follow, down to one token.
        variant: "transformers" clips a copy at the end of the text; "original" requires all ``length`` tokens.
        prefer: the first occurrence or the last.
        policy: ``ema`` copies one token more than was accepted lately, ``table:1=10,4=3`` fewer in batches.
    """

    length: int = 10
    max_ngram: int = 2
    variant: Literal["transformers", "original"] = "transformers"
    prefer: Literal["first", "last"] = "first"
    policy: str = ""

    claim = Claim.SAME_LAW
    source = "github.com/apoorvumang/prompt-lookup-decoding"
    mutants = (CORRECTION_FROM_TARGET,)

    def __post_init__(self) -> None:
        if self.length < 1 or self.max_ngram < 1:
            raise UsageError(f"prompt_lookup: length {self.length}, max_ngram {self.max_ngram}; both start at 1")
        self._policy()

    def _policy(self) -> DraftLength:
        return DraftLength.of("prompt_lookup", self.policy, self.length, has_law=False)

    def start(self, run: Run) -> NgramDrafter:
        sizes = tuple(range(self.max_ngram, 0, -1))
        return NgramDrafter(sizes, self.length, self.variant == "original", self.prefer == "last", self._policy())

    def step(self, run: Run, state: NgramDrafter) -> Acceptance:
        draft = state.propose(run)
        p = run.probs(run.target.forward(draft))
        acceptance = verify_chain(draft.tokens, None, p, run.draws)
        state.policy.follow(len(draft), acceptance)
        return acceptance

    @classmethod
    def variants(cls) -> Sequence[PromptLookup]:
        return (cls(), cls(length=2, max_ngram=1, variant="original", prefer="last"), cls(length=3, policy="ema:0.5"))
