"""A block of guesses that is read again and again until it is a fixed point; only then the next one follows.

Symbols: n tokens of a block, L guesses left in it, p the target's distributions.
Source: Kou et al. 2024, CLLMs, arXiv:2403.00835, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.run import Run


@dataclass
class CLLMBlock:
    """What is left of one sequence's block, carried from pass to pass.

    Args:
        size: n. The block's first token is the last emitted one, which the block before gave for free.
        source: ids of the prompt, from which new guesses are drawn at random.
        tokens: guesses left; None: a new block is due.
    """

    size: int
    source: Int[Tensor, " M"]
    tokens: Int[Tensor, " L"] | None = None

    @classmethod
    def empty(cls, run: Run, size: int) -> CLLMBlock:
        """No guesses yet."""
        return cls(size, torch.tensor(run.target.tokens, device=run.target.device))

    def propose(self, run: Run) -> Draft:
        """The guesses left, possibly none; n - 1 of a new block, or as many as the room allows."""
        if self.tokens is None:
            count = min(self.size, run.room) - 1
            drawn = run.draws.integers(count, len(self.source), "init") if count else run.nothing.tokens
            self.tokens = self.source[drawn]
        return Draft(self.tokens)

    def advance(self, p: Float[Tensor, "R V"], accepted: int) -> None:
        """After ``accepted`` guesses and one more token: predict the guesses behind them anew.

        Args:
            p: R = L + 1 rows of the pass; row i is the distribution at guess i. The last row belongs to no guess. It
                gives the next block's first token where all were accepted, and else follows a wrong guess.
        """
        assert self.tokens is not None, "a block was proposed"
        left = len(self.tokens)
        self.tokens = None if accepted == left else p[accepted + 1 : left].argmax(1)
