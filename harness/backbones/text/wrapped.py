"""Drafters made of another backbone: with noise on its logits, or with the ids of another vocabulary.

Source of the latter: Timor et al. 2025, arXiv:2502.05202, Algorithm 4 (token-level intersection, TLI). Its distribution
is the drafter's over the tokens that both vocabularies have, which is what is drawn, so the output keeps the target's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.backbone import Backbone, EncodedPrompt
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.capabilities import Capabilities, Requirement
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import ContractError, UsageError
from stridebench.harness.record.outputs import Output


class DrafterOnly(Backbone):
    """A backbone around another, which exists only as a drafter: by what is written behind a name."""

    example: ClassVar[str]

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> Backbone:
        raise UsageError(f"{name} is a drafter only, written as `{cls.example}`")

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        return frozenset()


@final
class NoisyBackbone(DrafterOnly):
    """The inner backbone with noise of a fixed scale in logits, the same for the same seed, position and token."""

    example = "self:noise=0.3"

    def __init__(self, inner: Backbone, scale: float, seed: int) -> None:
        if not 0 <= scale < float("inf") or seed < 0:
            raise UsageError(f"noise={scale:g}, seed={seed}: the scale of noise and its seed are not negative")
        self.name = f"{inner.name}+noise={scale:g}"
        self.dtype, self.device, self.capabilities = inner.dtype, inner.device, inner.capabilities
        mark = f"{inner.fingerprint} noise={scale!r} seed={seed}"
        self.fingerprint = hashlib.sha256(mark.encode()).hexdigest()
        self._inner, self._scale, self._seed = inner, scale, seed
        self.weights_of = inner

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


LONGEST = 4
"""Most ids of a drafter that stand for one id of the target; of more the last ones."""


@dataclass(frozen=True, eq=False)
class Intersection:
    """What two vocabularies share, I tokens. The first of several ids with one text stands for it.

    Args:
        own: of the drafter, an id for each shared token.
        target: of the target, the same tokens.
        texts: of the target's ids.
        encode: returns the drafter's ids of a text.
        reads: the drafter's ids that an id of the target is read as, one at least; of unshared ids, those read so far.
    """

    own: Int[Tensor, " I"]
    target: Int[Tensor, " I"]
    texts: Sequence[str]
    encode: Callable[[str], Sequence[int]]
    reads: dict[int, Sequence[int]]

    def __deepcopy__(self, memo: dict[int, Any]) -> Intersection:
        return self

    @classmethod
    def of(cls, drafter: Backbone, target: Backbone) -> Intersection:
        """Return that of two models' vocabularies, by the text of each id.

        Raises:
            UsageError: they share no token, or a model has no tokenizer.
        """
        texts = target.pieces()
        first = {text: id for id, text in reversed(list(enumerate(drafter.pieces()))) if text}
        mine = {text: id for id, text in reversed(list(enumerate(texts))) if text in first}
        if not mine:
            raise UsageError(
                f"{drafter.name} and {target.name} have no token in common; take a drafter of a vocabulary like the "
                f"target's"
            )
        shared = sorted((id, first[text]) for text, id in mine.items())
        reads: dict[int, Sequence[int]] = {id: (first[text],) for id, text in enumerate(texts) if text in first}
        ids = torch.tensor(shared, device=target.device)
        return cls(ids[:, 1], ids[:, 0], texts, drafter.encode, reads)

    def read(self, token: int) -> Sequence[int]:
        """Return the drafter's ids for an id of the target; one without a text may be read as anything."""
        if token not in self.reads:
            text = self.texts[token]
            self.reads[token] = (text and self.encode(text)[-LONGEST:]) or (0,)
        return self.reads[token]


@final
class TranslatedBackbone(DrafterOnly):
    """A drafter that reads and proposes the target's ids. It drafts chains, in its own order of entries."""

    example = "NAME:vocab=tli"

    def __init__(self, inner: Backbone, target: Backbone) -> None:
        self.name = f"{inner.name}:vocab=tli"
        self.dtype, self.device, self.fingerprint = inner.dtype, inner.device, inner.fingerprint
        context = inner.capabilities.context // LONGEST
        self.capabilities = Capabilities(target.capabilities.vocabulary, context)
        self._inner, self._shared = inner, Intersection.of(inner, target)
        self.weights_of = inner

    def cache(self) -> TranslatedCache:
        return TranslatedCache(self._inner.cache(), self._shared)

    def open(self, prompt: Prompt) -> EncodedPrompt:
        """Return a cache that reads the target's ids of the prompt, as its sessions do."""
        return EncodedPrompt((0,), self.cache)


@final
class TranslatedCache(Cache):
    """A cache of the target's ids over one of the drafter's; an id of the target is one entry of it or several."""

    def __init__(self, inner: Cache, shared: Intersection) -> None:
        self._inner, self._shared = inner, shared
        self._ends: list[int] = []

    def extend(self, window: Window) -> Rows:
        if window.sees is not None or window.taps:
            raise UsageError("a drafter of another vocabulary drafts chains; take a method that drafts no tree with it")
        begin = self._ends[-1] if self._ends else 0
        read: list[int] = []
        for token in window.tokens.tolist():
            read += self._shared.read(token)
            self._ends.append(begin + len(read))
        ends = torch.tensor(self._ends[len(self._ends) - window.rows :]) - begin - 1
        first = int(ends[0]) if window.rows else len(read)
        device = window.tokens.device
        places = torch.arange(begin, begin + len(read), device=device)
        tokens = torch.tensor(read, device=device)
        rows = self._inner.extend(Window(tokens, places, begin, None, len(read) - first))
        logits = rows.logits.new_full((window.rows, len(self._shared.texts)), float("-inf"))
        if window.rows:
            logits[:, self._shared.target] = rows.logits[(ends - first).to(device)][:, self._shared.own]
        return Rows(logits)

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        if list(entries) != list(range(len(entries))):
            raise ContractError("a drafter of another vocabulary keeps the beginning of a chain; it drafts no tree")
        del self._ends[length + len(entries) :]
        self._inner.keep(self._ends[-1] if self._ends else 0)
