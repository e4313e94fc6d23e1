"""A random masked model small enough to enumerate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from stridebench.harness.backbones.toy import DTYPE, MASK, EnumerableBackbone, HashCache, mix, noise
from stridebench.harness.core.cache import Rows, Window
from stridebench.harness.core.capabilities import Capabilities, Requirement
from stridebench.harness.errors import ContractError, UsageError
from stridebench.harness.registry import BACKBONES


@BACKBONES.register("masked_tabular")
@final
class MaskedTabular(EnumerableBackbone):
    """p(x_i | canvas) = softmax(sharpness x normal noise) over all ids but the mask's.

    One of uniform noise has no mask, and adds a quarter of the logits that it is given, moved on by one id.

    Args (of ``params``):
        vocabulary: V >= 3, the last id being the mask; >= 2 if there is none.
        block: as `Capabilities.block`.
        noise: "mask" or "uniform".
        seed: of the model.
        context: entries.
        sharpness: of the distributions.
    """

    kind = "masked_tabular"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocabulary": 3,
        "seed": 0,
        "context": 64,
        "sharpness": 1.0,
        "block": 0,
        "noise": "mask",
    }

    def __init__(self, name: str, params: Mapping[str, Any]) -> None:
        super().__init__(name, params)
        self._uniform = Requirement.LAST_LOGITS in self.meets(self._values)
        if self.vocabulary < 3 - self._uniform:
            raise UsageError(
                f"the masked_tabular backbone was given a vocabulary of {self.vocabulary}; it has "
                f"{', '.join(self.defaults)}, of 3 ids or more"
            )
        self.capabilities = Capabilities(
            self.vocabulary,
            int(self._values["context"]),
            meets=self.meets(self._values),
            mask=None if self._uniform else self.vocabulary - 1,
            block=int(self._values["block"]),
        )

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        uniform = params.get("noise") == "uniform"
        return frozenset({Requirement.BIDIRECTIONAL, *([Requirement.LAST_LOGITS] if uniform else [])})

    def cache(self) -> MaskedTabularCache:
        return MaskedTabularCache(self)

    def _logits(self, entry: int) -> Tensor:
        logits = noise(entry, self._seed, self.vocabulary) * self.sharpness
        if not self._uniform:
            logits[-1] = float("-inf")
        return logits


@final
class MaskedTabularCache(HashCache):
    """The entries of a `MaskedTabular`."""

    def extend(self, window: Window) -> Rows:
        old, count = len(self.entries), len(window.tokens)
        self._check_room(count)
        if window.features is not None and Requirement.LAST_LOGITS not in self.model.capabilities.meets:
            raise ContractError("this model reads no logits of an earlier pass; take one that meets LAST_LOGITS")
        if window.sees is None and count > 1:
            raise ContractError("a masked model gives no distribution of a next token; read the canvas with sees='all'")
        pairs = list(zip(window.tokens.tolist(), window.positions.tolist(), strict=True))
        leaves = [*self.entries, *(mix(token, position, 0) for token, position in pairs)]
        sees = [[True] * (old + count)] if window.sees is None else window.sees.tolist()
        for n, (token, position) in enumerate(pairs):
            marks = [True] * window.base + sees[n]
            attended = sum(leaf for at, leaf in enumerate(leaves) if marks[at] and at != old + n)
            self.entries.append(mix(token, position, attended & MASK))
        logits = [self.model.row(entry) for entry in self.entries[len(self.entries) - window.rows :]]
        rows = torch.stack(logits) if logits else torch.empty(0, self.model.vocabulary, dtype=DTYPE)
        return Rows(rows if window.features is None else rows + window.features.roll(1, -1) / 4)
