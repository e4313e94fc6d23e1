"""The nets of MuLo-SD's samplers, over vectors of codes.

Symbols: r linear factor between the scales, V codes of width C, which both scales share.
Source: MuLo-SD, supplement 7, learnable up/down-samplers: residual convolutions and pixel-shuffle.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast, final

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.errors import ContractError, UsageError, WeightsError
from stridebench.harness.kernels import ResidualBlock
from stridebench.methods.drafters.checkpoint import check_finite


def vectors(codebook: Float[Tensor, "V C"], ids: Int[Tensor, "B h w"]) -> Float[Tensor, "B C h w"]:
    """Return the vectors of ids, channels first."""
    return functional.embedding(ids, codebook).permute(0, 3, 1, 2)


def nearest_code(codebook: Float[Tensor, "V C"], x: Float[Tensor, "B C h w"]) -> Int[Tensor, "B h w"]:
    """Return the id of the nearest code by Euclidean distance: |x - c|^2 is least where x.c - |c|^2 / 2 is greatest."""
    return (x.permute(0, 2, 3, 1) @ codebook.T - codebook.square().sum(1) / 2).argmax(-1)


def bilinear(x: Float[Tensor, "B C h w"], factor: int) -> Float[Tensor, "B C H W"]:
    """Interpolate to r times the height and width."""
    return functional.interpolate(x, scale_factor=factor, mode="bilinear")


@dataclass(frozen=True)
class SamplerShape:
    """Sizes of a pair of nets, in the symbols of this module."""

    factor: int  # r
    codes: int  # V
    code_width: int  # C
    width: int = 128  # channels inside
    blocks: int = 4  # residual blocks of each net
    more: int = 0  # residual blocks of a second stage, which doubles r = 2 to 4; 0: there is one stage

    def stages(self) -> tuple[SamplerShape, ...]:
        """Return the shape of each stage, from the small scale up."""
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

    def __init__(self, shape: SamplerShape) -> None:
        super().__init__()
        self.shape = shape
        ups, downs = ([net(stage) for stage in shape.stages()] for net in (_Up, _Down))
        self.up: nn.Module = ups[0] if len(ups) == 1 else nn.Sequential(*ups)
        self.down: nn.Module = downs[0] if len(downs) == 1 else nn.Sequential(*reversed(downs))
        self.register_buffer("codebook", torch.zeros(shape.codes, shape.code_width))

    @classmethod
    def load(cls, folder: Path) -> Pair:
        """Return the pair in a folder, in fp32."""
        try:
            model = cls(SamplerShape(**json.loads((folder / "config.json").read_text(encoding="utf-8"))))
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

    def __init__(self, shape: SamplerShape) -> None:
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

    def __init__(self, shape: SamplerShape) -> None:
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
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(cast(Tensor, layer.bias))
    return layer


CLOSE = 0.01
"""Largest difference of a codebook from the one trained for, as a share of its largest entry: weights are bf16."""
Change = Callable[[Tensor], Tensor]


@final
class Samplers:
    """Both directions, as functions of grids of ids; a grid is a picture or a band of its rows.

    Args:
        codes: V.
        factor: r.
        up, down: from the ids of one scale to those of the other.
    """

    def __init__(self, codes: int, factor: int, up: Change, down: Change) -> None:
        self.codes, self.factor = codes, factor
        self._up, self._down = up, down

    @classmethod
    def load(cls, folder: Path, codebook: Float[Tensor, "V C"]) -> Samplers:
        """Return the trained samplers of a folder, on the device of ``codebook``."""
        pair = Pair.load(folder)
        if pair.codebook.shape != codebook.shape:
            raise WeightsError(
                f"{folder} was trained for a codebook of {_size(pair.codebook)}, and this one has {_size(codebook)}: "
                f"take samplers trained for it, or untrained ones"
            )
        if (pair.codebook - codebook.float().cpu()).abs().amax() > CLOSE * pair.codebook.abs().amax():
            raise WeightsError(
                f"{folder} was trained for another codebook of {_size(codebook)}: take samplers trained for this "
                f"one, or untrained ones"
            )
        return cls.of(pair.to(codebook.device), codebook)

    @classmethod
    def of(cls, pair: Pair, codebook: Float[Tensor, "V C"]) -> Samplers:
        """Return the samplers of two nets."""
        return cls(len(codebook), pair.shape.factor, _through(pair.up, codebook), _through(pair.down, codebook))

    @classmethod
    def untrained(cls, kind: str, codebook: Float[Tensor, "V C"], factor: int = 2) -> Samplers:
        """Return the control: up by ``repeat`` (ids r x r times) or ``bilinear`` (of the vectors); down by the mean."""
        if kind not in ("repeat", "bilinear"):
            raise UsageError(f"there are no untrained samplers {kind!r}; choose repeat or bilinear")
        if factor < 2:
            raise UsageError(f"the factor between the two scales is {factor}; it is 2 or more")

        def repeat(ids: Tensor) -> Tensor:
            return ids.repeat_interleave(factor, 0).repeat_interleave(factor, 1)

        up = repeat if kind == "repeat" else _through(lambda x: bilinear(x, factor), codebook)
        return cls(len(codebook), factor, up, _through(lambda x: functional.avg_pool2d(x, factor), codebook))

    def up(self, ids: Int[Tensor, "*grid"]) -> Int[Tensor, "H W"]:
        """Map ids [h, w] of the small scale to [r h, r w] of the large one.

        Raises:
            ContractError: not a grid, or an id outside the codebook.
        """
        self._check(ids)
        return self._up(ids)

    def down(self, ids: Int[Tensor, "*grid"]) -> Int[Tensor, "h w"]:
        """Map ids [r h, r w] of the large scale to [h, w] of the small one.

        Raises:
            ContractError: not a grid, a side that r does not divide, or an id outside the codebook.
        """
        self._check(ids)
        if any(side % self.factor for side in ids.shape):
            raise ContractError(
                f"a grid of {list(ids.shape)} cells cannot shrink {self.factor} times; pass whole blocks of "
                f"{self.factor} x {self.factor}"
            )
        return self._down(ids)

    def _check(self, ids: Int[Tensor, "*grid"]) -> None:
        if ids.ndim != 2 or not ids.numel():
            raise ContractError(f"samplers read ids [rows, columns] of at least one cell; found {list(ids.shape)}")
        # On a CPU only, since it costs no synchronisation there.
        if ids.device.type == "cpu" and not 0 <= int(ids.min()) <= int(ids.max()) < self.codes:
            raise ContractError(
                f"ids from {int(ids.min())} to {int(ids.max())} in a grid over {self.codes} codes; pass codes alone, "
                f"without tokens that end rows"
            )


def _through(change: Change, codebook: Float[Tensor, "V C"]) -> Change:
    """Return a function from ids to ids by their vectors, in fp32: half precision cannot tell close codes apart."""
    book = codebook.float()

    @torch.no_grad()
    def changed(ids: Tensor) -> Tensor:
        return nearest_code(book, change(vectors(book, ids[None])))[0]

    return changed


def _size(codebook: Float[Tensor, "V C"]) -> str:
    return f"{codebook.shape[0]} codes of width {codebook.shape[1]}"
