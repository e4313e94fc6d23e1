"""A small convolutional VQ tokenizer: one id of 1024 for each 4x4 pixels, of pictures of any size.

Source: van den Oord et al. 2017, arXiv:1711.00937, with codes and encodings on the unit sphere as in Yu et al. 2022,
arXiv:2110.04627 (ViT-VQGAN), section 3.2, codes that follow a moving average, and dead ones moved to data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.errors import UsageError, WeightsError
from stridebench.harness.kernels import ResidualBlock

CODES = 1024
WIDTH = 16
PATCH = 4


class VQ(nn.Module):
    """Encoder, codebook and decoder.

    Attributes:
        book: moving sum of the encodings that each code gets; its direction is the code.
        used: moving share of them.
    """

    book: Float[Tensor, "1024 16"]
    used: Float[Tensor, " 1024"]

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.PixelUnshuffle(2),
            nn.Conv2d(12, 32, 3, padding=1),
            nn.GELU(),
            nn.PixelUnshuffle(2),
            nn.Conv2d(128, 96, 1),
            ResidualBlock(96),
            nn.GELU(),
            nn.Conv2d(96, WIDTH, 1),
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(WIDTH, 128, 3, padding=1),
            ResidualBlock(128),
            ResidualBlock(128),
            nn.Conv2d(128, 128, 1),
            nn.PixelShuffle(2),
            nn.GELU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(32, 12, 3, padding=1),
            nn.PixelShuffle(2),
        )
        self.register_buffer("book", functional.normalize(torch.randn(CODES, WIDTH), dim=1) / CODES)
        self.register_buffer("used", torch.full((CODES,), 1 / CODES))

    @classmethod
    def load(cls, folder: Path) -> VQ:
        """Load the tokenizer in a folder, in fp32; WeightsError if the file is missing, damaged or of another net."""
        path = Path(folder) / "model.safetensors"
        model = cls()
        try:
            model.load_state_dict({key: value.float() for key, value in load_file(path).items()})
        except (OSError, SafetensorError, RuntimeError) as error:
            raise WeightsError(
                f"{path} is not a VQ tokenizer ({error}). Make it: `stride train backbone emoji-vq`, or give its folder"
            ) from error
        return model.eval()

    @property
    def factor(self) -> int:
        return PATCH

    @property
    def codebook(self) -> Float[Tensor, "1024 16"]:
        """Return the vector of each id, at unit length."""
        return functional.normalize(self.book, dim=1)

    def spread(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B h w 16"]:
        """Return encodings before they are rounded to codes, at unit length."""
        return functional.normalize(self.encoder(pixels).float().permute(0, 2, 3, 1), dim=-1)

    def nearest(self, spread: Float[Tensor, "*n 16"]) -> Int[Tensor, "*n"]:
        return (spread @ self.codebook.T).argmax(-1)

    def paint(self, codes: Float[Tensor, "B h w 16"]) -> Float[Tensor, "B 3 H W"]:
        """Return pixels, about -1 to 1, of codes."""
        pixels: Tensor = self.decoder(codes.permute(0, 3, 1, 2))
        return pixels

    @torch.no_grad()
    def encode(self, pictures: UInt8[Tensor, "B H W 3"] | UInt8[np.ndarray, "B H W 3"]) -> Int[Tensor, "B h w"]:
        """Return the ids of pictures; h = H / 4 and w = W / 4."""
        pixels = torch.as_tensor(pictures)
        check_pictures(pixels, PATCH)
        return self.nearest(self.spread(to_signed(pixels.to(self.book.device))))

    @torch.no_grad()
    def decode(self, ids: Int[Tensor, "B h w"]) -> UInt8[Tensor, "B H W 3"]:
        """Return the pictures of ids, or raise UsageError if one is outside the codebook."""
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < CODES:
            raise UsageError(f"an id is outside 0..{CODES - 1}: found {int(ids.min())} to {int(ids.max())}")
        return to_bytes(self.paint(self.codebook[ids]))


def to_signed(pictures: UInt8[Tensor, "B H W 3"]) -> Float[Tensor, "B 3 H W"]:
    """Return pixels from -1 to 1, channels first."""
    return pictures.permute(0, 3, 1, 2).float() / 127.5 - 1


def to_bytes(pixels: Float[Tensor, "B 3 H W"]) -> UInt8[Tensor, "B H W 3"]:
    """Return pictures of pixels of about -1 to 1."""
    return ((pixels.permute(0, 2, 3, 1) + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def check_pictures(pictures: Tensor, factor: int) -> None:
    """Raise UsageError if a side of pictures is not a multiple of ``factor``, or the pixels are not uint8."""
    shape = list(pictures.shape)
    if pictures.dtype != torch.uint8 or len(shape) != 4 or shape[3] != 3 or shape[1] % factor or shape[2] % factor:
        raise UsageError(
            f"the tokenizer reads uint8 [B, H, W, 3] with H and W multiples of {factor}; found {pictures.dtype} {shape}"
        )


class PictureTokenizer(Protocol):
    """A frozen tokenizer of pictures, as trainings read it: the vector of each code, and pixels a side of one code."""

    @property
    def codebook(self) -> Float[Tensor, "K C"]: ...

    @property
    def factor(self) -> int: ...

    def encode(self, pictures: UInt8[Tensor, "B H W 3"]) -> Int[Tensor, "B h w"]:
        """Return the codes of pictures, or raise UsageError (see `check_pictures`)."""

    def paint(self, codes: Float[Tensor, "B h w C"]) -> Float[Tensor, "B 3 H W"]:
        """Return pixels, about -1 to 1, of vectors of codes; gradients reach the vectors."""

    def decode(self, ids: Int[Tensor, "B h w"]) -> UInt8[Tensor, "B H W 3"]: ...
