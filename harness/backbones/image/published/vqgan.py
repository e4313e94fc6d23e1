"""The decoder of VQGAN tokenizers, as Chameleon's and LlamaGen's checkpoints lay it out: ids to pixels.

Source: Esser et al. 2021, arXiv:2012.09841 (VQGAN); LlamaGen's variant normalises its codes (arXiv:2406.06525, 2.2).
Names are those of LlamaGen's files. Chameleon has those of taming-transformers, which are translated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.backbones.checkpoints import components
from stridebench.harness.backbones.image.published.family import PictureRequest
from stridebench.harness.backbones.image.vq import to_signed
from stridebench.harness.errors import UsageError, WeightsError

GROUPS = 32
UNUSED = re.compile(r"(encoder|quant_conv|loss)\.|quantize\.codebook_used$")
"""Tensors of a published tokenizer that decoding does not need."""


@dataclass(frozen=True)
class VQShape:
    """Sizes of a decoder.

    Args:
        codes: K.
        width: C of a code.
        latent: channels after the projection.
        levels: channels a level, from the coarsest; each but the last doubles the sides.
        blocks: residual blocks a level.
        attends: the coarsest level has attention.
        normalised: codes are put on the unit sphere.
    """

    codes: int
    width: int
    latent: int = 256
    levels: tuple[int, ...] = (512, 256, 256, 128, 128)
    blocks: int = 3
    attends: bool = True
    normalised: bool = True

    @property
    def factor(self) -> int:
        """Pixels a side of one code."""
        return int(2 ** (len(self.levels) - 1))


class VQDecoder(nn.Module):
    """Codes, the projection after them and the convolutions.

    Args:
        shape: as the file has it; see `shape_of`.
    """

    def __init__(self, shape: VQShape) -> None:
        super().__init__()
        self.shape = shape
        self.quantize = nn.Module()
        self.quantize.embedding = nn.Embedding(shape.codes, shape.width)
        self.post_quant_conv = nn.Conv2d(shape.width, shape.latent, 1)
        self.decoder = _Decoder(shape)

    @property
    def codebook(self) -> Float[Tensor, "K C"]:
        """The vectors of the ids."""
        codes: Tensor = self.quantize.embedding.weight  # type: ignore[union-attr,assignment]  # set in __init__
        return functional.normalize(codes, dim=-1) if self.shape.normalised else codes

    @torch.inference_mode()
    def forward(self, ids: Int[Tensor, "h w"]) -> Float[Tensor, "3 H W"]:
        """Pixels, about -1 to 1; H and W are h and w times the factor."""
        latent = self.codebook[ids].permute(2, 0, 1)[None]
        pixels: Tensor = self.decoder(self.post_quant_conv(latent))[0]
        return pixels


class _Decoder(nn.Module):
    def __init__(self, shape: VQShape) -> None:
        super().__init__()
        width = shape.levels[0]
        self.conv_in = nn.Conv2d(shape.latent, width, 3, padding=1)
        self.mid = nn.ModuleList([_Residual(width, width), _PlaceAttention(width), _Residual(width, width)])
        self.conv_blocks = nn.ModuleList()
        for index, level in enumerate(shape.levels):
            last = index == len(shape.levels) - 1
            self.conv_blocks.append(_Level(width, level, shape.blocks, shape.attends and index == 0, not last))
            width = level
        self.norm_out = nn.GroupNorm(GROUPS, width, eps=1e-6)
        self.conv_out = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Float[Tensor, "1 Z h w"]) -> Float[Tensor, "1 3 H W"]:
        x = self.conv_in(x)
        for block in (*self.mid, *self.conv_blocks):
            x = block(x)
        pixels: Tensor = self.conv_out(functional.silu(self.norm_out(x)))
        return pixels


class _Level(nn.Module):
    def __init__(self, width: int, out: int, blocks: int, attends: bool, doubles: bool) -> None:
        super().__init__()
        self.res = nn.ModuleList([_Residual(width if n == 0 else out, out) for n in range(blocks)])
        self.attn = nn.ModuleList([_PlaceAttention(out) for _ in range(blocks)] if attends else [])
        if doubles:
            self.upsample = nn.Module()
            self.upsample.conv = nn.Conv2d(out, out, 3, padding=1)

    def forward(self, x: Float[Tensor, "1 C h w"]) -> Float[Tensor, "1 D H W"]:
        for index, block in enumerate(self.res):
            x = block(x)
            if len(self.attn):
                x = self.attn[index](x)
        if hasattr(self, "upsample"):
            x = self.upsample.conv(functional.interpolate(x, scale_factor=2.0))  # type: ignore[operator]  # a Conv2d
        return x


class _Residual(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(GROUPS, width, eps=1e-6)
        self.conv1 = nn.Conv2d(width, out, 3, padding=1)
        self.norm2 = nn.GroupNorm(GROUPS, out, eps=1e-6)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        if width != out:
            self.nin_shortcut = nn.Conv2d(width, out, 1)

    def forward(self, x: Float[Tensor, "1 C h w"]) -> Float[Tensor, "1 D h w"]:
        inner = self.conv1(functional.silu(self.norm1(x)))
        inner = self.conv2(functional.silu(self.norm2(inner)))
        out: Tensor = (self.nin_shortcut(x) if hasattr(self, "nin_shortcut") else x) + inner
        return out


class _PlaceAttention(nn.Module):
    """One head over all places."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, width, eps=1e-6)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x: Float[Tensor, "1 C h w"]) -> Float[Tensor, "1 C h w"]:
        flat = self.norm(x)
        q, k, v = (convolution(flat).flatten(2).transpose(1, 2) for convolution in (self.q, self.k, self.v))
        attended = functional.scaled_dot_product_attention(q, k, v)
        out: Tensor = x + self.proj_out(attended.transpose(1, 2).reshape(x.shape))
        return out


def own_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What decoding needs of a published tokenizer, under the names of `VQDecoder`."""
    decoding = {key: value for key, value in state.items() if not UNUSED.match(key)}
    ups = [int(match[1]) for key in decoding if (match := re.match(r"decoder\.up\.(\d+)\.", key))]
    return {_own_name(key, max(ups, default=0)): value for key, value in decoding.items()}


def _own_name(key: str, top: int) -> str:
    for there, here in (("block_1", "0"), ("attn_1", "1"), ("block_2", "2")):
        key = key.replace(f"decoder.mid.{there}.", f"decoder.mid.{here}.")
    match = re.match(r"decoder\.up\.(\d+)\.(\w+)\.(.*)", key)
    if match is None:
        return key
    kind = {"block": "res"}.get(match[2], match[2])
    return f"decoder.conv_blocks.{top - int(match[1])}.{kind}.{match[3]}"


def shape_of(state: Mapping[str, Any], normalised: bool) -> VQShape:
    """The sizes that tensors under our own names have.

    Raises:
        KeyError: a tensor that shows a size is missing.
    """
    level = "decoder.conv_blocks."
    count = 1 + max(int(key[len(level) :].split(".")[0]) for key in state if key.startswith(level))
    blocks = 1 + max(int(key.split(".")[4]) for key in state if key.startswith(f"{level}0.res."))
    codes, width = state["quantize.embedding.weight"].shape
    return VQShape(
        int(codes),
        int(width),
        latent=int(state["post_quant_conv.weight"].shape[0]),
        levels=tuple(int(state[f"{level}{index}.res.0.conv2.weight"].shape[0]) for index in range(count)),
        blocks=blocks,
        attends=f"{level}0.attn.0.q.weight" in state,
        normalised=normalised,
    )


# The encoder of VQGAN tokenizers, as Chameleon's and LlamaGen's checkpoints lay it out: pixels to ids.
# Source: Esser et al. 2021, arXiv:2012.09841 (VQGAN); LlamaGen's variant normalises vectors and codes
# (arXiv:2406.06525, 2.2). Names are those of LlamaGen's files; those of taming-transformers are translated.


LEVEL = "encoder.conv_blocks."
MIDDLE = (("block_1", "0"), ("attn_1", "1"), ("block_2", "2"))
ENCODER_UNUSED = re.compile(r"(decoder|post_quant_conv|loss|quantize)\.")
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
        self.encoder = _PictureEncoder(levels, blocks, attends, latent)
        self.quant_conv = nn.Conv2d(latent, width, 1)

    def forward(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C h w"]:
        """Vectors before they are rounded to codes."""
        vectors: Tensor = self.quant_conv(self.encoder(pixels))
        return vectors


class _PictureEncoder(nn.Module):
    def __init__(self, levels: tuple[int, ...], blocks: int, attends: bool, latent: int) -> None:
        super().__init__()
        width, last = levels[0], len(levels) - 1
        self.conv_in = nn.Conv2d(3, width, 3, padding=1)
        self.conv_blocks = nn.ModuleList()
        for index, level in enumerate(levels):
            self.conv_blocks.append(_VqganEncoderLevel(width, level, blocks, attends and index == last, index != last))
            width = level
        self.mid = nn.ModuleList([_Residual(width, width), _PlaceAttention(width), _Residual(width, width)])
        self.norm_out = nn.GroupNorm(GROUPS, width, eps=1e-6)
        self.conv_out = nn.Conv2d(width, latent, 3, padding=1)

    def forward(self, x: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B Z h w"]:
        x = self.conv_in(x)
        for block in (*self.conv_blocks, *self.mid):
            x = block(x)
        latent: Tensor = self.conv_out(functional.silu(self.norm_out(x)))
        return latent


class _VqganEncoderLevel(nn.Module):
    def __init__(self, width: int, out: int, blocks: int, attends: bool, halves: bool) -> None:
        super().__init__()
        self.res = nn.ModuleList([_Residual(width if n == 0 else out, out) for n in range(blocks)])
        self.attn = nn.ModuleList([_PlaceAttention(out) for _ in range(blocks)] if attends else [])
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


def encoder_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What encoding needs of a published tokenizer, under the names of `VQEncoder`."""
    return {_own_name_vqgan_encoder(key): value for key, value in state.items() if not ENCODER_UNUSED.match(key)}


def _own_name_vqgan_encoder(key: str) -> str:
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


def read(request: PictureRequest, decoder: VQDecoder, part: str = "vq") -> VQTokenizer:
    """The tokenizer of a file whose decoder is loaded.

    Raises:
        WeightsError: the file has no encoder, or another one.
    """
    path = request.components[part]
    own = encoder_names(components.read_state(request.name, path))
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
