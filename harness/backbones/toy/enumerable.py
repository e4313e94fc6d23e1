"""What the random models share: distributions and states that depend on a hash of all that an entry attended to."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.cache import Cache
from stridebench.harness.errors import ContractError, UsageError, check_parameters

MASK = (1 << 64) - 1
DTYPE = torch.float64


class EnumerableBackbone(Backbone):
    """A random model small enough to enumerate. Always fp64, on the CPU.

    Attributes:
        kind: its registered name.
        defaults: what a preset may set.
    """

    toy_drafters = True
    default_dtype = "fp64"
    kind: ClassVar[str]
    defaults: ClassVar[Mapping[str, Any]]

    def __init__(self, name: str, params: Mapping[str, Any]) -> None:
        check_parameters(f"the {self.kind} backbone", params, list(self.defaults))
        values = {**self.defaults, **params}
        self.name, self.dtype, self.device = name, "fp64", "cpu"
        self.fingerprint = hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()
        self.vocabulary, self.sharpness = int(values["vocabulary"]), float(values["sharpness"])
        self._values, self._seed = values, int(values["seed"])
        self._rows: dict[int, Tensor] = {}

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> Self:
        """Nothing is read. Types other than fp64 are rejected, because distributions are compared to 1e-12."""
        if dtype != "fp64":
            raise UsageError(f"the {cls.kind} backbone computes in fp64 only; found {dtype}")
        return cls(name, params)

    @classmethod
    def reads_text(cls, params: Mapping[str, Any]) -> bool:
        """No: its tokens have no text."""
        return False

    def decode(self, tokens: Sequence[int]) -> str:
        """Ids with spaces between them."""
        return " ".join(map(str, tokens))

    def row(self, entry: int) -> Tensor:
        """Logits [V] of an entry."""
        if entry not in self._rows:
            self._rows[entry] = self._logits(entry)
        return self._rows[entry]

    @abstractmethod
    def _logits(self, entry: int) -> Tensor:
        """Logits [V], computed."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class HashCache(Cache):
    """One hash an entry."""

    def __init__(self, model: EnumerableBackbone, entries: Sequence[int] = ()) -> None:
        self.entries: list[int] = list(entries)
        self._context = model.capabilities.context

    def _check_room(self, count: int) -> None:
        """Refuse ``count`` more entries past the context.

        Raises:
            ContractError: they do not fit.
        """
        if len(self.entries) + count > self._context:
            raise ContractError(f"{len(self.entries)} + {count} entries do not fit into {self._context}")

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """Keep these hashes."""
        self.entries = self.entries[:length] + [self.entries[length + entry] for entry in entries]


def noise(entry: int, seed: int, count: int) -> Tensor:
    """``count`` standard normal numbers, the same for the same entry and seed."""
    key = np.array([entry, seed & MASK], dtype=np.uint64)
    return torch.from_numpy(np.random.Generator(np.random.Philox(key=key)).standard_normal(count))


def mix(token: int, position: int, attended: int) -> int:
    """A 64-bit hash. ``attended`` is a sum of entries, because attention does not know their order."""
    words = b"".join(value.to_bytes(8, "big") for value in (token, position, attended))
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big")
