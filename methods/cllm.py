"""CLLM: Jacobi decoding in blocks, on a model that was tuned to map any state of a block to its fixed point.

Source: Kou et al. 2024, CLLMs: consistency large language models, arXiv:2403.00835, sections 3.1 and 3.3.
Symbols: n tokens of a block, L guesses left in it, p the target's distributions.
The tuned model is the target: `stride train backbone cllm-embedded-code` makes one. Decoding is exact with regard to
that tuned model, decoded autoregressively. Its card says how far it is from the model that it was tuned from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.verifiers.rejection import (
    BONUS_AFTER_REJECTION,
    GUESS_ALWAYS_KEPT,
    GUESS_JUDGED_BY_NEXT_ROW,
    verify_chain,
)


@dataclass
class CLLMBlock:
    """The rest of one sequence's block, carried from pass to pass.

    Args:
        size: n. The block's first token is the last emitted one, which the block before gave for free.
        source: ids of the prompt, from which new guesses are drawn at random.
        tokens: guesses left, or None if a new block is due.
    """

    size: int
    source: Int[Tensor, " M"]
    tokens: Int[Tensor, " L"] | None = None

    @classmethod
    def empty(cls, run: Run, size: int) -> CLLMBlock:
        """No guesses yet."""
        return cls(size, torch.tensor(run.target.tokens, device=run.target.device))

    def propose(self, run: Run) -> Draft:
        """Return the guesses left, possibly none, or n - 1 of a new block, fewer if there is less room."""
        if self.tokens is None:
            count = min(self.size, run.room) - 1
            drawn = run.draws.integers(count, len(self.source), "init") if count else run.nothing.tokens
            self.tokens = self.source[drawn]
        return Draft(self.tokens)

    def advance(self, p: Float[Tensor, "R V"], accepted: int) -> None:
        """Predict the guesses behind ``accepted`` ones and one more token anew.

        Args:
            p: R = L + 1 rows of the pass; row i is the distribution at guess i. The last row belongs to no guess. It
                gives the next block's first token if all were accepted, and else follows a wrong guess.
        """
        assert self.tokens is not None, "a block was proposed"
        left = len(self.tokens)
        self.tokens = None if accepted == left else p[accepted + 1 : left].argmax(1)


@METHODS.register("cllm")
@dataclass(frozen=True)
class Cllm(Method[CLLMBlock]):
    """Read the rest of a block, commit the prefix that is stable and the token behind it, predict the others anew.

    A block at its fixed point gives the first token of the next one in the same pass. Unlike in `jacobi`, nothing is
    guessed behind it before that.

    Args:
        block: n, rows of its first pass, the re-fed token included. Tokens a pass are n over its passes.
    """

    block: int = 16

    claim = Claim.SAME_GREEDY
    source = "arXiv:2403.00835, sections 3.1 and 3.3"
    mutants = (GUESS_ALWAYS_KEPT, GUESS_JUDGED_BY_NEXT_ROW, BONUS_AFTER_REJECTION)

    def __post_init__(self) -> None:
        if self.block < 2:
            raise UsageError(f"cllm: block is {self.block}; it holds the re-fed token and at least one guess")

    def start(self, run: Run) -> CLLMBlock:
        return CLLMBlock.empty(run, self.block)

    def step(self, run: Run, state: CLLMBlock) -> Acceptance:
        draft = state.propose(run)
        p = run.probs(run.target.forward(draft))
        acceptance = verify_chain(draft.tokens, None, p, run.draws)
        state.advance(p, len(acceptance.read().path))
        return acceptance

    @classmethod
    def variants(cls) -> Sequence[Cllm]:
        return (cls(block=3), cls(block=2))
