"""Random models small enough to enumerate, and sharp enough to show any stale entry.

An entry is a hash of its token, its position, its gate, its features if any, and the entries that it attends to. Its
distribution and its hidden rows are random functions of that hash. A wrong mask, a wrong position or an entry of a
rejected draft gives another distribution. A model may also keep what engines keep: a running state, the place in a
grammar, or blocks of entries for later prompts. In a masked model an entry reads, of the entries of its pass, token and
position only, as a first layer would.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.backbones.slots.guided import GridGrammar
from stridebench.harness.backbones.slots.snapshots import SnapshotCache
from stridebench.harness.backbones.text.wrapped import VOCABS, TranslatedBackbone
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


STATES = ("recurrent", "grammar", "prefix")
"""What a `Tabular` may keep besides its entries."""
GRAMMAR = 5
"""Places of its automaton; behind place i, id i is forbidden."""
BLOCK = 2
"""Entries of a block that later sequences find by all tokens up to its end."""
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
        state: "recurrent": an entry is a hash of the one before it, and the model reads chains alone. "grammar": an
            automaton forbids some ids; the drafters' models have none. "prefix": blocks of entries are kept, and a
            later sequence that begins with their tokens takes them over.
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
        "state": "",
    }

    def __init__(self, name: str, params: Mapping[str, Any]) -> None:
        super().__init__(name, params)
        grid = grid_of(self._values["grid"], self.vocabulary)
        vectors = None if grid is None or grid.ids is None else noise(0, self._seed, 2 * len(grid.ids)).view(-1, 2)
        self.capabilities = Capabilities(
            self.vocabulary,
            int(self._values["context"]),
            frozenset(int(token) for token in self._values["eos"]),
            self.meets(params),
            grid,
            vectors,
            LAYERS,
            WIDTH,
            condition=WIDTH,
            guidance=float(self._values["guidance"]),
            pard=0,
            block_mask=0,
        )
        self._hidden: dict[tuple[int, int], Tensor] = {}
        self.letters = [*map(chr, range(0x4E00, 0x4E00 + self.vocabulary - 1)), chr(0x8000 + self.vocabulary)]
        self._original = self
        self.state = str(self._values["state"])
        self.blocks: dict[tuple[int, ...], list[int]] = {}
        if self.state not in ("", *STATES):
            raise UsageError(f"the tabular backbone's state is {self.state!r}; choose one of {', '.join(STATES)}")
        self.grammar = None
        if grid is not None:
            allowed = torch.arange(self.vocabulary) != (-1 if grid.eol is None else grid.eol)
            self.grammar = GridGrammar(grid, allowed, DTYPE)

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        pictures = {Requirement.GRID, Requirement.CODEBOOK} if params.get("grid") else set()
        chains = {Requirement.DRAFTER, Requirement.HIDDEN, Requirement.CONDITION, Requirement.GATE}
        texts = {Requirement.TREE_MASK, Requirement.ANY_ORDER, Requirement.BOTH_MASKS}
        return frozenset(chains if params.get("state") == "recurrent" else chains | texts | pictures)

    def adapter(self, folder: Path | None) -> int:
        return GATED

    def encode(self, text: str) -> list[int]:
        """Return the ids of its `letters`; others are not read."""
        return [id for letter in text for id, piece in enumerate(self.letters) if piece == letter]

    def pieces(self) -> Sequence[bytes]:
        """Return a letter for each id; that of the last one is in no vocabulary of another size."""
        return [letter.encode() for letter in self.letters]

    def cache(self, prompt: int = 1) -> TabularCache | SnapshotCache:
        if self.state == "recurrent":
            return SnapshotCache(TabularState(self), self.capabilities.context)
        return TabularCache(self, prompt=prompt)

    def open(self, prompt: Prompt) -> EncodedPrompt:
        tokens = super().open(prompt).tokens
        rows = noise(CONDITION, self._seed, CONDITION * WIDTH).view(CONDITION, WIDTH)
        return EncodedPrompt(tokens, lambda: self.cache(len(tokens)), rows)

    def variant(self, params: Mapping[str, str]) -> Backbone:
        """Return a model of the same vocabulary and codes whose seed follows from the parameters: any drafter.

        ``shrink``: its pictures are 1/shrink as high and wide. A name that ends in ``vocab=tli`` is a drafter with one
        more id, which shares all of the target's tokens but the last. One that ends in ``vocab=slem`` is too, and its
        last id is written as the target's first two.
        """
        if not params:
            return self
        vocab = params.get("drafter", "").rpartition(":vocab=")[2]
        if vocab in VOCABS:
            larger = {
                **self._values,
                "vocabulary": self.vocabulary + 1,
                "grid": (),
                "state": "",
                "context": 4 * self._values["context"],
            }
            inner = Tabular(f"{self.name}/{vocab}", {**larger, "seed": self._seed + 1, "alike": 0})
            if vocab == "slem":
                inner.letters[-1] = "".join(self.letters[:2])
            return TranslatedBackbone(inner, self, vocab)
        seed = int.from_bytes(hashlib.sha256(repr(sorted(params.items())).encode()).digest()[:4], "big")
        rows, columns, *eol = self._values["grid"] or (0, 0)
        shrink = int(params.get("shrink", 1))
        grid = (max(1, rows // shrink), max(1, columns // shrink), *eol) if rows else ()
        state = "" if self.state == "grammar" else self.state
        other = Tabular(f"{self.name}/{seed}", {**self._values, "seed": seed, "grid": grid, "state": state})
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

    def rows_of(self, entries: Sequence[int], window: Window) -> Rows:
        """Return the rows of a window whose entries these are."""
        hidden = None
        if window.taps:
            rows = [self.hidden(entry, tap) for entry in entries for tap in window.taps]
            hidden = torch.stack(rows).view(len(entries), 1, len(window.taps), WIDTH)
        if not window.rows:
            return Rows(torch.empty(0, self.vocabulary, dtype=DTYPE), hidden)
        return Rows(torch.stack([self.row(entry) for entry in entries[-window.rows :]]), hidden)


def leaves(window: Window) -> list[int]:
    """Return what each entry of a window adds to the entries that it attends to: its features and its gate."""
    features = [0] * len(window.tokens)
    if window.features is not None:
        digests = [hashlib.blake2b(row.double().numpy().tobytes(), digest_size=8) for row in window.features]
        features = [int.from_bytes(digest.digest(), "big") for digest in digests]
    gated = [0] * len(features) if window.gate is None else (window.gate.long() * window.adapter).tolist()
    return [feature + gate for feature, gate in zip(features, gated, strict=True)]


@final
class TabularCache(HashCache):
    """The entries of a `Tabular`.

    Attributes:
        read: of each entry, its token, the place in the grammar behind it, and its position, or -1 if it depends on
            more than the tokens up to it.
    """

    def __init__(self, model: Tabular, entries: Sequence[int] = (), prompt: int = 1) -> None:
        super().__init__(model, entries, prompt)
        self.read: list[tuple[int, int, int]] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = super().__deepcopy__(memo)
        twin.read = list(self.read)
        return twin

    def extend(self, window: Window) -> Rows:
        old = len(self.entries)
        tokens, positions = window.tokens.tolist(), window.positions.tolist()
        self._check_room(len(tokens))
        sees, ahead = None if window.sees is None else window.sees.tolist(), list(zip(tokens, positions, strict=True))
        plain = window.features is None and window.gate is None
        shared = self._shared(tokens) if plain and not (old or window.rows) else []
        for n, (token, position, leaf) in enumerate(zip(tokens, positions, leaves(window), strict=True)):
            attended, parent = self.entries, old + n - 1
            if sees is not None:
                marks = [True] * window.base + sees[n]
                visible = [at for at in range(old + n) if marks[at]]
                attended, parent = [self.entries[at] for at in visible], visible[-1] if visible else -1
                own = marks[len(marks) - len(ahead) :]
                attended += [mix(*ahead[at], 0) for at in range(n + 1, len(ahead)) if own[at]]
            entry = mix(token, position, (sum(attended) + leaf) & MASK)
            self.entries.append(shared[n] if n < len(shared) else entry)
            before = self.read[parent][1] if parent >= 0 else 0
            place = (before * self.model.vocabulary + token + 1) % GRAMMAR
            self.read.append((token, place, position if plain else -1))
        rows: Rows = self.model.rows_of(self.entries[old:], window)
        if self.model.grammar is not None and window.rows:
            allowed = self.model.grammar(window.positions[-window.rows :] + 1 - self.prompt)
            rows = replace(rows, logits=rows.logits + allowed)
        if self.model.state == "grammar":
            self._forbid(rows.logits)
        return rows

    def _forbid(self, logits: Float[Tensor, "R V"]) -> None:
        """Set the logit of the id that the grammar forbids behind each row's entry to -inf; some places allow all."""
        for row, (_, place, _) in enumerate(self.read[len(self.read) - len(logits) :]):
            if place < self.model.vocabulary:
                logits[row, place] = float("-inf")

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        HashCache.keep(self, length, entries)
        self.read = self.read[:length] + [self.read[length + entry] for entry in entries]
        if self.model.state == "prefix":
            plain = takewhile(lambda entry: entry[1][2] == entry[0], enumerate(self.read))
            tokens = [token for _, (token, _, _) in plain]
            for end in range(BLOCK, len(tokens) + 1, BLOCK):
                self.model.blocks.setdefault(block_key(tokens, end), self.entries[end - BLOCK : end])

    def _shared(self, tokens: Sequence[int]) -> list[int]:
        """Return the entries of the blocks of earlier sequences that began with the same tokens; none are kept else."""
        entries: list[int] = []
        while len(entries) + BLOCK <= len(tokens):
            block = self.model.blocks.get(block_key(tokens, len(entries) + BLOCK))
            if block is None:
                break
            entries += block
        return entries


def block_key(tokens: Sequence[int], end: int) -> tuple[int, ...]:
    """Return the key of the block that ends at a token: all tokens up to there, since its entries depend on them."""
    return tuple(tokens[:end])


@final
class TabularState:
    """A `Tabular` whose running state is the entry before; the list of all entries stands for it."""

    rereads = 2

    def __init__(self, model: Tabular) -> None:
        self._model = model

    def begin(self) -> list[int]:
        return []

    def copied(self, state: list[int]) -> list[int]:
        return list(state)

    def read(self, state: list[int], window: Window) -> Rows:
        tokens, positions = window.tokens.tolist(), window.positions.tolist()
        for token, position, leaf in zip(tokens, positions, leaves(window), strict=True):
            state.append(mix(token, position, ((state[-1] if state else 0) + leaf) & MASK))
        return self._model.rows_of(state[len(state) - len(tokens) :], window)


def grid_of(sides: Any, vocabulary: int) -> Grid | None:
    """Return the grid of a parameter ``grid``, or None if it is empty."""
    if not sides:
        return None
    sizes = tuple(sides) if isinstance(sides, list | tuple) and all(type(value) is int for value in sides) else ()
    if len(sizes) not in (2, 3) or min(sizes[:2]) < 1 or not all(0 <= eol < vocabulary for eol in sizes[2:]):
        raise UsageError(
            f"the tabular backbone's grid is {sides!r}; give [rows, columns] or [rows, columns, eol], eol one of its "
            f"{vocabulary} ids"
        )
    eol = sizes[2] if len(sizes) == 3 else None
    return Grid(sizes[0], sizes[1], eol, ids=tuple(token for token in range(vocabulary) if token != eol))
