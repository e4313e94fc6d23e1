"""Drafters made of another backbone: with noise on its logits, or with the ids of another vocabulary.

Source of the latter: Timor et al. 2025, arXiv:2502.05202. Token-level intersection (TLI, Algorithm 4): the distribution
is the drafter's over the tokens that both vocabularies have. String-level exact match (SLEM): the drafter writes a text
greedily, and the target's tokens of it are the drafts, each a point mass. Drafts are drawn from the rows that are
recorded, so the output keeps the target's distribution.
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


VOCABS = ("tli", "slem")
"""Ways to draft with another vocabulary."""
LONGEST = 4
"""Most ids of a drafter that stand for one id of the target; of more the last ones."""
INSIDE = {bytes([byte]) for byte in range(0x80, 0xC0)}
"""Bytes of UTF-8 that go on with a letter."""


def texts_of(pieces: Sequence[bytes | str]) -> Sequence[bytes]:
    """Return the texts of ids, empty for special ones."""
    return [piece if isinstance(piece, bytes) else b"" for piece in pieces]


def written(text: bytes) -> str:
    """Return the whole letters of a text in UTF-8, which may begin or end inside one."""
    return text.decode(errors="ignore")


@dataclass(frozen=True, eq=False)
class Intersection:
    """What two vocabularies share, I tokens. The first of several ids with one text stands for it.

    Args:
        own: of the drafter, an id for each shared token.
        target: of the target, the same tokens.
        texts: of the target's ids, in UTF-8; a special one has none.
        encode: returns the drafter's ids of a text.
        reads: the drafter's ids that an id of the target is read as, one at least; of unshared ids, those read so far.
    """

    own: Int[Tensor, " I"]
    target: Int[Tensor, " I"]
    texts: Sequence[bytes]
    encode: Callable[[str], Sequence[int]]
    reads: dict[int, Sequence[int]]

    def __deepcopy__(self, memo: dict[int, Any]) -> Intersection:
        return self

    @classmethod
    def of(cls, drafter: Backbone, target: Backbone) -> Intersection:
        """Return that of two models' vocabularies, by the text or the special name of each id.

        Ids of the target that hold a part of a letter, and are not shared, are read byte by byte.

        Raises:
            UsageError: they share no token, or a model has no tokenizer.
        """
        pieces = target.pieces()
        first = {piece: id for id, piece in reversed(list(enumerate(drafter.pieces()))) if piece}
        mine = {piece: id for id, piece in reversed(list(enumerate(pieces))) if piece in first}
        if not mine:
            raise UsageError(
                f"{drafter.name} and {target.name} have no token in common; take a drafter of a vocabulary like the "
                f"target's"
            )
        shared = sorted((id, first[piece]) for piece, id in mine.items())
        texts = texts_of(pieces)
        parts = {id: text for id, text in enumerate(texts) if written(text).encode() != text}
        reads: dict[int, Sequence[int]] = {
            id: [first[bytes([byte])] for byte in text if bytes([byte]) in first][-LONGEST:] or (0,)
            for id, text in parts.items()
        }
        reads |= {id: (first[piece],) for id, piece in enumerate(pieces) if piece in first}
        ids = torch.tensor(shared, device=target.device)
        return cls(ids[:, 1], ids[:, 0], texts, drafter.encode, reads)

    def read(self, token: int) -> Sequence[int]:
        """Return the drafter's ids for an id of the target; one without a text may be read as anything."""
        if token not in self.reads:
            text = written(self.texts[token])
            self.reads[token] = (text and self.encode(text)[-LONGEST:]) or (0,)
        return self.reads[token]


@final
class TranslatedBackbone(DrafterOnly):
    """A drafter that reads and proposes the target's ids. It drafts chains, in its own order of entries.

    Args:
        vocab: "tli" draws shared tokens; "slem" proposes the target's tokens of a text that the drafter writes.
    """

    example = "NAME:vocab=tli"

    def __init__(self, inner: Backbone, target: Backbone, vocab: str = VOCABS[0]) -> None:
        self.name = f"{inner.name}:vocab={vocab}"
        self.dtype, self.device, self.fingerprint = inner.dtype, inner.device, inner.fingerprint
        context = inner.capabilities.context // LONGEST - (vocab == "slem")  # what it writes ahead takes one token more
        self.capabilities = Capabilities(target.capabilities.vocabulary, context)
        shared = Intersection.of(inner, target)
        self._inner, self._shared = inner, shared
        self._written = None if vocab == "tli" else WrittenText(shared, texts_of(inner.pieces()), target.encode)
        self.weights_of = inner

    def cache(self) -> Cache:
        inner = self._inner.cache()
        return TranslatedCache(inner, self._shared) if self._written is None else WritingCache(inner, self._written)

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


@dataclass(frozen=True, eq=False)
class WrittenText:
    """Reads a text that a drafter writes as tokens of the target.

    Args:
        pieces: texts of the drafter's ids, in UTF-8.
        encode: returns the target's ids of a text.
    """

    shared: Intersection
    pieces: Sequence[bytes]
    encode: Callable[[str], Sequence[int]]

    def __deepcopy__(self, memo: dict[int, Any]) -> WrittenText:
        return self

    def tokens(self, read: Sequence[int], text: bytes) -> Sequence[int]:
        """Return the target's tokens of a text behind others, of which the last is read with it for its spaces.

        If that one begins inside a letter, so are those before it that the letter begins in.
        """
        texts, count = self.shared.texts, 1
        while count < min(len(read), LONGEST) and texts[read[-count]][:1] in INSIDE:
            count += 1
        last = list(read[-count:])
        behind = [id for id in self.encode(written(b"".join(texts[id] for id in last) + text)) if texts[id]]
        if behind[:count] == last:
            return behind[count:]
        return [id for id in self.encode(written(text)) if texts[id]]


@final
class WritingCache(Cache):
    """A cache of the target's ids whose logits allow the next token of a text that a drafter of other ids writes.

    A token is settled once the text goes on behind it, or after ``LONGEST`` ids. While the tokens that follow are those
    of the text, the drafter goes on in its own ids. Otherwise what it wrote is dropped, and the tokens are read one by
    one, so that a draft depends on the tokens before it and not on earlier drafts. A text without a token allows all.
    """

    def __init__(self, inner: Cache, written: WrittenText) -> None:
        self._inner, self._written = inner, written
        self._tokens: list[int] = []
        self._ends: list[int] = []  # of the tokens that were read one by one, in the drafter's ids
        self._ids: list[int] = []  # the drafter's, those that it wrote included
        self._held = 0  # entries of the inner cache
        self._text, self._said = b"", -1  # written and not followed yet; the token proposed last

    def extend(self, window: Window) -> Rows:
        if window.sees is not None or window.taps:
            raise UsageError("a drafter of another vocabulary drafts chains; take a method that drafts no tree with it")
        tokens, passes = window.tokens.tolist(), 0
        device = window.tokens.device
        logits = torch.zeros(window.rows, len(self._written.shared.texts), device=device)
        for place, token in enumerate(tokens, window.rows - len(tokens)):
            self._append(token, alone=len(tokens) == 1)
            if place < 0:
                continue
            ids = self._written.tokens(self._tokens, self._text)
            for _ in range(LONGEST):
                if len(ids) > 1:
                    break
                self._write(device)
                passes += 1
                ids = self._written.tokens(self._tokens, self._text)
            self._said = ids[0] if ids else -1
            if ids:
                logits[place].fill_(float("-inf"))[ids[0]] = 0.0
        if not window.rows:
            self._read(0, device)
        return Rows(logits, passes=passes)

    def _append(self, token: int, alone: bool) -> None:
        """Read a token of the target: as the drafter wrote it, if it is the one proposed last, or by itself."""
        text = self._written.shared.texts[token]
        if alone and token == self._said and self._text.startswith(text):
            self._text = self._text.removeprefix(text)
            self._tokens.append(token)
            return
        self._tokens.append(token)
        self._drop()

    def _drop(self) -> None:
        """Drop what was written, and read the tokens that followed it one by one."""
        base = self._ends[-1] if self._ends else 0
        del self._ids[base:]
        if self._held > base:
            self._held = base
            self._inner.keep(base)
        for token in self._tokens[len(self._ends) :]:
            self._ids += self._written.shared.read(token)
            self._ends.append(len(self._ids))
        self._text, self._said = b"", -1

    def _write(self, device: torch.device) -> None:
        id = int(self._read(1, device).argmax())
        self._ids.append(id)
        self._text += self._written.pieces[id]

    def _read(self, rows: int, device: torch.device) -> Float[Tensor, "R W"]:
        """Append the ids that the inner cache lacks; the last one again if its logits are needed."""
        if rows and self._held == len(self._ids):
            self._held -= 1
            self._inner.keep(self._held)
        ids, base = torch.tensor(self._ids[self._held :], dtype=torch.long, device=device), self._held
        self._held = len(self._ids)
        places = torch.arange(base, self._held, device=device)
        return self._inner.extend(Window(ids, places, base, None, rows)).logits

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        if list(entries) != list(range(len(entries))):
            raise ContractError("a drafter of another vocabulary keeps the beginning of a chain; it drafts no tree")
        if (kept := length + len(entries)) < len(self._tokens):
            del self._tokens[kept:]
            del self._ends[kept:]
            self._drop()
