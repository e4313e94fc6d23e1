"""A window of guesses that each pass draws again: what Jacobi, SJD and SJD++ share.

Symbols: d drafts of the window, q the distribution each was drawn from, p the target's distributions, L drafts in the
window.
Source: Teng et al. 2025, speculative Jacobi decoding, arXiv:2410.01699; SJD++ section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stridebench.harness.core.capabilities import Grid
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.method import Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError

Init = Literal["uniform", "random", "h-repeat", "v-repeat", "h-sample", "v-sample"]
VERTICAL = ("v-repeat", "v-sample")


@dataclass(frozen=True, eq=False)
class Initialiser:
    """One initialisation, for one run.

    Args:
        name: see `JacobiWindow.fill`.
    """

    name: Init
    ids: Int[Tensor, " I"]
    uniform: Float[Tensor, "1 V"]

    @classmethod
    def of(cls, run: Run, name: Init) -> Initialiser:
        """Return the initialisation of this name."""
        if name in VERTICAL and run.capabilities.grid is None:
            raise UsageError(f"init is {name}, and this backbone's tokens lie in no rows; use h-{name[2:]}")
        ids = torch.tensor(run.capabilities.cell_ids, device=run.target.device)
        uniform = torch.zeros(1, run.capabilities.vocabulary, dtype=torch.float64, device=ids.device)
        return cls(name, ids, uniform.index_fill_(1, ids, 1 / len(ids)))

    def __deepcopy__(self, memo: dict[int, Any]) -> Initialiser:
        return self

    @property
    def ignores_neighbours(self) -> bool:
        """Whether its ids are random."""
        return self.name in ("uniform", "random")

    @property
    def copies(self) -> bool:
        """Whether it takes a neighbour's id, not its distribution."""
        return self.name.endswith("repeat")

    def neighbour(self, grid: Grid | None, position: int) -> int | None:
        """Return the position that it looks at, or None if there is none."""
        if self.ignores_neighbours:
            return None
        if grid is None:
            return position - 1
        return grid.above(position) if self.name in VERTICAL else grid.left(position)

    def reach(self, grid: Grid | None) -> int:
        """Return how many emitted tokens' distributions it may look back at."""
        return {"h-sample": 1, "v-sample": grid.stride if grid else 1}.get(self.name, 0)

    def random_ids(self, run: Run, count: int) -> Draft:
        """Draw uniform ids, recorded as such or as point masses."""
        tokens = self.ids[run.draws.integers(count, len(self.ids), "init")]
        return Draft(tokens, self.uniform.expand(count, -1) if self.name == "uniform" else None)


class Fresh(NamedTuple):
    """Drafts, the distributions that they were drawn from, and which of them were reused rather than drawn."""

    tokens: Int[Tensor, " L"]
    probs: Float[Tensor, "L V"]
    reused: Bool[Tensor, " L"]


Refine = Callable[[Int[Tensor, " M"], Float[Tensor, "M V"], Float[Tensor, "M+1 V"], int], Fresh]
"""(M old drafts, their distributions, the new ones, position of the first) -> M + 1 drafts of the next pass.

The last row is the distribution behind the window, which had no draft yet.
"""


def discard(x: Tensor, q: Tensor, p: Tensor, first: int) -> Fresh:
    """Reuse no draft of the window, so the next one is all fresh (SJD++ Fig. 12)."""
    return Fresh(x[:0], q[:0], x[:0].bool())


def redraw(draws: Draws) -> Refine:
    """Return the refinement of Jacobi sampling and SJD: each draft is drawn again from its new distribution."""
    return partial(_redraw_all, draws)


def _redraw_all(draws: Draws, x: Tensor, q: Tensor, p: Tensor, first: int) -> Fresh:
    tokens = draws.categorical(p, "draft")
    return Fresh(tokens, p, torch.zeros_like(tokens, dtype=torch.bool))


@dataclass
class JacobiWindow:
    """The drafts of one sequence, carried from pass to pass.

    Args:
        size: most drafts in the window; a picture or a budget with less room has fewer.
        init: what fills empty positions (see `fill`).
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
        """Return an empty window, or raise UsageError if ``init`` looks at the row above and there are no rows."""
        tokens = run.nothing.tokens
        probs = tokens.new_zeros(0, run.capabilities.vocabulary, dtype=torch.float64)
        return cls(size, Initialiser.of(run, init), tokens, probs, tokens.bool(), probs)

    def propose(self, run: Run) -> Draft:
        """Return the window, filled up or cut to the room that is left."""
        self.fill(run, min(self.size, run.room - 1))
        return Draft(self.tokens, self.probs, reused=self.reused)

    def fill(self, run: Run, size: int) -> None:
        """Put fresh drafts into the empty positions, each with the distribution it was really drawn from.

        - ``uniform``: a uniform id, recorded as uniform.
        - ``random``: the same id, recorded as a point mass.
        - ``h-repeat``, ``v-repeat``: the id to the left, above; a point mass.
        - ``h-sample``, ``v-sample``: a draw from the distribution to the left, above; recorded as that distribution.

        If there is no such neighbour, ``random``: a text's prompt has ids and no distributions; a picture's first
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
        """Return the draft of one empty position; those before it are filled."""
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
        """Return the token at a position, emitted or drafted."""
        index = position - len(run.target)
        if index >= 0:
            return self.tokens[index : index + 1]
        return torch.tensor([run.target.tokens[position]], device=self.tokens.device)

    def _probs(self, run: Run, position: int) -> Float[Tensor, "1 V"] | None:
        """Return the distribution that a draft or an emitted token was drawn from, or None for the prompt's tokens."""
        index = position - len(run.target)
        probs, index = (self.probs, index) if index >= 0 else (self.past, len(self.past) + index)
        return probs[index : index + 1] if index >= 0 else None

    def _append(self, run: Run, fresh: Draft) -> None:
        probs = fresh.q(run.capabilities.vocabulary, self.probs).to(self.probs.dtype)
        self.tokens, self.probs = torch.cat([self.tokens, fresh.tokens]), torch.cat([self.probs, probs])
        self.reused = torch.cat([self.reused, torch.zeros_like(fresh.tokens, dtype=torch.bool)])

    def advance(self, run: Run, p: Float[Tensor, "R V"], accepted: int, refine: Refine) -> None:
        """Refine the drafts behind ``accepted`` ones and one more token.

        Args:
            p: R = L + 1 rows of the pass. Row i is the distribution at draft i, row L that behind the window.
        """
        begin = accepted + 1
        self._remember(run, p[:begin])
        tokens, q = self.tokens[begin:], self.probs[begin:].to(p.dtype)
        if begin > len(self.tokens):  # all accepted: the pass predicted nothing behind them
            self.tokens, self.probs, self.reused = tokens, q, self.reused[begin:]
        else:
            self.tokens, self.probs, self.reused = refine(tokens, q, p[begin:], len(run.target) + begin)

    def _remember(self, run: Run, probs: Float[Tensor, "n V"]) -> None:
        """Keep the distributions of the tokens emitted now, as far back as ``init`` may look."""
        reach = self.init.reach(run.capabilities.grid)
        self.past = torch.cat([self.past.to(probs.dtype), probs])[-reach:] if reach else self.past


# SJD++, eqs. 2-5. Symbols: x drafts that stay in the window, K = {v: p(v) > tau q(v)} the tokens that would be kept,
# m = q(K). Keeping x if p(x) / q(x) > tau selects on the value of x. So recording p all the same ("paper") or q
# ("frozen") changes the output distribution. Four modes are exact: C and B2 record the distribution that the kept or
# redrawn token really has, M couples p to q, and G draws old and new from one noise vector a position.


Reuse = Literal["paper", "frozen", "C", "B2", "M", "G"]


def carry_over(draws: Draws, reuse: Reuse, tau: float) -> Refine:
    """Return the refinement of one reuse mode; the position behind the window is always drawn."""
    return partial(_refine, draws, reuse, tau)


def _refine(
    draws: Draws,
    reuse: Reuse,
    tau: float,
    x: Int[Tensor, " M"],
    q: Float[Tensor, "M V"],
    p: Float[Tensor, "M+1 V"],
    first: int,
) -> Fresh:
    if reuse == "G":
        tokens = draws.race(p, range(first, first + len(p)))
        reused = torch.zeros_like(tokens, dtype=torch.bool)
        reused[:-1] = tokens[:-1] == x
        return Fresh(tokens, p, reused)
    last = draws.categorical(p[-1:], "draft")
    if reuse == "M":
        tokens = draws.couple(x, q, p[:-1])
        old = Fresh(tokens, p[:-1], tokens == x)
    else:
        old = reuse_by_threshold(x, q, p[:-1], reuse, tau, draws)
    tokens = torch.cat([old.tokens, last])
    reused = torch.cat([old.reused, torch.zeros_like(last, dtype=torch.bool)])
    return Fresh(tokens, torch.cat([old.probs, p[-1:]]), reused)


def reuse_by_threshold(
    x: Int[Tensor, " M"],
    q: Float[Tensor, "M V"],
    p: Float[Tensor, "M V"],
    reuse: Reuse,
    tau: float,
    draws: Draws,
) -> Fresh:
    """Keep x where p(x) > tau q(x), else draw from p; record the distribution of the mode.

    C records q 1_K + (1 - m) p for both outcomes. B2 records q 1_K / m for a kept draft and p for a redrawn one.
    """
    keep_set = p > tau * q if tau < inf else torch.zeros_like(p, dtype=torch.bool)
    reused = keep_set.gather(1, x[:, None])[:, 0]
    tokens = x.clone()
    tokens[~reused] = draws.categorical(p[~reused], "draft")
    mass = q.where(keep_set, 0.0).sum(-1, keepdim=True)
    if reuse == "C":
        probs = q.where(keep_set, 0.0) + (1 - mass) * p
    elif reuse == "B2":
        probs = torch.where(reused[:, None], q.where(keep_set, 0.0) / mass, p)
    elif reuse == "frozen":
        probs = torch.where(reused[:, None], q, p)
    else:
        probs = p
    return Fresh(tokens, probs, reused)


# Bugs to inject into the refinement and the reuse of drafts.


NEIGHBOUR_PROBS_RECORDED = Mutant(
    f"{__name__}:JacobiWindow.advance",
    "refine(tokens, q, p[begin:], len(run.target) + begin)",
    "refine(tokens, q, p[begin:], len(run.target) + begin)._replace(probs=p[begin - 1:-1])",
    "the recorded distribution is the left neighbour's",
)
C_RECORDS_NEW_PROBS = Mutant(
    f"{__name__}:reuse_by_threshold",
    "q.where(keep_set, 0.0) + (1 - mass) * p",
    "p.clone()",
    "mode C records p, as the paper does",
)
B2_RECORDS_OLD_PROBS = Mutant(
    f"{__name__}:reuse_by_threshold", "q.where(keep_set, 0.0) / mass", "q", "mode B2 records the old q"
)
M_ALWAYS_KEEPS = Mutant(
    f"{__name__}:_refine", "draws.couple(x, q, p[:-1])", "draws.couple(x, p[:-1], p[:-1].clone())", "M always keeps"
)
G_DRAWS_FROM_SHIFTED_PROBS = Mutant(
    f"{__name__}:_refine",
    "draws.race(p, range(first",
    "draws.race(p.roll(1, 1), range(first",
    "G draws from a shifted distribution",
)
G_KEYS_IGNORE_POSITIONS = Mutant(
    f"{__name__}:_refine",
    "range(first, first + len(p))",
    "range(len(p))",
    "G uses the noise of emitted positions again",
)
REUSE_MODES = (
    C_RECORDS_NEW_PROBS,
    B2_RECORDS_OLD_PROBS,
    M_ALWAYS_KEEPS,
    G_DRAWS_FROM_SHIFTED_PROBS,
    G_KEYS_IGNORE_POSITIONS,
)
