"""A window of guesses that each pass draws again: what Jacobi, SJD and SJD++ share.

Symbols: d drafts of the window, q the law each was drawn from, p target's law, L drafts in the window.
Source: Teng et al. 2025, speculative Jacobi decoding, arXiv:2410.01699; SJD++ section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from harness.contracts import Draft
from harness.draws import Draws
from harness.method import Run

Init = Literal["uniform", "random", "h-repeat", "h-sample"]


class Fresh(NamedTuple):
    """Drafts with the laws that they were drawn from, and which of them were kept rather than drawn."""

    tokens: Int[Tensor, " L"]
    law: Float[Tensor, "L V"]
    kept: Bool[Tensor, " L"]


Refine = Callable[[Int[Tensor, " M"], Float[Tensor, "M V"], Float[Tensor, "M+1 V"], int], Fresh]
"""(M old drafts, their laws, the new laws, position of the first) -> M + 1 drafts of the next pass.

The last row is the law of the place behind the window, where no draft stood yet.
"""


@dataclass
class JacobiWindow:
    """The drafts of one sequence, carried from pass to pass.

    Args:
        size: most drafts in the window. init: what fills empty places (see `fill`).
        left: law that the last emitted token was drawn from; None before the first pass.
    """

    size: int
    init: Init
    tokens: Int[Tensor, " L"]
    law: Float[Tensor, "L V"]
    kept: Bool[Tensor, " L"]
    left: Float[Tensor, " V"] | None = None

    @classmethod
    def empty(cls, run: Run, size: int, init: Init) -> JacobiWindow:
        """No drafts yet."""
        tokens = run.nothing.tokens
        law = tokens.new_zeros(0, run.offers.vocabulary, dtype=torch.float64)
        return cls(size, init, tokens, law, tokens.bool())

    def propose(self, run: Run) -> Draft:
        """The window, filled up or cut to the room that is left."""
        self.fill(run, min(self.size, run.room - 1))
        return Draft(self.tokens, self.law, reused=self.kept)

    def fill(self, run: Run, size: int) -> None:
        """Fresh drafts for the empty places, each with its honest law.

        ``uniform``: a uniform id, recorded as uniform. ``random``: the same id, recorded as a point mass.
        ``h-repeat``: the left neighbour's id, a point mass. ``h-sample``: a draw from the left neighbour's law,
        recorded as that law; ``random`` where the neighbour has none (the prompt's last token).
        """
        self.tokens, self.law, self.kept = self.tokens[:size], self.law[:size], self.kept[:size]
        missing = size - len(self.tokens)
        if missing <= 0:
            return
        vocabulary = run.offers.vocabulary
        source = self.law[-1] if len(self.law) else self.left
        if self.init == "h-repeat":
            last = self.tokens[-1:] if len(self.tokens) else run.last
            tokens, law = last.repeat(missing), None
        elif self.init == "h-sample" and source is not None:
            law = source.expand(missing, -1)
            tokens = run.draws.categorical(law, "init")
        else:
            tokens = run.draws.integers(missing, vocabulary, "init")
            law = self.law.new_full((missing, vocabulary), 1 / vocabulary) if self.init == "uniform" else None
        fresh = Draft(tokens, law)
        self.tokens = torch.cat([self.tokens, tokens])
        self.law = torch.cat([self.law, fresh.q(vocabulary, self.law).to(self.law.dtype)])
        self.kept = torch.cat([self.kept, torch.zeros_like(tokens, dtype=torch.bool)])

    def advance(self, p: Float[Tensor, "R V"], accepted: int, refine: Refine, first: int) -> None:
        """After ``accepted`` drafts and one more token: refine what stands behind them.

        Args:
            p: the pass's R = L + 1 laws; row i is the law of draft i, row L of the place behind the window.
            refine: makes the next window. first: absolute position of row 0.
        """
        begin = accepted + 1
        self.left = p[accepted]
        tokens, q = self.tokens[begin:], self.law[begin:].to(p.dtype)
        if begin > len(self.tokens):  # all accepted: the pass predicted nothing further on
            self.tokens, self.law, self.kept = tokens, q, self.kept[begin:]
        else:
            self.tokens, self.law, self.kept = refine(tokens, q, p[begin:], first + begin)


def redraw(draws: Draws) -> Refine:
    """Each draft anew from its new law: the refinement of Jacobi sampling and of SJD."""

    def refine(x: Tensor, q: Tensor, p: Tensor, first: int) -> Fresh:
        tokens = draws.categorical(p, "draft")
        return Fresh(tokens, p, torch.zeros_like(tokens, dtype=torch.bool))

    return refine
