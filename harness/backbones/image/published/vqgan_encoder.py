"""The encoder of VQGAN tokenizers, as Chameleon's and LlamaGen's checkpoints lay it out: pixels to ids.

Source: Esser et al. 2021, arXiv:2012.09841 (VQGAN); LlamaGen's variant normalises vectors and codes (arXiv:2406.06525,
2.2). Names are those of LlamaGen's files; those of taming-transformers are translated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.backbones.checkpoints import components
from stridebench.harness.backbones.image.published.family import Request
from stridebench.harness.backbones.image.published.vqgan import GROUPS, VQDecoder, _Attention, _Residual
from stridebench.harness.backbones.image.vq import to_signed
from stridebench.harness.errors import UsageError, WeightsError

LEVEL = "encoder.conv_blocks."
MIDDLE = (("block_1", "0"), ("attn_1", "1"), ("block_2", "2"))
UNUSED = re.compile(r"(decoder|post_quant_conv|loss|quantize)\.")
"""Tensors of a published tokenizer that encoding does not need."""


class VQEncoder(nn.Module):
    """The convolutions and the projection to the width of a code.

    Args:
        levels: channels a level, from the finest; each but the last halves the sides.
        blocks: residual blocks a level.
        attends: the coarsest level has attention.
        latent: channels before the projection.
        width: C of a code.
    """

    def __init__(self, levels: tuple[int, ...], blocks: int, attends: bool, latent: int, width: int) -> None:
        super().__init__()
        self.encoder = _Encoder(levels, blocks, attends, latent)
        self.quant_conv = nn.Conv2d(latent, width, 1)

    def forward(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C h w"]:
        """Vectors before they are rounded to codes."""
        vectors: Tensor = self.quant_conv(self.encoder(pixels))
        return vectors


class _Encoder(nn.Module):
    def __init__(self, levels: tuple[int, ...], blocks: int, attends: bool, latent: int) -> None:
        super().__init__()
        width, last = levels[0], len(levels) - 1
        self.conv_in = nn.Conv2d(3, width, 3, padding=1)
        self.conv_blocks = nn.ModuleList()
        for index, level in enumerate(levels):
            self.conv_blocks.append(_Level(width, level, blocks, attends and index == last, index != last))
            width = level
        self.mid = nn.ModuleList([_Residual(width, width), _Attention(width), _Residual(width, width)])
        self.norm_out = nn.GroupNorm(GROUPS, width, eps=1e-6)
        self.conv_out = nn.Conv2d(width, latent, 3, padding=1)

    def forward(self, x: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B Z h w"]:
        x = self.conv_in(x)
        for block in (*self.conv_blocks, *self.mid):
            x = block(x)
        latent: Tensor = self.conv_out(functional.silu(self.norm_out(x)))
        return latent


class _Level(nn.Module):
    def __init__(self, width: int, out: int, blocks: int, attends: bool, halves: bool) -> None:
        super().__init__()
        self.res = nn.ModuleList([_Residual(width if n == 0 else out, out) for n in range(blocks)])
        self.attn = nn.ModuleList([_Attention(out) for _ in range(blocks)] if attends else [])
        if halves:
            self.downsample = nn.Module()
            self.downsample.conv = nn.Conv2d(out, out, 3, stride=2)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        for index, block in enumerate(self.res):
            x = block(x)
            if len(self.attn):
                x = self.attn[index](x)
        if hasattr(self, "downsample"):
            x = self.downsample.conv(functional.pad(x, (0, 1, 0, 1)))  # type: ignore[operator]  # a Conv2d
        return x


def own_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What encoding needs of a published tokenizer, under the names of `VQEncoder`."""
    return {_own_name(key): value for key, value in state.items() if not UNUSED.match(key)}


def _own_name(key: str) -> str:
    for there, here in MIDDLE:
        key = key.replace(f"encoder.mid.{there}.", f"encoder.mid.{here}.")
    match = re.match(r"encoder\.down\.(\d+)\.(\w+)\.(.*)", key)
    if match is None:
        return key
    return f"{LEVEL}{match[1]}.{'res' if match[2] == 'block' else match[2]}.{match[3]}"


def build(state: Mapping[str, Any]) -> VQEncoder:
    """A new encoder of the sizes that tensors under our own names have.

    Raises:
        KeyError, ValueError: a tensor that shows a size is missing.
    """
    count = 1 + max(int(key[len(LEVEL) :].split(".")[0]) for key in state if key.startswith(LEVEL))
    width, latent = (int(size) for size in state["quant_conv.weight"].shape[:2])
    return VQEncoder(
        tuple(int(state[f"{LEVEL}{index}.res.0.conv2.weight"].shape[0]) for index in range(count)),
        1 + max(int(key.split(".")[4]) for key in state if key.startswith(f"{LEVEL}0.res.")),
        f"{LEVEL}{count - 1}.attn.0.q.weight" in state,
        latent,
        width,
    )


@final
class VQTokenizer:
    """A published tokenizer of pictures in both directions, frozen, in fp32.

    Args:
        codebook: on the unit sphere where vectors are ``normalised``.
        factor: pixels a side of one code.
        normalised: vectors are put on the unit sphere before they are rounded.
        vectors: pixels [B 3 H W] to vectors [B C h w] before they are rounded to codes.
        pixels: vectors of codes [B C h w] to pixels [B 3 H W].
    """

    def __init__(
        self,
        codebook: Float[Tensor, "K C"],
        factor: int,
        normalised: bool,
        vectors: Callable[[Tensor], Tensor],
        pixels: Callable[[Tensor], Tensor],
    ) -> None:
        self.codebook, self.factor = codebook.detach(), factor
        self._normalised, self._vectors, self._pixels = normalised, vectors, pixels

    @torch.no_grad()
    def encode(self, pictures: UInt8[Tensor, "B H W 3"]) -> Int[Tensor, "B h w"]:
        """Codes of pictures, by the nearest vector.

        Raises:
            UsageError: a side is no multiple of ``factor``, or the pixels are not uint8.
        """
        check_pictures(pictures, self.factor)
        vectors = self._vectors(to_signed(pictures.to(self.codebook.device)))
        return nearest(self.codebook, functional.normalize(vectors, dim=1) if self._normalised else vectors)

    def paint(self, codes: Float[Tensor, "B h w C"]) -> Float[Tensor, "B 3 H W"]:
        """Pixels, about -1 to 1, of vectors of codes; gradients reach the vectors."""
        return self._pixels(codes.permute(0, 3, 1, 2))

    @torch.no_grad()
    def decode(self, ids: Int[Tensor, "B h w"]) -> UInt8[Tensor, "B H W 3"]:
        """Pictures of codes."""
        return to_bytes(self.paint(self.codebook[ids]))


def nearest(book: Float[Tensor, "K C"], vectors: Float[Tensor, "B C h w"]) -> Int[Tensor, "B h w"]:
    """The nearest code of each vector: |x - c|^2 is least where x.c - |c|^2 / 2 is greatest."""
    return (vectors.permute(0, 2, 3, 1) @ book.T - book.square().sum(1) / 2).argmax(-1)


def to_bytes(pixels: Float[Tensor, "B 3 H W"]) -> UInt8[Tensor, "B H W 3"]:
    """Pixels of about -1 to 1 as a picture."""
    return ((pixels.permute(0, 2, 3, 1) + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def check_pictures(pictures: Tensor, factor: int) -> None:
    """Refuse pictures that the tokenizer cannot cut into codes.

    Raises:
        UsageError: a side is no multiple of ``factor``, or the pixels are not uint8.
    """
    shape = list(pictures.shape)
    if pictures.dtype != torch.uint8 or len(shape) != 4 or shape[3] != 3 or shape[1] % factor or shape[2] % factor:
        raise UsageError(
            f"the tokenizer reads uint8 [B, H, W, 3] with H and W multiples of {factor}; found {pictures.dtype} {shape}"
        )


def read(request: Request, decoder: VQDecoder, part: str = "vq") -> VQTokenizer:
    """The tokenizer of a file whose decoder is loaded.

    Raises:
        WeightsError: the file has no encoder, or another one.
    """
    path = request.components[part]
    own = own_names(components.read_state(request.name, path))
    try:
        encoder = build(own)
    except (KeyError, ValueError) as error:
        raise WeightsError(f"{request.name}: {path} has no encoder of pictures; it lacks {error}") from error
    components.fill(request.name, path, encoder, own)
    encoder = encoder.to(request.device).eval().requires_grad_(False)

    def pixels(vectors: Float[Tensor, "B C h w"]) -> Float[Tensor, "B 3 H W"]:
        painted: Tensor = decoder.decoder(decoder.post_quant_conv(vectors))
        return painted

    shape = decoder.shape
    return VQTokenizer(decoder.codebook, shape.factor, shape.normalised, encoder, pixels)
