"""LPIPS v0.1 on AlexNet: a learned distance between two pictures, by torchmetrics, which has its heads.

Source: Zhang et al. 2018, arXiv:1801.03924, eq. 1.
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


@final
class Lpips:
    """The LPIPS distance.

    Args:
        path: of torchvision's AlexNet weights.

    Raises:
        UsageError: torchmetrics or torchvision is not installed.
        WeightsError: the file does not fit.
    """

    name = "lpips"

    def __init__(self, path: Path) -> None:
        module: Any = imported("torchmetrics.functional.image.lpips", INSTALL)
        # A name with an underscore, because the public classes download the weights of the trunk.
        self._net = module._LPIPS(net="alex", pnet_rand=True).to(device())
        tensors = weights.read(path)
        keys = {name: "features." + name.partition(".")[2] for name in self._net.net.state_dict()}
        weights.fill(self._net.net, {name: tensors[key] for name, key in keys.items() if key in tensors}, path)

    @classmethod
    def open(cls, folder: str = "") -> Lpips:
        """Open the published file in ``folder``, checked by its hash."""
        return cls(weights.find(weights.ALEXNET, folder))

    def pairwise(self, pictures: Sequence[Picture]) -> Float[np.ndarray, " pairs"]:
        """Return the distance of every two pictures, in the order of ``itertools.combinations``."""
        if len({picture.pixels.shape for picture in pictures}) > 1:
            raise OutputError("LPIPS compares pictures of one size; those of a prompt have several")
        with torch.inference_mode():
            pairs = combinations([_pixels(picture) for picture in pictures], 2)
            return np.array([float(self._net(first, second)) for first, second in pairs])


def _pixels(picture: Picture) -> Float[Tensor, "1 3 H W"]:
    """Return the pixels in [-1, 1]."""
    return torch.from_numpy(picture.pixels.copy()).permute(2, 0, 1)[None].float().to(device()) / 127.5 - 1
