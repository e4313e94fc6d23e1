"""From a grid of codes to one of the same picture at r times the scale, and back: U_r and D_r of MuLo-SD.

Symbols: r linear factor between the scales, V codes of width C, which both scales share.
Source: MuLo-SD, supplement 7, learnable up/down-samplers: residual convolutions and pixel-shuffle.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from stridebench.harness.errors import ContractError, UsageError, WeightsError
from stridebench.methods.drafters.scales.codes import bilinear, nearest_code, vectors
from stridebench.methods.drafters.scales.net import Pair

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
        """The trained samplers of a folder, on the device of ``codebook``.

        Raises:
            WeightsError: the folder holds no samplers, damaged ones, or those of another codebook.
        """
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
        """The samplers of two nets."""
        return cls(len(codebook), pair.shape.factor, _through(pair.up, codebook), _through(pair.down, codebook))

    @classmethod
    def untrained(cls, kind: str, codebook: Float[Tensor, "V C"], factor: int = 2) -> Samplers:
        """The control: up by ``repeat`` (each id r x r times) or ``bilinear`` (of the vectors); down by the mean.

        Raises:
            UsageError: another kind, or a factor below 2.
        """
        if kind not in ("repeat", "bilinear"):
            raise UsageError(f"there are no untrained samplers {kind!r}; choose repeat or bilinear")
        if factor < 2:
            raise UsageError(f"the factor between the two scales is {factor}; it is 2 or more")

        def repeat(ids: Tensor) -> Tensor:
            return ids.repeat_interleave(factor, 0).repeat_interleave(factor, 1)

        up = repeat if kind == "repeat" else _through(lambda x: bilinear(x, factor), codebook)
        return cls(len(codebook), factor, up, _through(lambda x: functional.avg_pool2d(x, factor), codebook))

    def up(self, ids: Int[Tensor, "*grid"]) -> Int[Tensor, "H W"]:
        """Ids [h, w] of the small scale to [r h, r w] of the large one.

        Raises:
            ContractError: not a grid, or an id outside the codebook.
        """
        self._check(ids)
        return self._up(ids)

    def down(self, ids: Int[Tensor, "*grid"]) -> Int[Tensor, "h w"]:
        """Ids [r h, r w] of the large scale to [h, w] of the small one.

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
        # On a CPU only, where it costs no synchronisation.
        if ids.device.type == "cpu" and not 0 <= int(ids.min()) <= int(ids.max()) < self.codes:
            raise ContractError(
                f"ids from {int(ids.min())} to {int(ids.max())} in a grid over {self.codes} codes; pass codes alone, "
                f"without tokens that end rows"
            )


def _through(change: Change, codebook: Float[Tensor, "V C"]) -> Change:
    """From ids to ids by way of their vectors, in fp32: half precision cannot tell close codes apart."""
    book = codebook.float()

    @torch.no_grad()
    def changed(ids: Tensor) -> Tensor:
        return nearest_code(book, change(vectors(book, ids[None])))[0]

    return changed


def _size(codebook: Float[Tensor, "V C"]) -> str:
    return f"{codebook.shape[0]} codes of width {codebook.shape[1]}"
