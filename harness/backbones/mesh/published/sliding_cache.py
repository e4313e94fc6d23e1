"""DeepMesh's window as its authors' sampler slides it: a cache of 9,000 entries that forgets half when it is full.

`ar_sample_kvcache` of sample.py (zhaorw02/DeepMesh at 5c8ac4e) reads one token a pass. Once 9,001 tokens are there, and
after every 4,500 more, it reads the last 4,501 again, in one pass over an empty cache, at the positions that they had.
So the entry at position p attends from `start_of(p)` on, and what lies before is forgotten on all levels.

Here drafts may cross such a position. Those before it are read with the old entries, those behind it with the new ones.
The old entries stay for a while, because drafts may be rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stridebench.harness.backbones.mesh.published.hourglass_cache import Conditioned, HourglassCache
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.errors import ContractError

Places = npt.NDArray[np.int64]
SLACK = 256
"""Positions behind a start after which the entries before it are given up; a later rollback reads them again."""


def start_of(positions: Places, window: int) -> Places:
    """The first position that each attends to: 0 in the first window, then the latest multiple of half a window."""
    half = window // 2
    return np.where(positions < window, 0, half + (positions - window) // half * half)


@dataclass(eq=False)
class _Stretch:
    """Entries that attend from one start on, and their places in the sequence."""

    cache: HourglassCache
    entries: Places


@final
class SlidingCache(Cache):
    """One sequence, in stretches that overlap by half a window.

    Args:
        net: the model for its point cloud.
    """

    def __init__(self, net: Conditioned) -> None:
        self._net = net
        self._sizes = net.model.sizes
        self._tokens, self._positions = _none(), _none()
        self._stretches: dict[int, _Stretch] = {}

    @torch.inference_mode()
    def extend(self, window: Window) -> Rows:
        """One pass a stretch: one, but for windows that cross a start."""
        length, count, context = len(self._tokens), len(window.tokens), self._sizes.context
        if length + count > context:
            raise ContractError(
                f"{length} entries are held and {count} more would pass the context of {context}: draft fewer tokens, "
                f"or give a smaller budget"
            )
        if not 0 <= window.base <= length:
            raise ContractError(f"a window has base {window.base} and the cache holds {length} entries")
        tokens, positions = np.array(window.tokens.tolist()), np.array(window.positions.tolist())
        starts = start_of(positions, self._sizes.window)
        logits = window.tokens.new_empty(0)
        for start in np.unique(starts).tolist():
            chosen = np.flatnonzero((positions >= start) & (starts <= start))
            rows = self._read(start, window, chosen, tokens, positions)
            if not len(logits):
                logits = rows.new_empty(window.rows, rows.shape[1])
            asked = np.flatnonzero((starts[chosen] == start) & (chosen >= count - window.rows))
            logits[chosen[asked] - (count - window.rows)] = rows[asked]
        self._tokens, self._positions = np.append(self._tokens, tokens), np.append(self._positions, positions)
        for start in [start for start in self._stretches if start + self._sizes.window + SLACK <= positions.min()]:
            del self._stretches[start]
        return Rows(logits)

    @torch.inference_mode()
    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """Each stretch keeps those of its entries that are named."""
        count = len(self._tokens)
        if not 0 <= length <= length + len(entries) <= count or any(not 0 <= e < count - length for e in entries):
            raise ContractError(f"keep({length}, {tuple(entries)}) names entries that are not among the {count} held")
        kept = np.array([*range(length), *(length + entry for entry in entries)], np.int64)
        for stretch in self._stretches.values():
            places = np.full(count, -1)
            places[stretch.entries] = np.arange(len(stretch.entries))
            own = places[kept]
            stretch.entries = np.flatnonzero(own >= 0)
            own = own[own >= 0]
            same = int((own == np.arange(len(own))).cumprod().sum())
            stretch.cache.keep(same, (own[same:] - same).tolist())
        self._tokens, self._positions = self._tokens[kept], self._positions[kept]

    def _read(self, start: int, window: Window, chosen: Places, tokens: Places, positions: Places) -> Tensor:
        """Read rows of a window into a stretch; the sequence's own entries first where the stretch lacks some.

        Returns:
            Logits of these rows.
        """
        length = len(self._tokens)
        starts = start_of(self._positions, self._sizes.window)
        held = np.flatnonzero((self._positions >= start) & (starts <= start))
        stretch = self._stretches.get(start)
        again = _none()
        if stretch is None or not np.array_equal(stretch.entries, held):
            stretch, again = _Stretch(HourglassCache(self._net), held), held
            if not np.array_equal(self._positions[held], start + np.arange(len(held))):
                raise ContractError(f"a tree holds position {start}, from which the window slides: draft fewer tokens")
            self._stretches[start] = stretch
        sees = None if window.sees is None else _sight(window.sees.cpu().numpy(), window.base, length, held, chosen)
        if sees is not None and len(again):
            sees = np.concatenate([np.tri(len(again), sees.shape[1], dtype=np.bool_), sees])
        device = window.tokens.device
        ids = torch.from_numpy(np.append(self._tokens[again], tokens[chosen])).to(device)
        places = torch.from_numpy(np.append(self._positions[again], positions[chosen]))
        base, mask = (len(held) - len(again), None) if sees is None else (0, torch.from_numpy(sees))
        stretch.entries = np.append(held, length + chosen)
        asked = len(chosen) if window.rows else 0
        return stretch.cache.extend(Window(ids, places, base, mask, asked)).logits


def _sight(sees: npt.NDArray[np.bool_], base: int, length: int, held: Places, chosen: Places) -> npt.NDArray[np.bool_]:
    """Which of a stretch's entries, then of the chosen rows, each chosen row attends to."""
    every = np.concatenate([np.ones((len(sees), base), np.bool_), sees], 1)
    return every[chosen][:, np.append(held, length + chosen)]


def _none() -> Places:
    return np.zeros(0, np.int64)
