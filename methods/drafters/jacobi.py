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
from harness.errors import UsageError
from harness.method import Run
from methods.drafters.codes import ids_of

Init = Literal["uniform", "random", "h-repeat", "v-repeat", "h-sample", "v-sample"]
VERTICAL = ("v-repeat", "v-sample")


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
        size: most drafts in the window; a picture or a budget with less room has fewer. init: what fills empty places
            (see `fill`). ids: that a place may take. even: the uniform law over them.
        past: laws that the last emitted tokens were drawn from, as far back as ``init`` looks; none of the prompt's.
    """

    size: int
    init: Init
    ids: Int[Tensor, " I"]
    even: Float[Tensor, "1 V"]
    tokens: Int[Tensor, " L"]
    law: Float[Tensor, "L V"]
    kept: Bool[Tensor, " L"]
    past: Float[Tensor, "E V"]

    @classmethod
    def empty(cls, run: Run, size: int, init: Init) -> JacobiWindow:
        """No drafts yet.

        Raises:
            UsageError: ``init`` looks at the row above, and the tokens lie in no rows.
        """
        grid = run.offers.grid
        if init in VERTICAL and grid is None:
            raise UsageError(f"init is {init}, and this backbone's tokens lie in no rows; use h-{init[2:]}")
        tokens = run.nothing.tokens
        ids = ids_of(run.offers, tokens.device)
        law = tokens.new_zeros(0, run.offers.vocabulary, dtype=torch.float64)
        even = law.new_zeros(1, run.offers.vocabulary).index_fill_(1, ids, 1 / len(ids))
        return cls(size, init, ids, even, tokens, law, tokens.bool(), law)

    def propose(self, run: Run) -> Draft:
        """The window, filled up or cut to the room that is left."""
        self.fill(run, min(self.size, run.room - 1))
        return Draft(self.tokens, self.law, reused=self.kept)

    def fill(self, run: Run, size: int) -> None:
        """Fresh drafts for the empty places, each with its honest law.

        ``uniform``: a uniform id, recorded as uniform. ``random``: the same id, recorded as a point mass. ``h-repeat``,
        ``v-repeat``: the id to the left, above; a point mass. ``h-sample``, ``v-sample``: a draw from the law to the
        left, above; recorded as that law. Where there is no such neighbour (a text's prompt has ids and no laws; a
        picture's first column has nothing to its left): ``random``. Ends of rows are what they must be.
        """
        self.tokens, self.law, self.kept = self.tokens[:size], self.law[:size], self.kept[:size]
        missing = size - len(self.tokens)
        if missing <= 0:
            return
        if self.init in ("uniform", "random") and run.offers.grid is None:
            self._append(run, self._any(run, missing))
            return
        first = len(run.target) + len(self.tokens)
        for position in range(first, first + missing):
            self._append(run, self._fresh(run, position))

    def _fresh(self, run: Run, position: int) -> Draft:
        """The draft of one empty place; those before it are filled."""
        grid = run.offers.grid
        forced = None if grid is None else grid.forced(position)
        if forced is not None:
            return Draft(torch.tensor([forced], device=self.tokens.device))
        beside = self._beside(run, position)
        if beside is not None and self.init.endswith("repeat"):
            return Draft(self._token(run, beside))
        law = None if beside is None or self.init.endswith("repeat") else self._law(run, beside)
        if law is not None:
            return Draft(run.draws.categorical(law, "init"), law)
        return self._any(run, 1)

    def _any(self, run: Run, count: int) -> Draft:
        """Uniform ids, recorded as such or as point masses."""
        tokens = self.ids[run.draws.integers(count, len(self.ids), "init")]
        return Draft(tokens, self.even.expand(count, -1) if self.init == "uniform" else None)

    def _beside(self, run: Run, position: int) -> int | None:
        """The position that ``init`` looks at."""
        grid = run.offers.grid
        if self.init in ("uniform", "random"):
            return None
        if grid is None:
            return position - 1
        return grid.above(position) if self.init in VERTICAL else grid.left(position)

    def _token(self, run: Run, position: int) -> Int[Tensor, " 1"]:
        """Emitted or drafted."""
        place = position - len(run.target)
        if place >= 0:
            return self.tokens[place : place + 1]
        return torch.tensor([run.target.tokens[position]], device=self.tokens.device)

    def _law(self, run: Run, position: int) -> Float[Tensor, "1 V"] | None:
        """That a draft or an emitted token was drawn from; None of the prompt's tokens."""
        place = position - len(run.target)
        held, place = (self.law, place) if place >= 0 else (self.past, len(self.past) + place)
        return held[place : place + 1] if place >= 0 else None

    def _append(self, run: Run, fresh: Draft) -> None:
        law = fresh.q(run.offers.vocabulary, self.law).to(self.law.dtype)
        self.tokens, self.law = torch.cat([self.tokens, fresh.tokens]), torch.cat([self.law, law])
        self.kept = torch.cat([self.kept, torch.zeros_like(fresh.tokens, dtype=torch.bool)])

    def advance(self, run: Run, p: Float[Tensor, "R V"], accepted: int, refine: Refine) -> None:
        """After ``accepted`` drafts and one more token: refine what stands behind them.

        Args:
            p: the pass's R = L + 1 laws; row i is the law of draft i, row L of the place behind the window.
            refine: makes the next window.
        """
        begin = accepted + 1
        self._remember(run, p[:begin])
        tokens, q = self.tokens[begin:], self.law[begin:].to(p.dtype)
        if begin > len(self.tokens):  # all accepted: the pass predicted nothing further on
            self.tokens, self.law, self.kept = tokens, q, self.kept[begin:]
        else:
            self.tokens, self.law, self.kept = refine(tokens, q, p[begin:], len(run.target) + begin)

    def _remember(self, run: Run, laws: Float[Tensor, "n V"]) -> None:
        """Laws of what is emitted now, as long as ``init`` may look back at them."""
        grid = run.offers.grid
        reach = {"h-sample": 1, "v-sample": grid.stride if grid else 1}.get(self.init, 0)
        self.past = torch.cat([self.past.to(laws.dtype), laws])[-reach:] if reach else self.past


def discard(x: Tensor, q: Tensor, p: Tensor, first: int) -> Fresh:
    """No refinement: nothing of the window is kept, so the next one is all fresh (SJD++ Fig. 12)."""
    return Fresh(x[:0], q[:0], x[:0].bool())


def redraw(draws: Draws) -> Refine:
    """Each draft anew from its new law: the refinement of Jacobi sampling and of SJD."""

    def refine(x: Tensor, q: Tensor, p: Tensor, first: int) -> Fresh:
        tokens = draws.categorical(p, "draft")
        return Fresh(tokens, p, torch.zeros_like(tokens, dtype=torch.bool))

    return refine
