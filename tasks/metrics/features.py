"""Nets that turn pictures into features: pytorch-fid's Inception, and EfficientNet-Lite0 under its own name."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from harness.errors import UsageError
from harness.platform import torchvision
from harness.record.outputs import Picture
from tasks.metrics import image_weights as weights
from tasks.metrics.image_stats import batches

INSTALL = "Install the image extra: pip install 'stridebench[image]'"


class FeatureNet(ABC):
    """A net with a name of its own; ``width`` numbers a picture.

    Attributes:
        name: what figures computed with it are called after. enough: fewest pictures a Frechet distance is given for.
    """

    name: ClassVar[str]
    width: ClassVar[int]
    enough: ClassVar[int]

    @classmethod
    @abstractmethod
    def found(cls, folder: str = "") -> FeatureNet:
        """From its published file in ``folder``, checked by hash; "" is torch's checkpoint folder.

        Raises:
            WeightsError: the file is absent, damaged or of another layout.
            UsageError: the package that has the net is not installed.
        """

    @abstractmethod
    def batch(self, pixels: UInt8[Tensor, "B 3 H W"]) -> Float[Tensor, "B E"]:
        """Features of pictures of one size."""

    @final
    def features(self, pictures: Sequence[Picture]) -> Float[np.ndarray, "N E"]:
        """Features of pictures of any size, float64, in their order."""
        out = np.empty((len(pictures), self.width))
        by_size: dict[tuple[int, ...], list[int]] = {}
        for index, picture in enumerate(pictures):
            by_size.setdefault(picture.pixels.shape, []).append(index)
        for where in by_size.values():
            out[where] = np.concatenate([self._run(part) for part in batches([pictures[i] for i in where])])
        return out

    def _run(self, pictures: Sequence[Picture]) -> Float[np.ndarray, "B E"]:
        stacked = np.stack([picture.pixels for picture in pictures])
        with torch.inference_mode():
            return np.asarray(self.batch(torch.from_numpy(stacked).permute(0, 3, 1, 2)).double().cpu().numpy())

    def pairwise(self, pictures: Sequence[Picture]) -> Float[np.ndarray, " pairs"]:
        """Cosine distance of every two of the pictures' features, in [0, 2]."""
        found = self.features(pictures)
        unit = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        first, second = np.triu_indices(len(pictures), 1)
        return np.asarray(1 - np.einsum("pe,pe->p", unit[first], unit[second]))


@final
class Inception(FeatureNet):
    """InceptionV3 with the 2015 weights that FID is defined by, as pytorch-fid builds it; pictures resized to 299.

    Args:
        path: of ``pt_inception-2015-12-05-6726825d.pth``.

    Raises:
        UsageError: pytorch-fid is not installed.
        WeightsError: the file does not fit.
    """

    name = "inception"
    width = 2048
    enough = 2049  # the fewest that give a covariance of full rank

    def __init__(self, path: Path) -> None:
        tensors = dict(weights.read(path))
        self._net = _pytorch_fid(tensors, path)
        self._classes = tensors["fc.weight"].to(device())

    @classmethod
    def found(cls, folder: str = "") -> Inception:
        return cls(weights.find(weights.INCEPTION, folder))

    def batch(self, pixels: UInt8[Tensor, "B 3 H W"]) -> Float[Tensor, "B E"]:
        found: Tensor = self._net(pixels.to(device()).float() / 255)[0]
        return found[:, :, 0, 0]

    def logits(self, features: Float[np.ndarray, "N E"]) -> Float[np.ndarray, "N 1008"]:
        """Class logits of pooled features, without the bias, which the Inception Score's own code leaves out.

        Source: openai/improved-gan, inception_score/model.py.
        """
        return np.asarray(features @ self._classes.double().cpu().numpy().T)


@final
class EffLite0(FeatureNet):
    """EfficientNet-Lite0 of ImageNet, 1280 pooled features; pictures resized to 224 (bicubic), (x - 127) / 128.

    Its Frechet distance is called FD-EffLite0 and is never to be compared with a FID.

    Args:
        path: of ``efficientnet-lite0-57934424.pth``.

    Raises:
        UsageError: efficientnet-lite-pytorch is not installed.
        WeightsError: the file does not fit.
    """

    name = "efflite0"
    width = 1280
    enough = 256  # of the project's own full runs: compare only distances over equally many pictures

    def __init__(self, path: Path) -> None:
        package = imported("efficientnet_lite_pytorch", "pip install efficientnet-lite-pytorch")
        net = package.EfficientNet.from_name("efficientnet-lite0")
        weights.fill(net, weights.read(path), path)
        self._net = net.eval().to(device())

    @classmethod
    def found(cls, folder: str = "") -> EffLite0:
        return cls(weights.find(weights.EFFLITE0, folder))

    def batch(self, pixels: UInt8[Tensor, "B 3 H W"]) -> Float[Tensor, "B E"]:
        sized = torch.nn.functional.interpolate(
            pixels.to(device()).float(), size=(224, 224), mode="bicubic", antialias=True
        )
        scaled = (sized.round().clamp(0, 255) - 127) / 128
        found: Tensor = self._net.extract_features(scaled)
        return found.mean((2, 3))


def device() -> str:
    """Where nets run: the accelerator if there is one. Scores are never timed."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def imported(name: str, how: str) -> Any:
    """An optional package.

    Raises:
        UsageError: it is not installed.
    """
    torchvision.ensure()
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{name} cannot be imported ({error}). {how}") from error


def _pytorch_fid(tensors: dict[str, Tensor], path: Path) -> Any:
    """pytorch-fid's net with these weights; its own loader, which downloads, is out of the way meanwhile."""
    module = imported("pytorch_fid.inception", INSTALL)
    own = module.load_state_dict_from_url
    module.load_state_dict_from_url = lambda *_, **__: tensors
    try:
        return module.InceptionV3([3]).eval().to(device())
    except RuntimeError as error:
        raise weights.incompatibility(path, "pytorch-fid's InceptionV3", error) from error
    finally:
        module.load_state_dict_from_url = own
