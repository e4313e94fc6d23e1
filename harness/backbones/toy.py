"""Random models small enough to enumerate, and sharp enough to show any stale entry.

An entry is a hash of its token, its position, its gate, its features if any, and the entries that it attends to. Its
distribution and its hidden rows are random functions of that hash. A wrong mask, a wrong position or an entry of a
rejected draft gives another distribution. In a masked model an entry reads, of the entries of its pass, token and
position only, as a first layer would.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor

from stridebench.harness.backbones.slots.guided import GridGrammar
from stridebench.harness.backbones.text.wrapped import TranslatedBackbone
from stridebench.harness.core.backbone import Backbone, EncodedPrompt
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.capabilities import Capabilities, Grid, Requirement
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import ContractError, UsageError, check_parameters
from stridebench.harness.registry import BACKBONES

MASK = (1 << 64) - 1
DTYPE = torch.float64


class EnumerableBackbone(Backbone):
    """A random model small enough to enumerate. Always fp64, on the CPU."""

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
        """Load nothing. Types other than fp64 are rejected, because distributions are compared to 1e-12."""
        if dtype != "fp64":
            raise UsageError(f"the {cls.kind} backbone computes in fp64 only; found {dtype}")
        return cls(name, params)

    @classmethod
    def reads_text(cls, params: Mapping[str, Any]) -> bool:
        return False

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))

    def row(self, entry: int) -> Tensor:
        if entry not in self._rows:
            self._rows[entry] = self._logits(entry)
        return self._rows[entry]

    @abstractmethod
    def _logits(self, entry: int) -> Tensor: ...

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class HashCache(Cache):
    """One hash an entry; a picture begins behind the prompt."""

    def __init__(self, model: Any, entries: Sequence[int] = (), prompt: int = 1) -> None:
        self.model, self.prompt = model, prompt
        self.entries: list[int] = list(entries)

    def _check_room(self, count: int) -> None:
        if len(self.entries) + count > self.model.capabilities.context:
            raise ContractError(
                f"{len(self.entries)} + {count} entries do not fit into {self.model.capabilities.context}"
            )

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        self.entries = self.entries[:length] + [self.entries[length + entry] for entry in entries]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(self.model, self.entries, self.prompt)


def noise(entry: int, seed: int, count: int) -> Tensor:
    """Return ``count`` standard normal numbers, the same for the same entry and seed."""
    key = np.array([entry, seed & MASK], dtype=np.uint64)
    return torch.from_numpy(np.random.Generator(np.random.Philox(key=key)).standard_normal(count))


def mix(token: int, position: int, attended: int) -> int:
    """Return a 64-bit hash. ``attended`` is a sum of entries, because attention does not know their order."""
    words = b"".join(value.to_bytes(8, "big") for value in (token, position, attended))
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big")


LAYERS, WIDTH = 8, 4
"""Sizes of its hidden rows, which are random functions of an entry's hash and the layer."""
CONDITION = 3
"""Rows of its condition."""
GATED = 0x5DEECE66D
"""The adapter adds this to a gated entry before it is hashed."""


@BACKBONES.register("tabular")
@final
class Tabular(EnumerableBackbone):
    """p(. | prefix) = softmax(sharpness x normal noise), keyed by the whole prefix.

    Args (of ``params``):
        vocabulary: V >= 2.
        seed: of the model.
        context: entries.
        sharpness: of the distributions.
        alike: correlation of a drafter's logits with the target's; 0 if drafters are independent of it.
        guidance: s of z_u + s (z_c - z_u); the branch without the condition is another random function of the prefix.
        eos: ids that end a text.
        grid: rows and columns of a picture; a third entry is the id that ends each row, which no cell may take.
    """

    kind = "tabular"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocabulary": 3,
        "seed": 0,
        "context": 64,
        "sharpness": 1.0,
        "alike": 0.0,
        "guidance": 1.0,
        "eos": (),
        "grid": (),
    }

    def __init__(self, name: str, params: Mapping[str, Any]) -> None:
        super().__init__(name, params)
        values = self._values
        grid = _grid(values["grid"], self.vocabulary)
        vectors = None if grid is None or grid.ids is None else noise(0, self._seed, 2 * len(grid.ids)).view(-1, 2)
        self.capabilities = Capabilities(
            self.vocabulary,
            int(values["context"]),
            frozenset(int(token) for token in values["eos"]),
            self.meets(params),
            grid,
            vectors,
            LAYERS,
            WIDTH,
            condition=WIDTH,
            guidance=float(values["guidance"]),
        )
        self._hidden: dict[tuple[int, int], Tensor] = {}
        self._original = self
        self.grammar = None
        if grid is not None:
            allowed = torch.arange(self.vocabulary) != (-1 if grid.eol is None else grid.eol)
            self.grammar = GridGrammar(grid, allowed, DTYPE)

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        pictures = {Requirement.GRID, Requirement.CODEBOOK} if params.get("grid") else set()
        texts = {
            Requirement.TREE_MASK,
            Requirement.DRAFTER,
            Requirement.ANY_ORDER,
            Requirement.HIDDEN,
            Requirement.CONDITION,
            Requirement.GATE,
        }
        return frozenset(texts | pictures)

    def adapter(self, folder: Path | None) -> int:
        return GATED

    def encode(self, text: str) -> list[int]:
        """Return the ids of its `pieces`, each of which is one letter; others are not read."""
        return [id for letter in text for id, piece in enumerate(self.pieces()) if piece == letter]

    def pieces(self) -> Sequence[str]:
        """Return a letter for each id; that of the last one is in no vocabulary of another size."""
        return [*map(chr, range(0x4E00, 0x4E00 + self.vocabulary - 1)), chr(0x8000 + self.vocabulary)]

    def cache(self) -> TabularCache:
        return TabularCache(self)

    def open(self, prompt: Prompt) -> EncodedPrompt:
        tokens = super().open(prompt).tokens
        rows = noise(CONDITION, self._seed, CONDITION * WIDTH).view(CONDITION, WIDTH)
        return EncodedPrompt(tokens, lambda: TabularCache(self, prompt=len(tokens)), rows)

    def variant(self, params: Mapping[str, str]) -> Backbone:
        """Return a model of the same vocabulary and codes whose seed follows from the parameters: any drafter.

        ``shrink``: its pictures are 1/shrink as high and wide. A name that ends in ``vocab=tli`` is a drafter with one
        more id, which shares all of the target's tokens but the last.
        """
        if not params:
            return self
        if params.get("drafter", "").endswith("vocab=tli"):
            larger = {
                **self._values,
                "vocabulary": self.vocabulary + 1,
                "grid": (),
                "context": 4 * self._values["context"],
            }
            return TranslatedBackbone(Tabular(f"{self.name}/tli", {**larger, "seed": self._seed + 1, "alike": 0}), self)
        seed = int.from_bytes(hashlib.sha256(repr(sorted(params.items())).encode()).digest()[:4], "big")
        rows, columns, *eol = self._values["grid"] or (0, 0)
        shrink = int(params.get("shrink", 1))
        grid = (max(1, rows // shrink), max(1, columns // shrink), *eol) if rows else ()
        other = Tabular(f"{self.name}/{seed}", {**self._values, "seed": seed, "grid": grid})
        other.capabilities = replace(other.capabilities, codebook=self.capabilities.codebook)
        other._original = self._original
        return other

    def _logits(self, entry: int) -> Tensor:
        logits, alike = noise(entry, self._seed, self.vocabulary), float(self._values["alike"])
        if alike and self._original is not self:
            logits = alike * noise(entry, self._original._seed, self.vocabulary) + (1 - alike**2) ** 0.5 * logits
        if (scale := self.capabilities.guidance) != 1:
            unguided = noise(entry, self._seed + 1, self.vocabulary)
            logits = unguided + scale * (logits - unguided)
        return logits * self.sharpness

    def hidden(self, entry: int, layer: int) -> Tensor:
        if (entry, layer) not in self._hidden:
            self._hidden[entry, layer] = noise(mix(layer, 0, entry), self._seed, WIDTH)
        return self._hidden[entry, layer]


@final
class TabularCache(HashCache):
    """The entries of a `Tabular`."""

    def extend(self, window: Window) -> Rows:
        old = len(self.entries)
        tokens, positions = window.tokens.tolist(), window.positions.tolist()
        self._check_room(len(tokens))
        sees = None if window.sees is None else window.sees.tolist()
        features = (
            [0] * len(tokens)
            if window.features is None
            else [
                int.from_bytes(hashlib.blake2b(row.double().numpy().tobytes(), digest_size=8).digest(), "big")
                for row in window.features
            ]
        )
        gated = [0] * len(tokens) if window.gate is None else (window.gate.long() * window.adapter).tolist()
        for n, (token, position) in enumerate(zip(tokens, positions, strict=True)):
            attended = self.entries
            if sees is not None:
                after = zip(self.entries[window.base : old + n], sees[n], strict=False)
                attended = self.entries[: window.base] + [entry for entry, visible in after if visible]
            self.entries.append(mix(token, position, (sum(attended) + features[n] + gated[n]) & MASK))
        hidden = None
        if window.taps:
            rows = [self.model.hidden(entry, tap) for entry in self.entries[old:] for tap in window.taps]
            hidden = torch.stack(rows).view(len(tokens), 1, len(window.taps), WIDTH)
        if not window.rows:
            return Rows(torch.empty(0, self.model.vocabulary, dtype=DTYPE), hidden)
        logits = torch.stack([self.model.row(entry) for entry in self.entries[-window.rows :]])
        if self.model.grammar is not None:
            logits = logits + self.model.grammar(window.positions[-window.rows :] + 1 - self.prompt)
        return Rows(logits, hidden)


def _grid(sides: Any, vocabulary: int) -> Grid | None:
    if not sides:
        return None
    are_integers = isinstance(sides, list | tuple) and all(type(value) is int for value in sides)
    sizes = tuple(sides) if are_integers else ()
    if len(sizes) not in (2, 3) or min(sizes[:2]) < 1 or not all(0 <= eol < vocabulary for eol in sizes[2:]):
        raise UsageError(
            f"the tabular backbone's grid is {sides!r}; give [rows, columns] or [rows, columns, eol], eol one of its "
            f"{vocabulary} ids"
        )
    eol = sizes[2] if len(sizes) == 3 else None
    return Grid(sizes[0], sizes[1], eol, ids=tuple(token for token in range(vocabulary) if token != eol))


@BACKBONES.register("masked_tabular")
@final
class MaskedTabular(EnumerableBackbone):
    """p(x_i | canvas) = softmax(sharpness x normal noise) over all ids but the mask's.

    Args (of ``params``):
        vocabulary: V >= 3, the last id being the mask.
        seed: of the model.
        context: entries.
        sharpness: of the distributions.
    """

    kind = "masked_tabular"
    defaults: ClassVar[Mapping[str, Any]] = {"vocabulary": 3, "seed": 0, "context": 64, "sharpness": 1.0}

    def __init__(self, name: str, params: Mapping[str, Any]) -> None:
        super().__init__(name, params)
        if self.vocabulary < 3:
            raise UsageError(
                f"the masked_tabular backbone was given a vocabulary of {self.vocabulary}; it has "
                f"{', '.join(self.defaults)}, of 3 ids or more"
            )
        self.capabilities = Capabilities(
            self.vocabulary, int(self._values["context"]), meets=self.meets({}), mask=self.vocabulary - 1
        )

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        return frozenset({Requirement.BIDIRECTIONAL})

    def cache(self) -> MaskedTabularCache:
        return MaskedTabularCache(self)

    def _logits(self, entry: int) -> Tensor:
        logits = noise(entry, self._seed, self.vocabulary) * self.sharpness
        logits[-1] = float("-inf")
        return logits


@final
class MaskedTabularCache(HashCache):
    """The entries of a `MaskedTabular`."""

    def extend(self, window: Window) -> Rows:
        old, count = len(self.entries), len(window.tokens)
        self._check_room(count)
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
        return Rows(torch.stack(logits) if logits else torch.empty(0, self.model.vocabulary, dtype=DTYPE))
