"""A random full-prefix model small enough to enumerate, and sharp enough to show any stale entry.

An entry is a hash of its token, its position, its gate, its features where it has some, and the entries it saw; its
law and its hidden rows are random functions of that hash. A wrong mask, a wrong position or an entry left from a
refused draft therefore gives another law.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from harness.backbones.slots.guided import GridGrammar
from harness.core.backbone import Backbone, EncodedPrompt
from harness.core.cache import Cache, Rows, Window
from harness.core.capabilities import Capabilities, Grid, Requirement
from harness.core.task import Prompt
from harness.errors import ContractError, UsageError
from harness.registry import BACKBONES

MASK = (1 << 64) - 1
LAYERS, WIDTH = 8, 4
"""Of its hidden rows, which are random functions of an entry's hash and the layer."""
CONDITION = 3
"""Rows of its condition."""
GATED = 0x5DEECE66D
"""What the adapter adds to a gated entry before it is hashed."""
DTYPE = torch.float64
DEFAULTS: dict[str, Any] = {"vocabulary": 3, "seed": 0, "context": 64, "sharpness": 1.0, "eos": (), "grid": ()}


@BACKBONES.register("tabular")
@final
class Tabular(Backbone):
    """p(. | prefix) = softmax(sharpness x normal noise), keyed by the whole prefix. Always fp64.

    Args (of ``params``):
        vocabulary: V >= 2. seed: which model. context: entries. sharpness: of the laws. eos: ids that end.
        grid: rows and columns of a picture; a third entry is the id that ends each row, which no cell may take.
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
        grid = _grid(values["grid"], self.vocabulary)
        vectors = (
            None if grid is None or grid.ids is None else _noise(0, int(values["seed"]), 2 * len(grid.ids)).view(-1, 2)
        )
        context, met = int(values["context"]), self.meets(params)
        self.capabilities = Capabilities(
            self.vocabulary, context, eos, met, grid, vectors, LAYERS, WIDTH, condition=WIDTH
        )
        self._params = dict(values)
        self.fingerprint = hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()
        self._seed = int(values["seed"])
        self._rows: dict[int, Tensor] = {}
        self._hidden: dict[tuple[int, int], Tensor] = {}
        self.grammar = None
        if grid is not None:
            allowed = torch.arange(self.vocabulary) != (-1 if grid.eol is None else grid.eol)
            self.grammar = GridGrammar(grid, allowed, DTYPE)

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> Tabular:
        """Nothing is read; any other type than fp64 is refused, since laws are compared to 1e-12."""
        if dtype != "fp64":
            raise UsageError(f"the tabular backbone computes in fp64 only; found {dtype}")
        return cls(name, params)

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        """Every need; those of pictures where it has a grid."""
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

    @classmethod
    def reads_text(cls, params: Mapping[str, Any]) -> bool:
        """No: its tokens stand for nothing."""
        return False

    def adapter(self, folder: Path | None) -> int:
        """A toy: gated entries have another hash, hence another table of laws."""
        return GATED

    def cache(self) -> TabularCache:
        """An empty list of hashes, for a prompt of one token."""
        return TabularCache(self)

    def open(self, prompt: Prompt) -> EncodedPrompt:
        """As any backbone; the picture begins behind the prompt, and the condition is the same for all."""
        tokens = super().open(prompt).tokens
        rows = _noise(CONDITION, self._seed, CONDITION * WIDTH).view(CONDITION, WIDTH)
        return EncodedPrompt(tokens, lambda: TabularCache(self, prompt=len(tokens)), rows)

    def decode(self, tokens: Sequence[int]) -> str:
        """Ids apart by spaces."""
        return " ".join(map(str, tokens))

    def variant(self, params: Mapping[str, str]) -> Tabular:
        """Another model of the same vocabulary and codes, its seed derived from the parameters: a drafter for any name.

        ``shrink``: its pictures are 1/shrink as high and wide.
        """
        if not params:
            return self
        seed = int.from_bytes(hashlib.sha256(repr(sorted(params.items())).encode()).digest()[:4], "big")
        rows, columns, *eol = self._params["grid"] or (0, 0)
        shrink = int(params.get("shrink", 1))
        grid = (max(1, rows // shrink), max(1, columns // shrink), *eol) if rows else ()
        made = Tabular(f"{self.name}/{seed}", {**self._params, "seed": seed, "grid": grid})
        made.capabilities = replace(made.capabilities, codebook=self.capabilities.codebook)
        return made

    def row(self, entry: int) -> Tensor:
        """Logits [V] after an entry."""
        if entry not in self._rows:
            self._rows[entry] = _noise(entry, self._seed, self.vocabulary) * self.sharpness
        return self._rows[entry]

    def hidden(self, entry: int, layer: int) -> Tensor:
        """Row [E] of an entry at a layer, normal."""
        if (entry, layer) not in self._hidden:
            self._hidden[entry, layer] = _noise(_mix(layer, 0, entry), self._seed, WIDTH)
        return self._hidden[entry, layer]

    def __deepcopy__(self, memo: dict[int, Any]) -> Tabular:
        return self


@final
class TabularCache(Cache):
    """One hash an entry."""

    def __init__(self, model: Tabular, entries: list[int] | None = None, prompt: int = 1) -> None:
        self.model = model
        self.entries: list[int] = entries or []
        self.prompt = prompt

    def extend(self, window: Window) -> Rows:
        """As the contract; the entries must start where the kept ones end.

        Raises:
            ContractError: past the context.
        """
        held = len(self.entries)
        tokens, positions = window.tokens.tolist(), window.positions.tolist()
        if held + len(tokens) > self.model.capabilities.context:
            raise ContractError(f"{held} + {len(tokens)} entries do not fit into {self.model.capabilities.context}")
        sees = None if window.sees is None else window.sees.tolist()
        beside = [0] * len(tokens) if window.features is None else [_digest(row) for row in window.features]
        gated = [0] * len(tokens) if window.gate is None else (window.gate.long() * window.adapter).tolist()
        for n, (token, position) in enumerate(zip(tokens, positions, strict=True)):
            seen = self.entries if sees is None else self._seen(sees[n], window.base, held + n)
            self.entries.append(_mix(token, position, (sum(seen) + beside[n] + gated[n]) & MASK))
        hidden = self._tapped(window.taps, held) if window.taps else None
        if not window.rows:
            return Rows(torch.empty(0, self.model.vocabulary, dtype=DTYPE), hidden)
        logits = torch.stack([self.model.row(entry) for entry in self.entries[-window.rows :]])
        if self.model.grammar is not None:
            logits = logits + self.model.grammar(window.positions[-window.rows :] + 1 - self.prompt)
        return Rows(logits, hidden)

    def _tapped(self, taps: Sequence[int], held: int) -> Tensor:
        """Rows [N, 1, J, E] of the entries behind those held."""
        new = self.entries[held:]
        return torch.stack([self.model.hidden(entry, tap) for entry in new for tap in taps]).view(
            len(new), 1, len(taps), WIDTH
        )

    def _seen(self, row: list[bool], base: int, upto: int) -> list[int]:
        after = self.entries[base:upto]
        return self.entries[:base] + [entry for entry, seen in zip(after, row, strict=False) if seen]

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """As the contract."""
        self.entries = self.entries[:length] + [self.entries[length + e] for e in entries]

    def __deepcopy__(self, memo: dict[int, Any]) -> TabularCache:
        return TabularCache(self.model, list(self.entries), self.prompt)


def _noise(entry: int, seed: int, count: int) -> Tensor:
    """Normal, keyed."""
    key = np.array([entry, seed & MASK], dtype=np.uint64)
    return torch.from_numpy(np.random.Generator(np.random.Philox(key=key)).standard_normal(count))


def _grid(given: Any, vocabulary: int) -> Grid | None:
    if not given:
        return None
    sizes = tuple(given) if isinstance(given, list | tuple) and all(type(value) is int for value in given) else ()
    if len(sizes) not in (2, 3) or min(sizes[:2]) < 1 or not all(0 <= eol < vocabulary for eol in sizes[2:]):
        raise UsageError(
            f"the tabular backbone's grid is {given!r}; give [rows, columns] or [rows, columns, eol], eol one of its "
            f"{vocabulary} ids"
        )
    eol = sizes[2] if len(sizes) == 3 else None
    return Grid(sizes[0], sizes[1], eol, ids=tuple(token for token in range(vocabulary) if token != eol))


def _digest(row: Tensor) -> int:
    """Of a feature row, bit for bit."""
    return int.from_bytes(hashlib.blake2b(row.double().numpy().tobytes(), digest_size=8).digest(), "big")


def _mix(token: int, position: int, seen: int) -> int:
    """A 64-bit hash; the entries seen come as their sum, since attention does not know their order."""
    words = b"".join(v.to_bytes(8, "big") for v in (token, position, seen))
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big")
