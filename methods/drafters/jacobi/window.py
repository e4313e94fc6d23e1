"""A window of guesses that each pass draws again: what Jacobi, SJD and SJD++ share.

Symbols: d drafts of the window, q the distribution each was drawn from, p the target's distributions, L drafts in the
window.
Source: Teng et al. 2025, speculative Jacobi decoding, arXiv:2410.01699; SJD++ section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.run import Run
from stridebench.methods.drafters.jacobi.initialisation import Init, Initialiser
from stridebench.methods.drafters.jacobi.refine import Refine


@dataclass
class JacobiWindow:
    """The drafts of one sequence, carried from pass to pass.

    Args:
        size: most drafts in the window; a picture or a budget with less room has fewer.
        init: what fills empty positions (see `fill`).
        tokens: the drafts.
        probs: the distribution that each draft was drawn from.
        reused: marks drafts that were carried over rather than drawn again.
        past: distributions that the last emitted tokens were drawn from, as far back as ``init`` looks; none of the
            prompt's.
    """

    size: int
    init: Initialiser
    tokens: Int[Tensor, " L"]
    probs: Float[Tensor, "L V"]
    reused: Bool[Tensor, " L"]
    past: Float[Tensor, "E V"]

    @classmethod
    def empty(cls, run: Run, size: int, init: Init) -> JacobiWindow:
        """No drafts yet.

        Raises:
            UsageError: ``init`` looks at the row above, and the tokens form no rows.
        """
        tokens = run.nothing.tokens
        probs = tokens.new_zeros(0, run.capabilities.vocabulary, dtype=torch.float64)
        return cls(size, Initialiser.of(run, init), tokens, probs, tokens.bool(), probs)

    def propose(self, run: Run) -> Draft:
        """The window, filled up or cut to the room that is left."""
        self.fill(run, min(self.size, run.room - 1))
        return Draft(self.tokens, self.probs, reused=self.reused)

    def fill(self, run: Run, size: int) -> None:
        """Fresh drafts for the empty positions, each with the distribution it was really drawn from.

        - ``uniform``: a uniform id, recorded as uniform.
        - ``random``: the same id, recorded as a point mass.
        - ``h-repeat``, ``v-repeat``: the id to the left, above; a point mass.
        - ``h-sample``, ``v-sample``: a draw from the distribution to the left, above; recorded as that distribution.

        Where there is no such neighbour, ``random``: a text's prompt has ids and no distributions; a picture's first
        column has nothing to its left. Ends of rows are forced.
        """
        self.tokens, self.probs, self.reused = self.tokens[:size], self.probs[:size], self.reused[:size]
        missing = size - len(self.tokens)
        if missing <= 0:
            return
        if self.init.ignores_neighbours and run.capabilities.grid is None:
            self._append(run, self.init.random_ids(run, missing))
            return
        first = len(run.target) + len(self.tokens)
        for position in range(first, first + missing):
            self._append(run, self._fresh(run, position))

    def _fresh(self, run: Run, position: int) -> Draft:
        """The draft of one empty position; those before it are filled."""
        grid = run.capabilities.grid
        forced = None if grid is None else grid.forced(position)
        if forced is not None:
            return Draft(torch.tensor([forced], device=self.tokens.device))
        neighbour = self.init.neighbour(grid, position)
        if neighbour is not None and self.init.copies:
            return Draft(self._token(run, neighbour))
        probs = None if neighbour is None else self._probs(run, neighbour)
        if probs is not None:
            return Draft(run.draws.categorical(probs, "init"), probs)
        return self.init.random_ids(run, 1)

    def _token(self, run: Run, position: int) -> Int[Tensor, " 1"]:
        """The token at a position, emitted or drafted."""
        index = position - len(run.target)
        if index >= 0:
            return self.tokens[index : index + 1]
        return torch.tensor([run.target.tokens[position]], device=self.tokens.device)

    def _probs(self, run: Run, position: int) -> Float[Tensor, "1 V"] | None:
        """The distribution that a draft or an emitted token was drawn from; None for the prompt's tokens."""
        index = position - len(run.target)
        probs, index = (self.probs, index) if index >= 0 else (self.past, len(self.past) + index)
        return probs[index : index + 1] if index >= 0 else None

    def _append(self, run: Run, fresh: Draft) -> None:
        probs = fresh.q(run.capabilities.vocabulary, self.probs).to(self.probs.dtype)
        self.tokens, self.probs = torch.cat([self.tokens, fresh.tokens]), torch.cat([self.probs, probs])
        self.reused = torch.cat([self.reused, torch.zeros_like(fresh.tokens, dtype=torch.bool)])

    def advance(self, run: Run, p: Float[Tensor, "R V"], accepted: int, refine: Refine) -> None:
        """After ``accepted`` drafts and one more token: refine the drafts behind them.

        Args:
            p: R = L + 1 rows of the pass. Row i is the distribution at draft i, row L that behind the window.
            refine: makes the next window.
        """
        begin = accepted + 1
        self._remember(run, p[:begin])
        tokens, q = self.tokens[begin:], self.probs[begin:].to(p.dtype)
        if begin > len(self.tokens):  # all accepted: the pass predicted nothing behind them
            self.tokens, self.probs, self.reused = tokens, q, self.reused[begin:]
        else:
            self.tokens, self.probs, self.reused = refine(tokens, q, p[begin:], len(run.target) + begin)

    def _remember(self, run: Run, probs: Float[Tensor, "n V"]) -> None:
        """Distributions of what is emitted now, as far back as ``init`` may look."""
        reach = self.init.reach(run.capabilities.grid)
        self.past = torch.cat([self.past.to(probs.dtype), probs])[-reach:] if reach else self.past
