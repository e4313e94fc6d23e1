"""Long prompts that are read once for all checks of their outputs, outside of the timing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.core.backbone import Backbone, EncodedPrompt
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.task import Prompt

LONG = 1024
"""Tokens of a prompt from which it is kept; a shorter one is read in less time than a check takes besides."""

Key = tuple[Backbone, tuple[int, ...]]
"""A model and the layers whose hidden rows are kept."""


def is_long(tokens: int) -> bool:
    """Return whether a prompt of so many tokens is kept, and the text decoded after it freed at once."""
    return tokens >= LONG


@dataclass
class _PromptEntries:
    """A cache that begins with the entries of a prompt, and their hidden rows where layers are tapped."""

    cache: Cache
    hidden: Float[Tensor, "N G J E"] | None
    lent: bool = True


class ReadPrompts:
    """Makes the caches of models that read one prompt again and again, each time with other tokens behind it.

    The entries of the prompt come from a separate pass over an empty cache, and a cache that drops one of them is
    not lent again. So entries that are read after them are those of a new cache, up to rounding.
    """

    def __init__(self) -> None:
        self._prompt: Prompt | None = None
        self._tokens: tuple[int, ...] = ()
        self._entries: dict[Key, _PromptEntries] = {}

    def begin(self, prompt: Prompt, tokens: Sequence[int]) -> None:
        """Lend all caches anew; those that were lent before are used no more. Entries of another prompt are dropped.

        Args:
            tokens: of the prompt. All but the last are kept, as a session reads them.
        """
        if prompt is not self._prompt:
            self._entries.clear()
            self._prompt, self._tokens = prompt, tuple(tokens[:-1])
        for entries in self._entries.values():
            entries.lent = False

    @property
    def length(self) -> int:
        """Entries of the prompt that are kept."""
        return len(self._tokens)

    def keep_only(self, model: Backbone) -> None:
        """Drop the entries of other models, and those with hidden rows."""
        self._entries = {key: entries for key, entries in self._entries.items() if key == (model, ())}

    def cache(self, model: Backbone, encoded: EncodedPrompt) -> Cache:
        """A cache for ``model``, as ``encoded.cache`` makes it."""
        if self._prompt is None or not is_long(self.length) or self._prompt.condition is not None:
            return encoded.cache()
        return _LentCache(self, model, encoded)

    def lend(self, model: Backbone, encoded: EncodedPrompt, window: Window) -> _PromptEntries | None:
        """Return the entries with which a first window begins, read now if need be, or None if there are others."""
        count, key = len(self._tokens), (model, window.taps)
        plain = window.sees is None and window.features is None and window.gate is None
        if not plain or not count <= len(window.tokens) - window.rows:
            return None
        if window.tokens[:count].tolist() != list(self._tokens):
            return None
        entries = self._entries.get(key)
        if entries is None:
            cache = encoded.cache()
            first = replace(window, tokens=window.tokens[:count], positions=window.positions[:count], base=0, rows=0)
            entries = self._entries[key] = _PromptEntries(cache, cache.extend(first).hidden)
        elif entries.lent:
            return None
        else:
            entries.cache.keep(count)
            entries.lent = True
        return entries

    def dropped(self, cache: Cache, length: int) -> None:
        """A lent cache keeps no more than ``length`` entries."""
        if length < len(self._tokens):
            self._entries = {key: entries for key, entries in self._entries.items() if entries.cache is not cache}


@final
class _LentCache(Cache):
    """A cache that takes over the entries of a prompt if its first window begins with them."""

    def __init__(self, prompts: ReadPrompts, model: Backbone, encoded: EncodedPrompt) -> None:
        self._prompts, self._model, self._encoded = prompts, model, encoded
        self._inner: Cache | None = None

    @property
    def entries(self) -> Sequence[Any]:  # type: ignore[override]  # read-only here: they are the inner cache's
        """As the inner cache's."""
        return () if self._inner is None else self._inner.entries

    def extend(self, window: Window) -> Rows:
        """As the inner cache."""
        if self._inner is not None:
            return self._inner.extend(window)
        entries = self._prompts.lend(self._model, self._encoded, window)
        if entries is None:
            self._inner = self._encoded.cache()
            return self._inner.extend(window)
        self._inner = entries.cache
        count = self._prompts.length
        rest = replace(window, tokens=window.tokens[count:], positions=window.positions[count:], base=count)
        if not len(rest.tokens):
            return Rows(torch.empty(0, self._model.capabilities.vocabulary), entries.hidden)
        rows = self._inner.extend(rest)
        if rows.hidden is None or entries.hidden is None:
            return rows
        return Rows(rows.logits, torch.cat([entries.hidden, rows.hidden]))

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """As the inner cache."""
        if self._inner is not None:
            self._prompts.dropped(self._inner, length)
            self._inner.keep(length, entries)
