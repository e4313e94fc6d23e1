"""The modules of LlamaGen and of Tar's de-tokenizer, which grew out of it, named as in the published files.

Source: Sun et al. 2024, arXiv:2406.06525, section 2.3; Han et al. 2025, arXiv:2506.18898 (Tar). A prompt is P vectors
that stand before the first cell: a class, a caption or Tar's features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

EPS = 1e-5


@dataclass(frozen=True)
class Shape:
    """Sizes of a model.

    Args:
        kind: c2i (classes), t2i (captions) or tar (features; learned positions, no rotation).
        layers: L.
        heads: H.
        width: E.
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
        """Width inside the MLP."""
        return self.mlp or 256 * -(-int(8 * self.width / 3) // 256)


SIZES = {"B": (12, 12, 768), "L": (24, 16, 1024), "XL": (36, 20, 1280), "LP": (30, 20, 1280), "tiny": (3, 2, 16)}
"""Layers, heads and width of LlamaGen's B, L and XL, of Tar's LP, and of stand-ins."""


class GPT(nn.Module):
    """The modules, named as in the published files."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        if shape.kind == "tar":
            self.clip_proj = _Features(shape)
            self.abs_pe = nn.Parameter(torch.zeros(1, shape.side**2 + shape.prompt - 1, shape.width))
        else:
            self.cls_embedding = _Classes(shape) if shape.kind == "c2i" else _Captions(shape)
        self.tok_embeddings = nn.Embedding(shape.codes, shape.width)
        self.layers = nn.ModuleList([Layer(shape) for _ in range(shape.layers)])
        self.norm = nn.RMSNorm(shape.width, EPS)
        self.output = nn.Linear(shape.width, shape.codes, bias=False)

    @property
    def classes(self) -> Float[Tensor, "P+1 E"]:
        """The vector of each class of c2i, that of no class last."""
        vectors: Tensor = self.cls_embedding.embedding_table.weight  # type: ignore[union-attr,assignment]  # of c2i
        return vectors

    @torch.inference_mode()
    def prompt(self, condition: Tensor | None, count: int) -> Float[Tensor, "P E"]:
        """The vectors before the first cell.

        Args:
            condition: the class [1], or features [P, C]; None: the unconditional prompt.
            count: P.
        """
        reader = self.clip_proj if self.shape.kind == "tar" else self.cls_embedding
        vectors: Tensor = reader(condition, count)
        return vectors


class _Classes(nn.Module):
    """A vector a class; the last one is of no class."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(shape.prompt + 1, shape.width)

    def forward(self, condition: Int[Tensor, " 1"] | None, count: int) -> Float[Tensor, "1 E"]:
        table = self.embedding_table.weight
        return table[-1:] if condition is None else table[condition]


class _Captions(nn.Module):
    """Projected vectors of a caption. Those of no caption are learned; a shorter prompt takes the last of them."""

    uncond_embedding: Tensor

    def __init__(self, shape: Shape) -> None:
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

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape.features, shape.width)

    def forward(self, condition: Float[Tensor, "P C"] | None, count: int) -> Float[Tensor, "P E"]:  # type: ignore[override]
        like = self.weight
        return super().forward(like.new_zeros(count, self.in_features) if condition is None else condition.to(like))


class Layer(nn.Module):
    """Norms and products of a layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = _Attention(shape.width)
        self.feed_forward = _Mlp(shape.width, shape.inner)
        self.attention_norm = nn.RMSNorm(shape.width, EPS)
        self.ffn_norm = nn.RMSNorm(shape.width, EPS)


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.wqkv, self.wo = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)


class _Mlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)

    def forward(self, x: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        out: Tensor = self.w2(functional.silu(self.w1(x)) * self.w3(x))
        return out


def vocabulary(shape: Shape) -> int:
    """Number of ids: the codes, then those of prompts, which are one a class, or one for all vectors."""
    return shape.codes + (shape.prompt + 1 if shape.kind == "c2i" else 1)


def published(kind: str, size: str, side: int) -> Shape:
    """The shape of a published model: c2i and t2i of LlamaGen, tar of Tar's de-tokenizer."""
    layers, heads, width = SIZES[size]
    shape = Shape(kind, layers, heads, width, side)
    if kind == "t2i":
        return replace(shape, prompt=120)
    if kind == "tar":
        return replace(shape, prompt=81, features=24) if size == "tiny" else replace(shape, prompt=729, features=1152)
    return shape
