"""Classifier-free guidance over two caches, and the tokens that a picture allows.

Source: Ho and Salimans 2022, arXiv:2207.12598, with the mixing of LlamaGen and Lumina-mGPT: z = z_u + s (z_c - z_u).
Symbols: P and U prompt lengths with and without the condition, s scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stridebench.harness.core.cache import Cache, Rows, Window, extend_all
from stridebench.harness.core.capabilities import Grid
from stridebench.harness.errors import ContractError

Grammar = Callable[[Int[Tensor, " R"]], Float[Tensor, "R V"]]
"""For R places in a picture (0: its first token) a row each: 0 at the ids that may stand there, -inf elsewhere."""


@final
class GridGrammar:
    """Cells take the ids allowed; ends of lines and of the picture take their one forced id.

    Places outside the picture are treated as cells; the start of the grid is not used.
    """

    def __init__(self, grid: Grid, allowed: Bool[Tensor, " V"], dtype: torch.dtype = torch.float32) -> None:
        forced = [grid.forced(grid.start + place) for place in range(grid.length)]
        ids = sorted({token for token in forced if token is not None})
        shut = torch.full((1 + len(ids), len(allowed)), float("-inf"), dtype=dtype, device=allowed.device)
        shut[0, allowed] = 0.0
        for row, token in enumerate(ids):
            shut[1 + row, token] = 0.0
        kinds = [0 if token is None else 1 + ids.index(token) for token in forced]
        self._masks = shut
        self._kinds = torch.tensor([0, *kinds, 0], device=allowed.device)

    def __call__(self, places: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        return self._masks[self._kinds[(places + 1).clamp(0, len(self._kinds) - 1)]]


@final
class GuidedCache(Cache):
    """One sequence in two branches that share all tokens behind their prompts.

    Entry i of the conditional branch is entry i + U - P of the other, from the prompt's last one (i = P - 1) on, where
    the other branch reads the last token of its prompt: often the same. Rows of earlier entries, which are asked for
    only after a rollback into the prompt, are the conditional branch's alone. The hidden rows of the U - 1 entries
    before are those of either branch; earlier ones stand in both places.

    Args:
        prompt: P.
        scale: s; at 1 the other branch does not run.
        grammar: the ids that may follow, or None for all.
    """

    def __init__(
        self,
        conditional: Cache,
        prompt: int,
        *,
        scale: float = 1.0,
        unconditional: Cache | None = None,
        negative: Sequence[int] = (),
        grammar: Grammar | None = None,
    ) -> None:
        if prompt < 1 or (unconditional is not None and not negative):
            raise ContractError(
                f"a guided cache needs a prompt on both sides; found lengths {prompt} and {len(negative)}"
            )
        self._conditional, self._unconditional = conditional, unconditional if scale != 1.0 else None
        self._last = prompt - 1
        self._negative = tuple(negative)
        self._shift = len(negative) - prompt
        self._scale = scale
        self._grammar = grammar
        self._held = 0
        self._opened = False
        self._before: Float[Tensor, "N one J E"] | None = None

    def extend(self, window: Window) -> Rows:
        rows = type(self).extend_many([self], [window])[0]
        if isinstance(rows, Exception):
            raise rows
        return rows

    @classmethod
    def extend_many(cls, caches: Sequence[GuidedCache], windows: Sequence[Window]) -> list[Rows | Exception]:
        per_cache: list[list[tuple[Cache, Window]] | Exception] = []
        for cache, window in zip(caches, windows, strict=True):
            try:
                per_cache.append(cache._branches(window))
            except Exception as error:  # refused before anything of it is read
                per_cache.append(error)
        passes = [branch for branches in per_cache if isinstance(branches, list) for branch in branches]
        read = iter(extend_all([cache for cache, _ in passes], [window for _, window in passes]))
        return [
            branches if isinstance(branches, Exception) else cache._joined(window, [next(read) for _ in branches])
            for cache, window, branches in zip(caches, windows, per_cache, strict=True)
        ]

    def _branches(self, window: Window) -> list[tuple[Cache, Window]]:
        """Return the windows of each branch; the unconditional one reads nothing inside the prompt."""
        count, alone = len(window.tokens), self._last - self._held
        if window.sees is not None and window.rows and count - window.rows < alone:
            raise ContractError(
                f"a tree hangs from entry {self._held + count - window.rows} and the prompt ends with entry "
                f"{self._last}: read the prompt first, then draft"
            )
        if self._unconditional is not None and window.taps and count >= alone and not self._opened:
            self._open(self._unconditional, window)  # whose hidden rows stand next to those of the prompt
        if self._unconditional is None or count <= alone:
            return [(self._conditional, window)]
        other = self._other(self._unconditional, window, max(0, alone))
        return [(self._conditional, window), (self._unconditional, other)]

    def _joined(self, window: Window, branches: Sequence[Rows | Exception]) -> Rows | Exception:
        read = [rows for rows in branches if isinstance(rows, Rows)]
        if len(read) < len(branches):
            return next(error for error in branches if isinstance(error, Exception))
        count = len(window.tokens)
        self._held += count
        logits, hidden = read[0].logits, read[0].hidden
        other = read[1] if len(read) > 1 else None
        if other is not None:
            plain = len(logits) - len(other.logits)
            mixed = torch.lerp(other.logits, logits[plain:], self._scale)
            logits = torch.cat([logits[:plain], mixed]) if plain else mixed
        if hidden is not None and self._unconditional is not None:
            behind = hidden[count:] if other is None or other.hidden is None else other.hidden
            second = torch.cat([hidden[: count - len(behind)], behind])
            hidden = torch.cat([hidden, self._with_prompt(second, self._held - count)], 1)
        if self._grammar is not None and window.rows:
            places = window.positions[count - window.rows :] - self._last
            logits = logits + self._grammar(places).to(logits.dtype)
        return Rows(logits, hidden)

    def _with_prompt(self, hidden: Float[Tensor, "N one J E"], start: int) -> Float[Tensor, "N one J E"]:
        """Return the hidden rows from entry ``start`` on, with those of the other branch's prompt where it has some."""
        rows = self._before
        if rows is None:
            return hidden
        first = max(0, self._last - len(rows))
        low, high = max(first, start), min(self._last, start + len(hidden))
        offset = len(rows) - self._last
        if low < high:
            hidden[low - start : high - start] = rows[low + offset : high + offset]
        return hidden

    def _other(self, cache: Cache, window: Window, alone: int) -> Window:
        """Return the window of the unconditional branch: all but the first ``alone`` entries."""
        tokens, positions = window.tokens[alone:], window.positions[alone:] + self._shift
        if not self._opened:
            self._open(cache, window)
        if self._held + alone == self._last:
            tokens = tokens.clone()
            tokens[0] = self._negative[-1]
        base = max(window.base, self._last)
        sees = None if window.sees is None else window.sees[alone:, base - window.base :]
        rows, features = min(window.rows, len(tokens)), None if window.features is None else window.features[alone:]
        return Window(tokens, positions, base + self._shift, sees, rows, window.taps, features)

    def _open(self, cache: Cache, window: Window) -> None:
        """Read the branch's prompt but for its last token, with the first pass that needs it: so it is timed."""
        self._opened = True
        if len(self._negative) > 1:
            tokens = window.tokens.new_tensor(self._negative[:-1])
            positions = torch.arange(len(tokens), device=tokens.device)
            self._before = cache.extend(Window(tokens, positions, 0, None, 0, window.taps)).hidden

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        behind = max(0, self._last - length)
        moved = [length + entry - self._last for entry in entries[behind:]]
        if any(entry < 0 for entry in moved):
            raise ContractError(f"keep({length}, {tuple(entries)}) moves entries of the prompt behind its end")
        self._conditional.keep(length, entries)
        self._held = length + len(entries)
        if self._unconditional is None or not self._opened:
            return
        if behind:
            self._unconditional.keep(self._last + self._shift, moved)
        else:
            self._unconditional.keep(length + self._shift, entries)
