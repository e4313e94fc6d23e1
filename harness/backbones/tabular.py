"""A random full-prefix model small enough to enumerate, and sharp enough to show any stale entry.

An entry is a hash of its token, its position and the entries it saw; its law is a random function of that hash.
A wrong mask, a wrong position or an entry left from a refused draft therefore gives another law.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from harness.backbone import Backbone
from harness.contracts import Cache, Need, Offers, Rows, Window
from harness.errors import ContractError, UsageError
from harness.registry import BACKBONES

MASK = (1 << 64) - 1
DTYPE = torch.float64
DEFAULTS: dict[str, Any] = {"vocabulary": 3, "seed": 0, "context": 64, "sharpness": 1.0, "eos": ()}


@BACKBONES.register("tabular")
@final
class Tabular(Backbone):
    """p(. | prefix) = softmax(sharpness x normal noise), keyed by the whole prefix. Always fp64.

    Args (of ``params``):
        vocabulary: V >= 2. seed: which model. context: entries. sharpness: of the laws. eos: ids that end.
    """

    toy_drafters = True
    default_dtype = "fp64"

    def __init__(self, name: str, params: Mapping[str, Any]) -> None:
        values = {**DEFAULTS, **params}
        unknown = sorted(set(values) - set(DEFAULTS))
        if unknown:
            raise UsageError(f"the tabular backbone has no parameter {unknown[0]!r}; it has {', '.join(DEFAULTS)}")
        self.name = name
        self.dtype = "fp64"
        self.device = "cpu"
        self.vocabulary = int(values["vocabulary"])
        self.sharpness = float(values["sharpness"])
        eos = frozenset(int(token) for token in values["eos"])
        self.offers = Offers(self.vocabulary, int(values["context"]), eos, self.meets(params))
        self._params = dict(values)
        self.fingerprint = hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()
        self._seed = int(values["seed"])
        self._rows: dict[int, Tensor] = {}

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> Tabular:
        """Nothing is read; any other type than fp64 is refused, since laws are compared to 1e-12."""
        if dtype != "fp64":
            raise UsageError(f"the tabular backbone computes in fp64 only; found {dtype}")
        return cls(name, params)

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Need]:
        """Every need that a model without a picture can meet."""
        return frozenset({Need.TREE_MASK, Need.DRAFTER})

    @classmethod
    def reads_text(cls, params: Mapping[str, Any]) -> bool:
        """No: its tokens stand for nothing."""
        return False

    def cache(self) -> TabularCache:
        """An empty list of hashes."""
        return TabularCache(self)

    def decode(self, tokens: Sequence[int]) -> str:
        """Ids apart by spaces."""
        return " ".join(map(str, tokens))

    def variant(self, params: Mapping[str, str]) -> Tabular:
        """Another model of the same vocabulary, its seed derived from the parameters: a drafter for any name."""
        if not params:
            return self
        seed = int.from_bytes(hashlib.sha256(repr(sorted(params.items())).encode()).digest()[:4], "big")
        return Tabular(f"{self.name}/{seed}", {**self._params, "seed": seed})

    def row(self, entry: int) -> Tensor:
        """Logits [V] after an entry."""
        if entry not in self._rows:
            key = np.array([entry, self._seed & MASK], dtype=np.uint64)
            noise = np.random.Generator(np.random.Philox(key=key)).standard_normal(self.vocabulary)
            self._rows[entry] = torch.from_numpy(noise * self.sharpness)
        return self._rows[entry]

    def __deepcopy__(self, memo: dict[int, Any]) -> Tabular:
        return self


@final
class TabularCache(Cache):
    """One hash an entry."""

    def __init__(self, model: Tabular, entries: list[int] | None = None) -> None:
        self.model = model
        self.entries = entries or []

    def extend(self, window: Window) -> Rows:
        """As the contract; the entries must start where the kept ones end."""
        held = len(self.entries)
        tokens, positions = window.tokens.tolist(), window.positions.tolist()
        if held + len(tokens) > self.model.offers.context:
            raise ContractError(f"{held} + {len(tokens)} entries do not fit into {self.model.offers.context}")
        sees = None if window.sees is None else window.sees.tolist()
        for n, (token, position) in enumerate(zip(tokens, positions, strict=True)):
            seen = self.entries if sees is None else self._seen(sees[n], window.base, held + n)
            self.entries.append(_mix(token, position, sum(seen) & MASK))
        last = self.entries[len(self.entries) - window.rows :]
        empty = torch.empty(0, self.model.vocabulary, dtype=DTYPE)
        return Rows(torch.stack([self.model.row(entry) for entry in last]) if last else empty)

    def _seen(self, row: list[bool], base: int, upto: int) -> list[int]:
        after = self.entries[base:upto]
        return self.entries[:base] + [entry for entry, seen in zip(after, row, strict=False) if seen]

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """As the contract."""
        self.entries = self.entries[:length] + [self.entries[length + e] for e in entries]

    def __deepcopy__(self, memo: dict[int, Any]) -> TabularCache:
        return TabularCache(self.model, list(self.entries))


def _mix(token: int, position: int, seen: int) -> int:
    """A 64-bit hash; the entries seen come as their sum, since attention does not know their order."""
    words = b"".join(v.to_bytes(8, "big") for v in (token, position, seen))
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big")
