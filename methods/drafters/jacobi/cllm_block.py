"""A block of guesses that is read again and again until all of it stands, and only then followed by the next one.

Symbols: n tokens of a block, L guesses left in it, p target's law.
Source: Kou et al. 2024, CLLMs, arXiv:2403.00835, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from harness.core.draft import Draft
from harness.core.run import Run


@dataclass
class Block:
    """What is left of one sequence's block, carried from pass to pass.

    Args:
        size: n; its first token is the last emitted one, which the block before gave for free. source: ids of the
            prompt, of which new guesses are taken at random. tokens: guesses left; None: a block is to begin.
    """

    size: int
    source: Int[Tensor, " M"]
    tokens: Int[Tensor, " L"] | None = None

    @classmethod
    def empty(cls, run: Run, size: int) -> Block:
        """No guesses yet."""
        return cls(size, torch.tensor(run.target.tokens, device=run.target.device))

    def propose(self, run: Run) -> Draft:
        """The guesses left, maybe none; of a new block n - 1, or what the room allows."""
        if self.tokens is None:
            count = min(self.size, run.room) - 1
            drawn = run.draws.integers(count, len(self.source), "init") if count else run.nothing.tokens
            self.tokens = self.source[drawn]
        return Draft(self.tokens)

    def advance(self, p: Float[Tensor, "R V"], kept: int) -> None:
        """After ``kept`` guesses and one more token: what stands behind them is predicted anew.

        Args:
            p: the pass's R = L + 1 laws; row i is that of guess i. The last one is of no guess: of the next block's
                first token where all were kept, and else stands on a wrong one.
        """
        assert self.tokens is not None, "a block was proposed"
        left = len(self.tokens)
        self.tokens = None if kept == left else p[kept + 1 : left].argmax(1)
