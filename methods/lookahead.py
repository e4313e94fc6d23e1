"""Lookahead decoding: a Jacobi window next to the text produces n-grams, which are tried as guesses where they fit.

Source: Fu et al. 2024, arXiv:2402.02057, Algorithm 2 and, for sampling, Algorithm 4.
Symbols: N n-gram length, W columns of the window, G guesses a step, p the target's distributions.
Guesses are point masses, since the window is decoded greedily at every temperature. Unlike in the released loop, a
guess that is accepted whole is followed by a bonus token, so a step emits up to N tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.verifiers.tree import NGRAMS, trie, verify_delta

# Symbols: c column. Row 0 is guessed text behind the last token, which is row 0's column 0 and is not stored. Cell
# (r, c) is the greedy token after (r - 1, c), as in the released loop ``jacobi_greedy_search_multilevel``.


@dataclass
class LookaheadWindow:
    """The window and its n-grams, on the host, as the released code has them.

    Args:
        ngram: N.
        width: W.
        guesses: G.
        rows: of the window. Once it is warm there are N - 1, the first with W - 1 ids and the others with W.
        pool: continuations of N - 1 tokens by the token before them, the newest last.
        reading: the current pass reads the window.
    """

    ngram: int
    width: int
    guesses: int
    rows: list[list[int]]
    pool: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    reading: bool = False

    @classmethod
    def begin(cls, run: Run, ngram: int, width: int, guesses: int) -> LookaheadWindow:
        """Draw row 0 from the prompt's ids; the first N - 2 passes fill the other rows."""
        return cls(ngram, width, guesses, [_random(run, width + ngram - 3)])

    def propose(self, run: Run) -> Draft:
        """Return the newest guesses behind the last token, merged as far as they agree; then the window, as probes.

        If the context has no room for the window, the pass leaves it out.
        """
        guesses = self.pool.get(run.target.tokens[-1], [])
        depth = min(self.ngram - 1, run.room - 1)
        count = depth * len(guesses) if depth * len(guesses) <= run.space else 0
        cells = sum(map(len, self.rows))
        self.reading = count + cells <= run.space
        ids = [guess[level] for level in range(depth) for guess in guesses] if count else []
        parents, repeats = torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.bool)
        if ids:
            parents, first = trie(torch.tensor(ids).view(depth, -1))
            repeats = first != torch.arange(count)
        window = self._window(count) if self.reading else []
        ids += [token for row in self.rows for token in row] if self.reading else []
        device = run.target.device
        return Draft(
            torch.tensor(ids, dtype=torch.long, device=device),
            parents=torch.cat([parents, torch.tensor(window, dtype=torch.long)]).to(device),
            probes=len(window),
            repeats=torch.cat([repeats, torch.zeros(len(window), dtype=torch.bool)]).to(device),
        )

    def _window(self, start: int) -> list[int]:
        """Return the parents of the cells; the first cell is node ``start``."""
        above = [-1, *range(start, start + len(self.rows[0]))]
        parents = above[:-1]
        begin = start + len(self.rows[0])
        for row in self.rows[1:]:
            parents += above[: len(row)]
            above = list(range(begin, begin + len(row)))
            begin += len(row)
        return parents

    def newest(self, logits: Float[Tensor, "R V"]) -> Int[Tensor, " n"]:
        """Return the greedy token after each cell of the last row; none if the window was not read."""
        return logits[len(logits) - len(self.rows[-1]) * self.reading :].argmax(-1)

    def advance(self, run: Run, last: int, newest: Sequence[int]) -> None:
        """Move the window by one column and one row, and its n-grams into the pool.

        Args:
            last: the last token when the window was read.
            newest: see `newest`.
        """
        if not self.reading:
            return
        row_below = self._without_ends(run, list(newest))
        if len(self.rows) < self.ngram - 1:
            warmed = row_below[1:] if len(self.rows) > 1 else row_below
            self.rows = [*(row[1:] for row in self.rows), warmed]
            return
        for column, key in enumerate([last, *self.rows[0]]):
            self._learn(key, (*(row[column] for row in self.rows[1:]), row_below[column]))
        self.rows = [self.rows[1][1:], *self.rows[2:], row_below]

    def _learn(self, key: int, guess: tuple[int, ...]) -> None:
        older = [other for other in self.pool.get(key, []) if other != guess]
        self.pool[key] = [*older, guess][-self.guesses :]

    def _without_ends(self, run: Run, ids: list[int]) -> list[int]:
        """Replace an end of text in the window by a random id of the prompt."""
        ended = [index for index, token in enumerate(ids) if token in run.eos]
        for index, token in zip(ended, _random(run, len(ended)), strict=True):
            ids[index] = token
        return ids


def _random(run: Run, count: int) -> list[int]:
    """Draw random ids of the prompt. Reads the device, at the start and if an end of text came up."""
    tokens = run.target.tokens[: len(run.target) - run.emitted]
    return [tokens[index] for index in run.draws.integers(count, len(tokens), "init").tolist()]


@METHODS.register("lookahead")
@dataclass(frozen=True)
class Lookahead(Method[LookaheadWindow]):
    """One pass reads the guesses and the window: 1 + G (N - 1) + (N - 1) W rows.

    The released code has N = 5, W = 7 and G = 7.

    Args:
        ngram: N.
        window: W.
        guesses: G, the newest ones that follow the last token.
    """

    ngram: int = 5
    window: int = 7
    guesses: int = 7

    claim = Claim.SAME_LAW
    source = "arXiv:2402.02057, Algorithms 2 and 4"
    requirements = frozenset({Requirement.TREE_MASK})
    pinned = frozenset({"init"})
    mutants = NGRAMS

    def __post_init__(self) -> None:
        if self.ngram < 3 or self.window < 2 or self.guesses < 1:
            raise UsageError(
                f"lookahead: ngram is {self.ngram}, window {self.window}, guesses {self.guesses}; give an ngram from "
                f"3, a window from 2 and a guess or more"
            )

    def start(self, run: Run) -> LookaheadWindow:
        return LookaheadWindow.begin(run, self.ngram, self.window, self.guesses)

    def step(self, run: Run, state: LookaheadWindow) -> Acceptance:
        draft, last = state.propose(run), run.target.tokens[-1]
        logits = run.target.forward(draft)
        p = run.probs(logits[: 1 + draft.proposed])
        acceptance = verify_delta(draft, p, run.draws, state.newest(logits))
        state.advance(run, last, acceptance.read().extra_ids)
        return acceptance

    @classmethod
    def variants(cls) -> Sequence[Lookahead]:
        return (cls(ngram=3, window=2, guesses=2),)
