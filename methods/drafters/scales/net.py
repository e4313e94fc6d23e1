"""The nets of MuLo-SD's samplers, over vectors of codes.

Symbols: r linear factor between the scales, V codes of width C, which both scales share.
Source: MuLo-SD, supplement 7, learnable up/down-samplers: residual convolutions and pixel-shuffle.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.core.residual_block import ResidualBlock
from stridebench.harness.errors import ContractError, WeightsError
from stridebench.methods.drafters.checkpoint import check_finite
from stridebench.methods.drafters.scales.codes import bilinear


@dataclass(frozen=True)
class Shape:
    """Sizes of a pair of nets, in the symbols of this module."""

    factor: int  # r
    codes: int  # V
    code_width: int  # C
    width: int = 128  # channels inside
    blocks: int = 4  # residual blocks of each net
    more: int = 0  # residual blocks of a second stage, which doubles r = 2 to 4; 0: there is one stage

    def stages(self) -> tuple[Shape, ...]:
        """The shape of each stage, from the small scale up.

        Raises:
            ValueError: two stages of another factor than 4.
        """
        if not self.more:
            return (self,)
        if self.factor != 4:
            raise ValueError(f"two stages make a factor of 4, not {self.factor}")
        first = replace(self, factor=2, more=0)
        return first, replace(first, blocks=self.more)


class Pair(nn.Module):
    """Both nets, and the codebook that they were trained for.

    A new pair is the untrained control: each net adds zero to the bilinear picture or to the mean.
    """

    codebook: Float[Tensor, "V C"]

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        ups, downs = ([net(stage) for stage in shape.stages()] for net in (_Up, _Down))
        self.up: nn.Module = ups[0] if len(ups) == 1 else nn.Sequential(*ups)
        self.down: nn.Module = downs[0] if len(downs) == 1 else nn.Sequential(*reversed(downs))
        self.register_buffer("codebook", torch.zeros(shape.codes, shape.code_width))

    @classmethod
    def load(cls, folder: Path) -> Pair:
        """The pair in a folder, in fp32.

        Raises:
            WeightsError: ``config.json`` or ``model.safetensors`` is missing, damaged or of another net.
        """
        try:
            model = cls(Shape(**json.loads((folder / "config.json").read_text(encoding="utf-8"))))
            model.load_state_dict({k: v.float() for k, v in load_file(folder / "model.safetensors").items()})
        except (OSError, SafetensorError, RuntimeError, TypeError, ValueError) as error:
            raise WeightsError(
                f"{folder} holds no samplers ({error}). Make them: `stride train samplers mulo-2x`, or give their "
                f"folder"
            ) from error
        check_finite(folder, model)
        return model.eval()

    def warm_start(self, small: Pair) -> None:
        """Take the nets of a pair of factor 2 as the stage between the two smaller scales.

        Raises:
            ContractError: this pair has one stage. WeightsError: the other pair has other sizes.
        """
        first = self.shape.stages()[0]
        if not isinstance(self.up, nn.Sequential) or not isinstance(self.down, nn.Sequential):
            raise ContractError("samplers of one stage are not started from others; give them a second stage")
        if small.shape != first:
            raise WeightsError(f"the samplers to start from are {small.shape}, and the first stage is {first}")
        self.up[0].load_state_dict(small.up.state_dict())
        self.down[-1].load_state_dict(small.down.state_dict())

    def write_config(self, folder: Path) -> None:
        """Write ``config.json``, from which `load` builds the nets."""
        (folder / "config.json").write_text(json.dumps(asdict(self.shape), indent=1) + "\n", encoding="utf-8")


class _Up(nn.Module):
    """Blocks at the small scale, pixel-shuffle, one convolution at the large one."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        r, inner = shape.factor, shape.width // 2
        self.factor = r
        self.body = nn.Sequential(
            nn.Conv2d(shape.code_width, shape.width, 3, padding=1),
            *(ResidualBlock(shape.width) for _ in range(shape.blocks)),
            nn.Conv2d(shape.width, inner * r * r, 1),
            nn.PixelShuffle(r),
            nn.GELU(),
            _zeroed(nn.Conv2d(inner, shape.code_width, 3, padding=1)),
        )

    def forward(self, x: Float[Tensor, "B C h w"]) -> Float[Tensor, "B C H W"]:
        out: Tensor = bilinear(x, self.factor) + self.body(x)
        return out


class _Down(nn.Module):
    """Pixel-unshuffle, blocks at the small scale."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        r, width = shape.factor, shape.width
        self.factor = r
        self.body = nn.Sequential(
            nn.PixelUnshuffle(r),
            nn.Conv2d(shape.code_width * r * r, width, 3, padding=1),
            *(ResidualBlock(width) for _ in range(shape.blocks)),
            nn.GELU(),
            _zeroed(nn.Conv2d(width, shape.code_width, 1)),
        )

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C h w"]:
        out: Tensor = functional.avg_pool2d(x, self.factor) + self.body(x)
        return out


def _zeroed(layer: nn.Conv2d) -> nn.Conv2d:
    """The layer with zero weights."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(cast(Tensor, layer.bias))
    return layer
