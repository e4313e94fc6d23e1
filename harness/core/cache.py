"""The two calls that a backbone adapter implements, and what passes through them."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stridebench.harness.core.capabilities import Capabilities, Tap
from stridebench.harness.errors import UsageError

C = TypeVar("C", bound="Cache")


@dataclass(frozen=True)
class Window:
    """N entries to append to a cache, and everything that a backbone must know of them.

    Args:
        tokens: ids of the new entries.
        positions: position of each, prompt included, from 0.
        base: every new entry attends to all entries before this one.
        sees: row n marks the entries that new entry n attends to, among the S = M + N entries from ``base`` on (M
            cached, N new). It attends to itself. If None, it attends to all earlier entries and itself.
        rows: R; only the last R entries need logits. 0 in a prefill.
        taps: layers whose hidden rows are asked for, each from 0 to L (see `Tap`); none: no hidden rows.
        features: the features that a feature drafter reads with each token (F is N); of a model that meets LAST_LOGITS,
            logits of an earlier pass, which the last R entries read (F is R).
        gate: marks the entries computed with the adapter on, or None if there are none.
        adapter: as the backbone read it (`Backbone.adapter`), if there is a gate.
    """

    tokens: Int[Tensor, " N"]
    positions: Int[Tensor, " N"]
    base: int
    sees: Bool[Tensor, "N S"] | None
    rows: int
    taps: tuple[int, ...] = ()
    features: Float[Tensor, "F ..."] | None = None
    gate: Bool[Tensor, " N"] | None = None
    adapter: Any = None


@dataclass(frozen=True)
class Rows:
    """The result of a pass.

    Args:
        logits: raw, of the window's last R entries, in any float type.
        hidden: of all N entries, the layers in the order of the window's taps; or None if it has none.
        passes: that the model made; a drafter with tokens of its own may make none or several.
    """

    logits: Float[Tensor, "R V"]
    hidden: Float[Tensor, "N G J E"] | None = None
    passes: int = 1


class Cache(ABC):
    """The two calls that a backbone adapter implements, over one sequence.

    Attributes:
        entries: the kept value of each entry, if values can be compared (hashes of a tabular model); else empty.
    """

    entries: Sequence[Any] = ()

    @abstractmethod
    def extend(self, window: Window) -> Rows:
        """Append the window's N entries and return the logits of its last R rows.

        Raises:
            ContractError: the entries would not fit into the context.
        """

    @abstractmethod
    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """Keep the first ``length`` entries, then those at ``length + e`` for each listed e, in that order."""

    @classmethod
    def extend_many(cls: type[C], caches: Sequence[C], windows: Sequence[Window]) -> list[Rows | Exception]:
        """Extend each cache by its window: in one batched pass if the backbone has one, else one after another.

        Returns:
            The rows of each, or the error that its window raised; the others are extended all the same.
        """
        return [_attempt(cache, window) for cache, window in zip(caches, windows, strict=True)]


def _attempt(cache: Cache, window: Window) -> Rows | Exception:
    try:
        return cache.extend(window)
    except Exception as error:  # an error of a backbone is the failure of this sequence
        return error


def extend_all(caches: Sequence[Cache], windows: Sequence[Window]) -> list[Rows | Exception]:
    """Call `Cache.extend_many` of each class among the caches."""
    results: dict[int, Rows | Exception] = {}
    for kind in {type(cache): None for cache in caches}:
        chosen = [index for index, cache in enumerate(caches) if type(cache) is kind]
        rows = kind.extend_many([caches[index] for index in chosen], [windows[index] for index in chosen])
        results |= dict(zip(chosen, rows, strict=True))
    return [results[index] for index in range(len(caches))]


# Hidden rows of a sequence, one per entry.
# Axes: M entries, N of them written at once, G branches of guidance, J tapped layers, E width.


FIRST = 256
"""Rows allocated at first. A full buffer doubles."""


def resolve(taps: Sequence[Tap], capabilities: Capabilities) -> tuple[int, ...]:
    """Return the taps as numbers from 0 to L.

    Raises:
        UsageError: the backbone has no such layer, or serves no hidden rows.
    """
    layers = capabilities.layers
    if taps and not layers:
        raise UsageError("the method reads hidden rows and this backbone serves none; take one that meets HIDDEN")
    indices = tuple(layers // 2 if tap == "middle" else tap if tap >= 0 else layers + 1 + tap for tap in taps)
    if not all(0 <= layer <= layers for layer in indices):
        raise UsageError(
            f"taps {tuple(taps)} of a backbone of {layers} layers: give each from 0 (the embedding) to {layers} (what "
            f"the head reads), or from -1 to {-layers - 1}, counted from there"
        )
    return indices


@final
class HiddenRows:
    """A buffer of hidden rows that is written in place, like the cache. ``taps`` is J."""

    def __init__(self, capabilities: Capabilities, taps: int, device: torch.device) -> None:
        self._buffer = torch.empty(0, capabilities.branches, taps, capabilities.width, device=device)

    @property
    def rows(self) -> Float[Tensor, "M G J E"]:
        """Return all rows of the buffer; those behind the written entries are undefined."""
        return self._buffer

    def write(self, start: int, rows: Float[Tensor, "N G J E"]) -> None:
        """Write the rows of the entries from ``start`` on; the buffer takes the shape and type of the first ones."""
        end = start + len(rows)
        if end > len(self._buffer):
            grown = rows.new_empty(max(FIRST, 2 * len(self._buffer), end), *rows.shape[1:])
            grown[:start] = self._buffer[:start]
            self._buffer = grown
        self._buffer[start:end] = rows

    def keep(self, length: int, entries: Sequence[int]) -> None:
        """Move the rows at ``length + e``, for each listed e, to ``length`` and on."""
        if len(self._buffer) and tuple(entries) != tuple(range(len(entries))):
            sources = torch.tensor(entries, device=self._buffer.device) + length
            self._buffer[length : length + len(entries)] = self._buffer[sources]

    def __deepcopy__(self, memo: dict[int, Any]) -> HiddenRows:
        twin = copy.copy(self)
        twin._buffer = self._buffer.clone()
        return twin
