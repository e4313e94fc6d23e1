"""VQGAN tokenizers, as Chameleon's and LlamaGen's checkpoints lay them out: ids to pixels, and pixels to ids.

Source: Esser et al. 2021, arXiv:2012.09841 (VQGAN); LlamaGen's variant normalises vectors and codes (arXiv:2406.06525,
2.2). Names are those of LlamaGen's files. Chameleon has those of taming-transformers, which are translated.
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
from stridebench.harness.backbones.image.published import PictureRequest
from stridebench.harness.backbones.image.vq import check_pictures, to_bytes, to_signed
from stridebench.harness.errors import WeightsError

GROUPS = 32
UNUSED = re.compile(r"(encoder|quant_conv|loss)\.|quantize\.codebook_used$")
ENCODER_UNUSED = re.compile(r"(decoder|post_quant_conv|loss|quantize)\.")
"""Tensors of a published tokenizer that decoding and encoding do not need."""
MIDDLE = {"block_1": "0", "attn_1": "1", "block_2": "2"}
DECODER_LEVEL, ENCODER_LEVEL = "decoder.conv_blocks.", "encoder.conv_blocks."


@dataclass(frozen=True)
class VQShape:
    """Sizes of a decoder.

    Args:
        codes, width: K and C.
        latent: channels after the projection.
        levels: channels a level, from the coarsest; each but the last doubles the sides.
        blocks: residual blocks a level.
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
        return int(2 ** (len(self.levels) - 1))


class VQDecoder(nn.Module):
    """Codes, the projection after them and the convolutions; ids to pixels of about -1 to 1."""

    def __init__(self, shape: VQShape) -> None:
        super().__init__()
        self.shape = shape
        self.quantize = nn.Module()
        self.quantize.embedding = nn.Embedding(shape.codes, shape.width)
        self.post_quant_conv = nn.Conv2d(shape.width, shape.latent, 1)
        self.decoder = _Decoder(shape)

    @property
    def codebook(self) -> Float[Tensor, "K C"]:
        codes: Tensor = self.quantize.embedding.weight  # type: ignore[union-attr,assignment]  # set in __init__
        return functional.normalize(codes, dim=-1) if self.shape.normalised else codes

    @torch.inference_mode()
    def forward(self, ids: Int[Tensor, "h w"]) -> Float[Tensor, "3 H W"]:
        latent = self.codebook[ids].permute(2, 0, 1)[None]
        pixels: Tensor = self.decoder(self.post_quant_conv(latent))[0]
        return pixels


class VQEncoder(nn.Module):
    """The convolutions and the projection to the width of a code: pixels to vectors before they are rounded to codes.

    Levels are counted from the finest; each but the last halves the sides, and the last may have attention.
    """

    def __init__(self, levels: tuple[int, ...], blocks: int, attends: bool, latent: int, width: int) -> None:
        super().__init__()
        self.encoder = _PictureEncoder(levels, blocks, attends, latent)
        self.quant_conv = nn.Conv2d(latent, width, 1)

    def forward(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C h w"]:
        vectors: Tensor = self.quant_conv(self.encoder(pixels))
        return vectors


class _Decoder(nn.Module):
    def __init__(self, shape: VQShape) -> None:
        super().__init__()
        width, last = shape.levels[0], len(shape.levels) - 1
        self.conv_in = nn.Conv2d(shape.latent, width, 3, padding=1)
        self.mid = nn.ModuleList([_Residual(width, width), _PlaceAttention(width), _Residual(width, width)])
        self.conv_blocks = nn.ModuleList()
        for index, level in enumerate(shape.levels):
            self.conv_blocks.append(_Level(width, level, shape.blocks, shape.attends and index == 0))
            if index != last:
                self.conv_blocks[-1].upsample = nn.Module()
                self.conv_blocks[-1].upsample.conv = nn.Conv2d(level, level, 3, padding=1)
            width = level
        self.norm_out = nn.GroupNorm(GROUPS, width, eps=1e-6)
        self.conv_out = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Float[Tensor, "B Z h w"]) -> Float[Tensor, "B 3 H W"]:
        x = self.conv_in(x)
        for block in (*self.mid, *self.conv_blocks):
            x = block(x)
        pixels: Tensor = self.conv_out(functional.silu(self.norm_out(x)))
        return pixels


class _PictureEncoder(nn.Module):
    def __init__(self, levels: tuple[int, ...], blocks: int, attends: bool, latent: int) -> None:
        super().__init__()
        width, last = levels[0], len(levels) - 1
        self.conv_in = nn.Conv2d(3, width, 3, padding=1)
        self.conv_blocks = nn.ModuleList()
        for index, level in enumerate(levels):
            self.conv_blocks.append(_Level(width, level, blocks, attends and index == last))
            if index != last:
                self.conv_blocks[-1].downsample = nn.Module()
                self.conv_blocks[-1].downsample.conv = nn.Conv2d(level, level, 3, stride=2)
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


class _Level(nn.Module):
    """Residual blocks of one size. All but the last level of a net have ``upsample`` or ``downsample`` behind them."""

    upsample: Any
    downsample: Any

    def __init__(self, width: int, out: int, blocks: int, attends: bool) -> None:
        super().__init__()
        self.res = nn.ModuleList([_Residual(width if n == 0 else out, out) for n in range(blocks)])
        self.attn = nn.ModuleList([_PlaceAttention(out) for _ in range(blocks)] if attends else [])

    def forward(self, x: Float[Tensor, "B C h w"]) -> Float[Tensor, "B D H W"]:
        for index, block in enumerate(self.res):
            x = block(x)
            if len(self.attn):
                x = self.attn[index](x)
        if hasattr(self, "upsample"):
            x = self.upsample.conv(functional.interpolate(x, scale_factor=2.0))
        if hasattr(self, "downsample"):
            x = self.downsample.conv(functional.pad(x, (0, 1, 0, 1)))
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

    def forward(self, x: Float[Tensor, "B C h w"]) -> Float[Tensor, "B D h w"]:
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

    def forward(self, x: Float[Tensor, "B C h w"]) -> Float[Tensor, "B C h w"]:
        flat = self.norm(x)
        q, k, v = (convolution(flat).flatten(2).transpose(1, 2) for convolution in (self.q, self.k, self.v))
        attended = functional.scaled_dot_product_attention(q, k, v)
        out: Tensor = x + self.proj_out(attended.transpose(1, 2).reshape(x.shape))
        return out


def own_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a published tokenizer that decoding needs, under the names of `VQDecoder`."""
    decoding = {key: value for key, value in state.items() if not UNUSED.match(key)}
    ups = [int(match[1]) for key in decoding if (match := re.match(r"decoder\.up\.(\d+)\.", key))]
    return {_own_name(key, max(ups, default=0)): value for key, value in decoding.items()}


def encoder_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a published tokenizer that encoding needs, under the names of `VQEncoder`."""
    return {_own_name(key, 0): value for key, value in state.items() if not ENCODER_UNUSED.match(key)}


def _own_name(key: str, top: int) -> str:
    """Translate a name of taming-transformers, which counts the levels of a decoder from the last, ``top``."""
    key = re.sub(r"\.mid\.(block_1|attn_1|block_2)\.", lambda match: f".mid.{MIDDLE[match[1]]}.", key)
    match = re.match(r"(encoder\.down|decoder\.up)\.(\d+)\.(\w+)\.(.*)", key)
    if match is None:
        return key
    side, level, kind, rest = match.groups()
    place, start = (level, ENCODER_LEVEL) if side == "encoder.down" else (top - int(level), DECODER_LEVEL)
    return f"{start}{place}.{'res' if kind == 'block' else kind}.{rest}"


def _levels(state: Mapping[str, Any], start: str) -> tuple[int, ...]:
    count = 1 + max(int(key[len(start) :].split(".")[0]) for key in state if key.startswith(start))
    return tuple(int(state[f"{start}{index}.res.0.conv2.weight"].shape[0]) for index in range(count))


def _blocks(state: Mapping[str, Any], start: str) -> int:
    return 1 + max(int(key.split(".")[4]) for key in state if key.startswith(f"{start}0.res."))


def shape_of(state: Mapping[str, Any], normalised: bool) -> VQShape:
    """Return the sizes that tensors under the names of `VQDecoder` have, or raise KeyError or ValueError."""
    levels, blocks = _levels(state, DECODER_LEVEL), _blocks(state, DECODER_LEVEL)
    codes, width = (int(size) for size in state["quantize.embedding.weight"].shape)
    latent = int(state["post_quant_conv.weight"].shape[0])
    return VQShape(codes, width, latent, levels, blocks, f"{DECODER_LEVEL}0.attn.0.q.weight" in state, normalised)


def build(state: Mapping[str, Any]) -> VQEncoder:
    """Return a new encoder of the sizes that tensors under its names have, or raise KeyError or ValueError."""
    levels, blocks = _levels(state, ENCODER_LEVEL), _blocks(state, ENCODER_LEVEL)
    width, latent = (int(size) for size in state["quant_conv.weight"].shape[:2])
    return VQEncoder(levels, blocks, f"{ENCODER_LEVEL}{len(levels) - 1}.attn.0.q.weight" in state, latent, width)


@final
class VQTokenizer:
    """A published tokenizer of pictures in both directions, frozen, in fp32.

    Args:
        normalised: the codebook is on the unit sphere, and vectors are put there before they are rounded.
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
        check_pictures(pictures, self.factor)
        vectors = self._vectors(to_signed(pictures.to(self.codebook.device)))
        vectors = (functional.normalize(vectors, dim=1) if self._normalised else vectors).permute(0, 2, 3, 1)
        # |x - c|^2 is least where x.c - |c|^2 / 2 is greatest
        return (vectors @ self.codebook.T - self.codebook.square().sum(1) / 2).argmax(-1)

    def paint(self, codes: Float[Tensor, "B h w C"]) -> Float[Tensor, "B 3 H W"]:
        return self._pixels(codes.permute(0, 3, 1, 2))

    @torch.no_grad()
    def decode(self, ids: Int[Tensor, "B h w"]) -> UInt8[Tensor, "B H W 3"]:
        return to_bytes(self.paint(self.codebook[ids]))


def decoder(request: PictureRequest, state: dict[str, Tensor], normalised: bool = False) -> VQDecoder:
    """Return the picture decoder of the component ``vq``, in fp32, or raise WeightsError."""
    path, own = request.components["vq"], own_names(state)
    try:
        vq = VQDecoder(shape_of(own, normalised))
    except (KeyError, ValueError) as error:
        raise WeightsError(f"{request.name}: {path} is not a VQGAN tokenizer; it lacks {error}") from error
    components.fill(request.name, path, vq, own)
    return vq.to(request.device).eval().requires_grad_(False)


def read(request: PictureRequest, decoder: VQDecoder) -> VQTokenizer:
    """Return the tokenizer of the component ``vq``, whose decoder is loaded; WeightsError if it lacks an encoder."""
    path = request.components["vq"]
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
