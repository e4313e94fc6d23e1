"""A random masked model small enough to enumerate: the law of each position is a random function of all that it sees.

An entry is a hash of its token, its position and the entries it saw; of those of its own pass it saw token and position
alone, as a first layer would. A wrong mask, a wrong position or a stale entry therefore gives another law.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor

from harness.backbones.toy.tabular import DTYPE, MASK, _mix, _noise
from harness.core.backbone import Backbone
from harness.core.cache import Cache, Rows, Window
from harness.core.capabilities import Capabilities, Requirement
from harness.errors import ContractError, UsageError
from harness.registry import BACKBONES

DEFAULTS: dict[str, Any] = {"vocabulary": 3, "seed": 0, "context": 64, "sharpness": 1.0}


@BACKBONES.register("masked_tabular")
@final
class MaskedTabular(Backbone):
    """p(x_i | canvas) = softmax(sharpness x normal noise) over all ids but the mask's. Always fp64.

    Args (of ``params``):
        vocabulary: V >= 3, the last id being the mask. seed: which model. context: entries. sharpness: of the laws.
    """

    toy_drafters = True
    default_dtype = "fp64"

    def __init__(self, name: str, params: Mapping[str, Any]) -> None:
        values = {**DEFAULTS, **params}
        unknown = sorted(set(values) - set(DEFAULTS))
        if unknown or int(values["vocabulary"]) < 3:
            found = f"a parameter {unknown[0]!r}" if unknown else f"a vocabulary of {values['vocabulary']}"
            raise UsageError(
                f"the masked_tabular backbone was given {found}; it has {', '.join(DEFAULTS)}, of 3 ids or more"
            )
        self.name, self.dtype, self.device = name, "fp64", "cpu"
        self.vocabulary = int(values["vocabulary"])
        self.capabilities = Capabilities(
            self.vocabulary, int(values["context"]), meets=self.meets({}), mask=self.vocabulary - 1
        )
        self.fingerprint = hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()
        self._seed, self._sharpness = int(values["seed"]), float(values["sharpness"])
        self._rows: dict[int, Tensor] = {}

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> MaskedTabular:
        """Nothing is read; any other type than fp64 is refused, since laws are compared to 1e-12."""
        if dtype != "fp64":
            raise UsageError(f"the masked_tabular backbone computes in fp64 only; found {dtype}")
        return cls(name, params)

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        """A masked model's."""
        return frozenset({Requirement.BIDIRECTIONAL})

    @classmethod
    def reads_text(cls, params: Mapping[str, Any]) -> bool:
        """No: its tokens stand for nothing."""
        return False

    def cache(self) -> MaskedTabularCache:
        """An empty list of hashes."""
        return MaskedTabularCache(self)

    def decode(self, tokens: Sequence[int]) -> str:
        """Ids apart by spaces."""
        return " ".join(map(str, tokens))

    def row(self, entry: int) -> Tensor:
        """Logits [V] of an entry's own position; the mask's is -inf."""
        if entry not in self._rows:
            noise = _noise(entry, self._seed, self.vocabulary) * self._sharpness
            noise[-1] = float("-inf")
            self._rows[entry] = noise
        return self._rows[entry]

    def __deepcopy__(self, memo: dict[int, Any]) -> MaskedTabular:
        return self


@final
class MaskedTabularCache(Cache):
    """One hash an entry."""

    def __init__(self, model: MaskedTabular, entries: list[int] | None = None) -> None:
        self.model = model
        self.entries: list[int] = entries or []

    def extend(self, window: Window) -> Rows:
        """As the contract.

        Raises:
            ContractError: past the context, or a window in which entries see those before alone.
        """
        held, count = len(self.entries), len(window.tokens)
        if held + count > self.model.capabilities.context:
            raise ContractError(f"{held} + {count} entries do not fit into {self.model.capabilities.context}")
        if window.sees is None and count > 1:
            raise ContractError("a masked model has no law of a next token; read the canvas with sees='all'")
        pairs = list(zip(window.tokens.tolist(), window.positions.tolist(), strict=True))
        leaves = [*self.entries, *(_mix(token, place, 0) for token, place in pairs)]
        sees = [[True] * (held + count)] if window.sees is None else window.sees.tolist()
        for n, (token, place) in enumerate(pairs):
            marks = [True] * window.base + sees[n]
            seen = sum(leaf for at, leaf in enumerate(leaves) if marks[at] and at != held + n)
            self.entries.append(_mix(token, place, seen & MASK))
        logits = [self.model.row(entry) for entry in self.entries[len(self.entries) - window.rows :]]
        return Rows(torch.stack(logits) if logits else torch.empty(0, self.model.vocabulary, dtype=DTYPE))

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """As the contract."""
        self.entries = self.entries[:length] + [self.entries[length + e] for e in entries]

    def __deepcopy__(self, memo: dict[int, Any]) -> MaskedTabularCache:
        return MaskedTabularCache(self.model, list(self.entries))
