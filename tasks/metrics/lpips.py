"""LPIPS v0.1 on AlexNet: a learned distance between two pictures.

Source: Zhang et al. 2018, arXiv:1801.03924, eq. 1; richzhang/PerceptualSimilarity, lpips/lpips.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.errors import OutputError
from stridebench.harness.record.outputs import Picture
from stridebench.tasks.metrics import image_weights as weights
from stridebench.tasks.metrics.features import INSTALL, device, imported

TAPS = (1, 4, 7, 9, 11)
"""AlexNet's five rectified layers, by their index in torchvision's ``features``."""

SHIFT = (-0.030, -0.088, -0.188)
SCALE = (0.458, 0.448, 0.450)


@final
class Lpips:
    """The LPIPS distance.

    Args:
        trunk: torchvision's AlexNet weights.
        heads: the learned weights of its channels, ``lin0.model.1.weight`` and so on.

    Raises:
        UsageError: torchvision is not installed.
        WeightsError: a file does not fit.
    """

    name = "lpips"

    def __init__(self, trunk: Path, heads: Path) -> None:
        models: Any = imported("torchvision.models", INSTALL)
        with torch.device("meta"):
            self._net = models.alexnet(weights=None).features.eval()
        self._net.to_empty(device=device())
        tensors = weights.read(trunk).items()
        convolutions = {key.removeprefix("features."): value for key, value in tensors if key.startswith("features.")}
        weights.fill(self._net, convolutions, trunk)
        tensors_of_heads = weights.read(heads)
        keys = [f"lin{layer}.model.1.weight" for layer in range(len(TAPS))]
        if absent := [key for key in keys if key not in tensors_of_heads]:
            raise weights.incompatibility(heads, "LPIPS on AlexNet", KeyError(f"it has no {', '.join(absent)}"))
        self._heads = [tensors_of_heads[key].flatten().to(device()) for key in keys]

    @classmethod
    def open(cls, folder: str = "") -> Lpips:
        """Open the published files in ``folder``; the trunk is checked by its hash.

        Raises:
            WeightsError: a file is missing or damaged.
        """
        return cls(weights.find(weights.ALEXNET, folder), weights.find(weights.LPIPS_ALEX, folder))

    def pairwise(self, pictures: Sequence[Picture]) -> Float[np.ndarray, " pairs"]:
        """Return the distance of every two pictures, in the order of ``itertools.combinations``.

        Raises:
            OutputError: the pictures differ in size.
        """
        if len({picture.pixels.shape for picture in pictures}) > 1:
            raise OutputError("LPIPS compares pictures of one size; those of a prompt have several")
        with torch.inference_mode():
            taps = [self._taps(picture) for picture in pictures]
            return np.array([self._distance(first, second) for first, second in combinations(taps, 2)])

    def _taps(self, picture: Picture) -> list[Float[Tensor, "C h w"]]:
        """Return the rectified layers, each position scaled to unit length over its channels."""
        pixels = torch.from_numpy(picture.pixels.copy()).permute(2, 0, 1).float().to(device()) / 127.5 - 1
        shift, scale = (pixels.new_tensor(row)[:, None, None] for row in (SHIFT, SCALE))
        x, out = ((pixels - shift) / scale)[None], []
        for index, layer in enumerate(self._net[: TAPS[-1] + 1]):
            x = layer(x)
            if index in TAPS:
                out.append(x[0] / (x[0].norm(dim=0, keepdim=True) + 1e-10))
        return out

    def _distance(self, first: list[Tensor], second: list[Tensor]) -> float:
        parts = [
            ((a - b).square() * head[:, None, None]).sum(0).mean()
            for a, b, head in zip(first, second, self._heads, strict=True)
        ]
        return float(torch.stack(parts).sum())
