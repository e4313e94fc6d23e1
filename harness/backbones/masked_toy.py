"""A random model small enough to enumerate, whose rows give the distribution of their own position."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from stridebench.harness.backbones.toy import DTYPE, MASK, EnumerableBackbone, HashCache, grid_of, mix, noise
from stridebench.harness.core.cache import Rows, Window
from stridebench.harness.core.capabilities import Capabilities, Requirement
from stridebench.harness.errors import ContractError, UsageError
from stridebench.harness.registry import BACKBONES


@BACKBONES.register("masked_tabular")
@final
class MaskedTabular(EnumerableBackbone):
    """p(x_i | canvas) = softmax(sharpness x normal noise) over all ids but the mask's.

    With a grid it is an order-free model, and the mask is the query of every cell. One of uniform noise has no mask; it
    adds a quarter of the logits that it is given, moved on by one id.

    Args (of ``params``):
        vocabulary: V >= 3, the last id being the mask; >= 2 if there is none.
        grid: rows and columns of a picture.
        block: as `Capabilities.block`.
        eos: ids that end a text.
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
        "grid": (),
        "block": 0,
        "eos": (),
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
        mask, grid = self.vocabulary - 1, grid_of(self._values["grid"], self.vocabulary)
        self.capabilities = Capabilities(
            self.vocabulary,
            int(self._values["context"]),
            frozenset(self._values["eos"]),
            meets=self.meets(self._values),
            grid=grid,
            mask=None if grid is not None or self._uniform else mask,
            block=int(self._values["block"]),
            queries=() if grid is None else [mask] * grid.length,
        )

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        if params.get("grid"):
            return frozenset({Requirement.GRID, Requirement.ANY_ORDER, Requirement.QUERIES})
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
    """The entries of a `MaskedTabular`.

    An entry hashes the entries that it sees; of those that see it too, only token and position.
    """

    def extend(self, window: Window) -> Rows:
        old, count = len(self.entries), len(window.tokens)
        self._check_room(count)
        if window.features is not None and Requirement.LAST_LOGITS not in self.model.capabilities.meets:
            raise ContractError("this model reads no logits of an earlier pass; take one that meets LAST_LOGITS")
        if window.sees is None and count > 1 and not self.model.capabilities.queries:
            raise ContractError("a masked model gives no distribution of a next token; read the canvas with sees='all'")
        pairs = list(zip(window.tokens.tolist(), window.positions.tolist(), strict=True))
        sees = torch.ones(count, old + count).tril(old).bool().tolist()
        if window.sees is not None:
            sees = [[True] * window.base + row for row in window.sees.tolist()]

        @cache
        def entry(n: int) -> int:
            attended = sum(self.entries[at] for at in range(old) if sees[n][at])
            for other in range(count):
                if other != n and sees[n][old + other]:
                    attended += mix(*pairs[other], 0) if sees[other][old + n] else entry(other)
            return mix(*pairs[n], attended & MASK)

        self.entries += [entry(n) for n in range(count)]
        logits = [self.model.row(entry) for entry in self.entries[len(self.entries) - window.rows :]]
        rows = torch.stack(logits) if logits else torch.empty(0, self.model.vocabulary, dtype=DTYPE)
        return Rows(rows if window.features is None else rows + window.features.roll(1, -1) / 4)
