"""The modules and the forward of LlamaGen and of Tar's de-tokenizer, which grew out of it, named as in the files.

Source: Sun et al. 2024, arXiv:2406.06525, section 2.3, and ``gpt.py`` of FoundationVision/LlamaGen at ce98ec4; Han
et al. 2025, arXiv:2506.18898 (Tar). A prompt is P vectors before the first cell: a class, a caption or features.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.backbones.slots.cache import PackedLayer, PackedWindow, TappedNet, layers
from stridebench.harness.backbones.slots.net import Net, SlotInputs, SlotLayer
from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.cache import Rows
from stridebench.harness.errors import UsageError

EPS = 1e-5


@dataclass(frozen=True)
class LlamaGenShape:
    """Sizes of a model.

    Args:
        kind: c2i (classes), t2i (captions) or tar (features; learned positions, no rotation).
        layers, heads, width: L, H and E.
        side: cells a side of the picture.
        codes: K.
        prompt: classes in c2i, the longest caption in t2i, features at scale 1 in tar.
        features: width of a caption's or Tar's vectors.
        mlp: inner width; 0: two thirds of 4 E, up to a multiple of 256.
    """

    kind: str
    layers: int
    heads: int
    width: int
    side: int
    codes: int = 16384
    prompt: int = 1000
    features: int = 2048
    mlp: int = 0

    @property
    def inner(self) -> int:
        """Return the width inside the MLP."""
        return self.mlp or 256 * -(-int(8 * self.width / 3) // 256)


SIZES = {"B": (12, 12, 768), "L": (24, 16, 1024), "XL": (36, 20, 1280), "LP": (30, 20, 1280), "tiny": (3, 2, 16)}
"""Layers, heads and width of LlamaGen's B, L and XL, of Tar's LP, and of stand-ins."""


class GPT(nn.Module):
    """The modules, named as in the published files."""

    def __init__(self, shape: LlamaGenShape) -> None:
        super().__init__()
        self.shape = shape
        if shape.kind == "tar":
            self.clip_proj = _Features(shape)
            self.abs_pe = nn.Parameter(torch.zeros(1, shape.side**2 + shape.prompt - 1, shape.width))
        else:
            self.cls_embedding = _Classes(shape) if shape.kind == "c2i" else _Captions(shape)
        self.tok_embeddings = nn.Embedding(shape.codes, shape.width)
        self.layers = nn.ModuleList([LlamaGenLayer(shape) for _ in range(shape.layers)])
        self.norm = nn.RMSNorm(shape.width, EPS)
        self.output = nn.Linear(shape.width, shape.codes, bias=False)

    @property
    def classes(self) -> Float[Tensor, "P+1 E"]:
        """Return the vector of each class of c2i, that of no class last."""
        vectors: Tensor = self.cls_embedding.embedding_table.weight  # type: ignore[union-attr,assignment]  # of c2i
        return vectors

    @torch.inference_mode()
    def prompt(self, condition: Tensor | None, count: int) -> Float[Tensor, "P E"]:
        """Return the vectors before the first cell of a class [1] or features [P, C], or of no condition."""
        reader = self.clip_proj if self.shape.kind == "tar" else self.cls_embedding
        vectors: Tensor = reader(condition, count)
        return vectors


class _Classes(nn.Module):
    """A vector a class; the last one is of no class."""

    def __init__(self, shape: LlamaGenShape) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(shape.prompt + 1, shape.width)

    def forward(self, condition: Int[Tensor, " 1"] | None, count: int) -> Float[Tensor, "1 E"]:
        table = self.embedding_table.weight
        return table[-1:] if condition is None else table[condition]


class _Captions(nn.Module):
    """Projected vectors of a caption. Those of no caption are learned; a shorter prompt takes the last of them."""

    uncond_embedding: Tensor

    def __init__(self, shape: LlamaGenShape) -> None:
        super().__init__()
        self.cap_proj = _Projection(shape.features, shape.width)
        self.register_buffer("uncond_embedding", torch.zeros(shape.prompt, shape.features))

    def forward(self, condition: Float[Tensor, "P C"] | None, count: int) -> Float[Tensor, "P E"]:
        null = self.uncond_embedding
        vectors: Tensor = self.cap_proj(null[len(null) - count :] if condition is None else condition.to(null))
        return vectors


class _Projection(nn.Module):
    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(features, width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: Float[Tensor, "P C"]) -> Float[Tensor, "P E"]:
        out: Tensor = self.fc2(functional.gelu(self.fc1(x), approximate="tanh"))
        return out


class _Features(nn.Linear):
    """Tar's projection; its unconditional vectors are those of zeros."""

    def __init__(self, shape: LlamaGenShape) -> None:
        super().__init__(shape.features, shape.width)

    def forward(self, condition: Float[Tensor, "P C"] | None, count: int) -> Float[Tensor, "P E"]:  # type: ignore[override]
        like = self.weight
        return super().forward(like.new_zeros(count, self.in_features) if condition is None else condition.to(like))


class LlamaGenLayer(nn.Module):
    """Norms and products of a layer."""

    def __init__(self, shape: LlamaGenShape) -> None:
        super().__init__()
        width, inner = shape.width, shape.inner
        self.attention = _linears(wqkv=(width, 3 * width), wo=(width, width))
        self.feed_forward = _linears(w1=(width, inner), w3=(width, inner), w2=(inner, width))
        self.attention_norm = nn.RMSNorm(shape.width, EPS)
        self.ffn_norm = nn.RMSNorm(shape.width, EPS)


def _linears(**widths: tuple[int, int]) -> nn.ModuleDict:
    return nn.ModuleDict({name: nn.Linear(*width, bias=False) for name, width in widths.items()})


def vocabulary(shape: LlamaGenShape) -> int:
    """Return the number of ids: the codes, then those of prompts, which are one a class, or one for all vectors."""
    return shape.codes + (shape.prompt + 1 if shape.kind == "c2i" else 1)


def published(kind: str, size: str, side: int) -> LlamaGenShape:
    """Return the shape of a published model: c2i and t2i of LlamaGen, tar of Tar's de-tokenizer."""
    layers, heads, width = SIZES[size]
    shape = LlamaGenShape(kind, layers, heads, width, side)
    if kind == "t2i":
        return replace(shape, prompt=120)
    if kind == "tar":
        return replace(shape, prompt=81, features=24) if size == "tiny" else replace(shape, prompt=729, features=1152)
    return shape


@final
class LlamaGenNet(TappedNet):
    """The forward over the slot cache, of chosen layers, with vectors of the first P positions for their ids."""

    kind = "llamagen"

    def __init__(
        self, gpt: GPT, prompt: Float[Tensor, "P E"] | None = None, chosen: Sequence[int] | None = None
    ) -> None:
        self.gpt = gpt
        self._chosen = tuple(range(gpt.shape.layers)) if chosen is None else tuple(chosen)
        self.layers = len(self._chosen)
        self._prompt = prompt
        self._readers: Sequence[Any] = ()
        self._turns = _turns(gpt.shape, gpt.output.weight)

    def bind(self, prompt: Float[Tensor, "P E"]) -> LlamaGenNet:
        """Return the same weights with a prompt."""
        return LlamaGenNet(self.gpt, prompt, self._chosen)

    def pick(self, layers: Sequence[int]) -> LlamaGenNet:
        return LlamaGenNet(self.gpt, self._prompt, [self._chosen[index] for index in layers])

    def tied_embeddings(self) -> TiedEmbeddings:
        gpt, more = self.gpt, vocabulary(self.gpt.shape) - self.gpt.shape.codes
        embed, unembed = (functional.pad(w, (0, 0, 0, more)) for w in (gpt.tok_embeddings.weight, gpt.output.weight))
        if gpt.shape.kind == "c2i":
            embed[gpt.shape.codes :] = gpt.classes
        return TiedEmbeddings(embed, unembed)

    def joins(self, other: Net) -> bool:
        return isinstance(other, LlamaGenNet) and other.gpt is self.gpt and other._chosen == self._chosen

    def packed(self, tokens: Int[Tensor, " N"], positions: Int[Tensor, " N"], parts: Sequence[PackedWindow]) -> Rows:
        joined = copy.copy(self)
        joined._readers = [part.net for part in parts]
        return joined._packed_rows(SlotInputs(tokens, positions, None, layers(parts, 1)), parts)

    def _normed(self, x: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        normed: Tensor = self.gpt.norm(x)
        return normed

    def _logits(self, last: Float[Tensor, "R E"]) -> Float[Tensor, "R V"]:
        """Return logits that are 0 for ids of the prompt's entries, which the head does not have."""
        shape = self.gpt.shape
        return functional.pad(self.gpt.output(last), (0, vocabulary(shape) - shape.codes))

    def _through(self, inputs: SlotInputs, entering: dict[int, Tensor]) -> Float[Tensor, "N E"]:
        if not inputs.slots or not isinstance(inputs.slots[0], PackedLayer):
            starts = [self._start(inputs.tokens, inputs.positions)]
        else:
            split = (torch.split(rows, inputs.slots[0].counts) for rows in (inputs.tokens, inputs.positions))
            starts = [net._start(*rows) for net, *rows in zip(self._readers, *split, strict=True)]
        x, turns = (torch.cat(rows) for rows in zip(*starts, strict=True))
        for depth, (index, slot) in enumerate(zip(self._chosen, inputs.slots, strict=True)):
            if depth in entering:
                entering[depth] = x
            x = self._layer(index, x, turns, inputs.mask, slot)
        return x

    def _start(self, tokens: Int[Tensor, " n"], positions: Int[Tensor, " n"]) -> tuple[Tensor, Tensor]:
        """Return vectors of new entries [n, E], and how they are turned [n, 1, D / 2, 2]; nothing if they are not."""
        prompt = self._prompt
        if prompt is None:
            raise UsageError("a cache of this model needs a condition; open a prompt")
        place = (positions - len(prompt) + 1).clamp(0, self.gpt.shape.side**2)
        turns = positions.new_empty(0) if self._turns is None else self._turns[place][:, None]
        return self._embed(tokens, positions, prompt), turns

    def _embed(self, tokens: Tensor, positions: Tensor, prompt: Tensor) -> Float[Tensor, "N E"]:
        gpt = self.gpt
        cells = gpt.tok_embeddings(tokens.clamp_max(gpt.shape.codes - 1))
        x = torch.where((positions < len(prompt))[:, None], prompt[positions.clamp_max(len(prompt) - 1)], cells)
        if gpt.shape.kind == "tar":
            x = x + gpt.abs_pe[0, positions.clamp_max(gpt.abs_pe.shape[1] - 1)]
        return x

    def _layer(self, index: int, x: Tensor, turns: Tensor, mask: Tensor | None, slot: Any) -> Tensor:
        layer: Any = self.gpt.layers[index]
        count, heads = len(x), self.gpt.shape.heads
        query, key, value = layer.attention.wqkv(layer.attention_norm(x)).view(count, 3, heads, -1).unbind(1)
        if len(turns):
            query, key = _turn(query, turns), _turn(key, turns)
        rows = query, key, value
        if isinstance(slot, PackedLayer):
            split = (torch.split(part, slot.counts) for part in rows)
            attended = torch.cat([_attend(*own) for own in zip(*split, slot.masks, slot.slots, strict=True)])
        else:
            attended = _attend(*rows, mask, slot)
        x = x + layer.attention.wo(attended.reshape(count, -1))
        mlp, normed = layer.feed_forward, layer.ffn_norm(x)
        out: Tensor = x + mlp.w2(functional.silu(mlp.w1(normed)) * mlp.w3(normed))
        return out


def _attend(
    query: Float[Tensor, "n H D"], key: Tensor, value: Tensor, mask: Tensor | None, slot: SlotLayer
) -> Float[Tensor, "n H D"]:
    """Return the attention of one sequence, whose new keys and values go into its slots."""
    keys, values = slot.update(key.transpose(0, 1)[None], value.transpose(0, 1)[None])
    causal = mask is None and len(query) > 1
    attended = functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None], keys, values, attn_mask=mask, is_causal=causal
    )
    return attended[0].transpose(0, 1)


def _turns(shape: LlamaGenShape, like: Tensor) -> Float[Tensor, "T+1 D/2 2"] | None:
    """Return cosines and sines of each cell's row and column, half of the width each; 0 in a prompt, as published."""
    if shape.kind == "tar":
        return None
    half = shape.width // shape.heads // 2
    rates = 1.0 / 10000 ** (torch.arange(0, half, 2)[: half // 2].float() / half)
    angles = torch.outer(torch.arange(shape.side).float(), rates)
    rows, columns = angles[:, None].expand(-1, shape.side, -1), angles[None].expand(shape.side, -1, -1)
    grid = torch.cat([rows, columns], -1).flatten(0, 1)
    cells = torch.stack([grid.cos(), grid.sin()], -1)
    return torch.cat([cells.new_zeros(1, *cells.shape[1:]), cells]).to(like.device)


def _turn(x: Float[Tensor, "N H D"], turns: Float[Tensor, "N 1 D/2 2"]) -> Float[Tensor, "N H D"]:
    """Rotate neighbours of the width, in fp32 at least."""
    turns = turns.to(torch.promote_types(x.dtype, torch.float32))
    first, second = x.to(turns.dtype).view(*x.shape[:-1], -1, 2).unbind(-1)
    cos, sin = turns.unbind(-1)
    turned = torch.stack([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.flatten(-2).to(x.dtype)
