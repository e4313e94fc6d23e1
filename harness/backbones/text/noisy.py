"""A backbone made worse on purpose, to draft with: Gaussian noise on the logits of another."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.backbone import Backbone, EncodedPrompt
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.harness.record.outputs import Output


@final
class NoisyBackbone(Backbone):
    """The inner backbone with noise of a fixed scale in logits, the same for the same seed, position and token."""

    def __init__(self, inner: Backbone, scale: float, seed: int) -> None:
        if not 0 <= scale < float("inf") or seed < 0:
            raise UsageError(f"noise={scale:g}, seed={seed}: the scale of noise and its seed are not negative")
        self.name = f"{inner.name}+noise={scale:g}"
        self.dtype, self.device, self.capabilities = inner.dtype, inner.device, inner.capabilities
        mark = f"{inner.fingerprint} noise={scale!r} seed={seed}"
        self.fingerprint = hashlib.sha256(mark.encode()).hexdigest()
        self._inner, self._scale, self._seed = inner, scale, seed
        self.weights_of = inner

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> NoisyBackbone:
        raise UsageError(f"{name}: noise is written on a drafter, as in `self:noise=0.3`")

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        return frozenset()

    def cache(self) -> NoisyCache:
        return NoisyCache(self._inner.cache(), self._scale, self._seed)

    def open(self, prompt: Prompt) -> EncodedPrompt:
        inner = self._inner.open(prompt)
        return replace(inner, cache=lambda: NoisyCache(inner.cache(), self._scale, self._seed))

    def encode(self, text: str) -> list[int]:
        return self._inner.encode(text)

    def decode(self, tokens: Sequence[int]) -> Output:
        return self._inner.decode(tokens)


@final
class NoisyCache(Cache):
    """A cache whose logits carry noise that depends on seed, position and token alone."""

    def __init__(self, inner: Cache, scale: float, seed: int) -> None:
        self._inner, self._scale, self._seed = inner, scale, seed

    def extend(self, window: Window) -> Rows:
        rows = self._inner.extend(window)
        logits = rows.logits
        if not window.rows:
            return rows
        last = slice(len(window.tokens) - window.rows, None)
        noise = self._noise(window.positions[last], window.tokens[last], logits.shape[1])
        return replace(rows, logits=logits + (self._scale * noise).to(logits))

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        self._inner.keep(length, entries)

    def _noise(self, positions: Int[Tensor, " R"], tokens: Int[Tensor, " R"], vocabulary: int) -> Float[Tensor, "R V"]:
        """Return standard normal rows; reads the device, since a row's noise is keyed by its position and token."""
        rows = [
            np.random.Generator(np.random.Philox(key=[self._seed, (place << 32) | token])).standard_normal(
                vocabulary, dtype=np.float32
            )
            for place, token in zip(positions.tolist(), tokens.tolist(), strict=True)
        ]
        return torch.from_numpy(np.stack(rows))
