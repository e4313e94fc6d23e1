"""A window of guesses that each pass draws again: what Jacobi, SJD and SJD++ share.

Symbols: d drafts of the window, q the law each was drawn from, p target's law, L drafts in the window.
Source: Teng et al. 2025, speculative Jacobi decoding, arXiv:2410.01699; SJD++ section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from harness.core.draft import Draft
from harness.core.run import Run
from methods.drafters.jacobi.initialisation import Init, Initialiser
from methods.drafters.jacobi.refine import Refine


@dataclass
class JacobiWindow:
    """The drafts of one sequence, carried from pass to pass.

    Args:
        size: most drafts in the window; a picture or a budget with less room has fewer. init: what fills empty places
            (see `fill`).
        past: laws that the last emitted tokens were drawn from, as far back as ``init`` looks; none of the prompt's.
    """

    size: int
    init: Initialiser
    tokens: Int[Tensor, " L"]
    probs: Float[Tensor, "L V"]
    kept: Bool[Tensor, " L"]
    past: Float[Tensor, "E V"]

    @classmethod
    def empty(cls, run: Run, size: int, init: Init) -> JacobiWindow:
        """No drafts yet.

        Raises:
            UsageError: ``init`` looks at the row above, and the tokens lie in no rows.
        """
        tokens = run.nothing.tokens
        probs = tokens.new_zeros(0, run.capabilities.vocabulary, dtype=torch.float64)
        return cls(size, Initialiser.of(run, init), tokens, probs, tokens.bool(), probs)

    def propose(self, run: Run) -> Draft:
        """The window, filled up or cut to the room that is left."""
        self.fill(run, min(self.size, run.room - 1))
        return Draft(self.tokens, self.probs, reused=self.kept)

    def fill(self, run: Run, size: int) -> None:
        """Fresh drafts for the empty places, each with its honest law.

        ``uniform``: a uniform id, recorded as uniform. ``random``: the same id, recorded as a point mass. ``h-repeat``,
        ``v-repeat``: the id to the left, above; a point mass. ``h-sample``, ``v-sample``: a draw from the law to the
        left, above; recorded as that law. Where there is no such neighbour (a text's prompt has ids and no laws; a
        picture's first column has nothing to its left): ``random``. Ends of rows are what they must be.
        """
        self.tokens, self.probs, self.kept = self.tokens[:size], self.probs[:size], self.kept[:size]
        missing = size - len(self.tokens)
        if missing <= 0:
            return
        if self.init.anywhere and run.capabilities.grid is None:
            self._append(run, self.init.anything(run, missing))
            return
        first = len(run.target) + len(self.tokens)
        for position in range(first, first + missing):
            self._append(run, self._fresh(run, position))

    def _fresh(self, run: Run, position: int) -> Draft:
        """The draft of one empty place; those before it are filled."""
        grid = run.capabilities.grid
        forced = None if grid is None else grid.forced(position)
        if forced is not None:
            return Draft(torch.tensor([forced], device=self.tokens.device))
        beside = self.init.beside(run.capabilities.grid, position)
        if beside is not None and self.init.copies:
            return Draft(self._token(run, beside))
        probs = None if beside is None else self._law(run, beside)
        if probs is not None:
            return Draft(run.draws.categorical(probs, "init"), probs)
        return self.init.anything(run, 1)

    def _token(self, run: Run, position: int) -> Int[Tensor, " 1"]:
        """Emitted or drafted."""
        place = position - len(run.target)
        if place >= 0:
            return self.tokens[place : place + 1]
        return torch.tensor([run.target.tokens[position]], device=self.tokens.device)

    def _law(self, run: Run, position: int) -> Float[Tensor, "1 V"] | None:
        """That a draft or an emitted token was drawn from; None of the prompt's tokens."""
        place = position - len(run.target)
        held, place = (self.probs, place) if place >= 0 else (self.past, len(self.past) + place)
        return held[place : place + 1] if place >= 0 else None

    def _append(self, run: Run, fresh: Draft) -> None:
        probs = fresh.q(run.capabilities.vocabulary, self.probs).to(self.probs.dtype)
        self.tokens, self.probs = torch.cat([self.tokens, fresh.tokens]), torch.cat([self.probs, probs])
        self.kept = torch.cat([self.kept, torch.zeros_like(fresh.tokens, dtype=torch.bool)])

    def advance(self, run: Run, p: Float[Tensor, "R V"], accepted: int, refine: Refine) -> None:
        """After ``accepted`` drafts and one more token: refine what stands behind them.

        Args:
            p: the pass's R = L + 1 laws; row i is the law of draft i, row L of the place behind the window.
            refine: makes the next window.
        """
        begin = accepted + 1
        self._remember(run, p[:begin])
        tokens, q = self.tokens[begin:], self.probs[begin:].to(p.dtype)
        if begin > len(self.tokens):  # all accepted: the pass predicted nothing further on
            self.tokens, self.probs, self.kept = tokens, q, self.kept[begin:]
        else:
            self.tokens, self.probs, self.kept = refine(tokens, q, p[begin:], len(run.target) + begin)

    def _remember(self, run: Run, laws: Float[Tensor, "n V"]) -> None:
        """Laws of what is emitted now, as long as ``init`` may look back at them."""
        reach = self.init.reach(run.capabilities.grid)
        self.past = torch.cat([self.past.to(laws.dtype), laws])[-reach:] if reach else self.past
