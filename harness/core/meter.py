"""What a decode computes, counted at the caches of its models: whoever calls them, it is counted."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch

from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.clock import Clock, Stamp
from stridebench.harness.errors import ContractError


@dataclass
class Meter:
    """Passes of one decode so far.

    Attributes:
        passes: of the target's weights, whether the target or a drafter reads them.
        rows: entries fed by them.
        drafts: passes of all other drafters.
        read: entries fed to each model, by its name.
        readings: begin and end of each reading of the prompt and of each loading of a drafter, which are not passes.
        threads: that torch computes with, for the baseline as for every method.
    """

    passes: int = 0
    rows: int = 0
    drafts: int = 0
    read: Counter[str] = field(default_factory=Counter)
    readings: list[tuple[Stamp, Stamp]] = field(default_factory=list)
    threads: int = field(default_factory=torch.get_num_threads)

    def __deepcopy__(self, memo: dict[int, Any]) -> Meter:
        """Itself: a decode has one, so that passes of copied sessions and models are counted too."""
        return self


@final
class MeteredCache(Cache):
    """A cache whose passes are counted.

    A window is no pass where it asks for no logits and the entries that all caches of its model have read so far are
    fewer than the prompt's tokens: then it reads the prompt. Everything else is a pass.

    Args:
        inner: the cache itself.
        meter: of the decode.
        clock: of the decode.
        model: its name; the target's is "".
        of_target: whether it computes with the target's weights.
        prompt: tokens of the prompt.
    """

    def __init__(self, inner: Cache, meter: Meter, clock: Clock, *, model: str, of_target: bool, prompt: int) -> None:
        self._inner, self._meter, self._clock = inner, meter, clock
        self._model, self._of_target, self._prompt = model, of_target, prompt

    def __deepcopy__(self, memo: dict[int, Any]) -> MeteredCache:
        twin = copy.copy(self)
        memo[id(self)] = twin
        twin._inner = copy.deepcopy(self._inner, memo)
        return twin

    @property
    def entries(self) -> Sequence[Any]:  # type: ignore[override]  # read-only here: they are the inner cache's
        """As the inner cache's."""
        return self._inner.entries

    def extend(self, window: Window) -> Rows:
        """As the inner cache, and counted.

        Raises:
            ContractError: torch computes with another number of threads than the decode began with.
        """
        if torch.get_num_threads() != self._meter.threads:
            raise ContractError(
                f"a pass has {torch.get_num_threads()} threads and the run {self._meter.threads}; leave "
                f"torch.set_num_threads to the run, which gives all methods the same"
            )
        self._meter.read[self._model] += len(window.tokens)
        if not window.rows and self._meter.read[self._model] < self._prompt:
            begin = self._clock.stamp()
            rows = self._inner.extend(window)
            self._meter.readings.append((begin, self._clock.stamp()))
            return rows
        if self._of_target:
            self._meter.passes += 1
            self._meter.rows += len(window.tokens)
        else:
            self._meter.drafts += 1
        return self._inner.extend(window)

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """As the inner cache."""
        self._inner.keep(length, entries)
