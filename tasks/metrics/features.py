"""Nets that turn pictures into features: pytorch-fid's Inception, and EfficientNet-Lite0 under its own name."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from stridebench.harness.errors import UsageError
from stridebench.harness.platform.extras import install_command
from stridebench.harness.record.outputs import Picture
from stridebench.tasks.metrics import image_weights as weights
from stridebench.tasks.metrics.image_stats import batches

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8
    from torch import Tensor

INSTALL = f"Install the image extra: {install_command('image')}"


class FeatureNet(ABC):
    """A network that computes ``width`` features of a picture.

    Attributes:
        name: the name that its scores have.
        width: number of features.
        enough: fewest pictures of a Frechet distance.
    """

    name: ClassVar[str]
    width: ClassVar[int]
    enough: ClassVar[int]

    @classmethod
    @abstractmethod
    def open(cls, folder: str = "") -> FeatureNet:
        """Open the published file in ``folder``, checked by hash; "" is torch's checkpoint folder.

        Raises:
            WeightsError: the file is missing, damaged or has another layout.
            UsageError: the package of the network is not installed.
        """

    @abstractmethod
    def batch(self, pixels: UInt8[Tensor, "B 3 H W"]) -> Float[Tensor, "B E"]:
        """Compute features of pictures of one size."""

    @final
    def features(self, pictures: Sequence[Picture]) -> Float[np.ndarray, "N E"]:
        """Compute features of pictures of any size, float64, in their order."""
        out = np.empty((len(pictures), self.width))
        by_size: dict[tuple[int, ...], list[int]] = {}
        for index, picture in enumerate(pictures):
            by_size.setdefault(picture.pixels.shape, []).append(index)
        for indices in by_size.values():
            out[indices] = np.concatenate([self._run(part) for part in batches([pictures[i] for i in indices])])
        return out

    def _run(self, pictures: Sequence[Picture]) -> Float[np.ndarray, "B E"]:
        import torch

        stacked = np.stack([picture.pixels for picture in pictures])
        with torch.inference_mode():
            return np.asarray(self.batch(torch.from_numpy(stacked).permute(0, 3, 1, 2)).double().cpu().numpy())

    def pairwise(self, pictures: Sequence[Picture]) -> Float[np.ndarray, " pairs"]:
        """Return the cosine distance of every two pictures' features, in [0, 2]."""
        features = self.features(pictures)
        unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
        first, second = np.triu_indices(len(pictures), 1)
        return np.asarray(1 - np.einsum("pe,pe->p", unit[first], unit[second]))


@final
class Inception(FeatureNet):
    """InceptionV3 with the 2015 weights of FID, as pytorch-fid builds it; pictures are resized to 299 pixels.

    Args:
        path: of ``pt_inception-2015-12-05-6726825d.pth``.

    Raises:
        UsageError: pytorch-fid is not installed.
        WeightsError: the file does not fit.
    """

    name = "inception"
    width = 2048
    enough = 2049  # fewer pictures give no covariance of full rank

    def __init__(self, path: Path) -> None:
        tensors = dict(weights.read(path))
        self._net = _pytorch_fid(tensors, path)
        self._classes = tensors["fc.weight"].to(device())

    @classmethod
    def open(cls, folder: str = "") -> Inception:
        return cls(weights.find(weights.INCEPTION, folder))

    def batch(self, pixels: UInt8[Tensor, "B 3 H W"]) -> Float[Tensor, "B E"]:
        pooled: Tensor = self._net(pixels.to(device()).float() / 255)[0]
        return pooled[:, :, 0, 0]

    def logits(self, features: Float[np.ndarray, "N E"]) -> Float[np.ndarray, "N 1008"]:
        """Return class logits of pooled features without the bias, as the Inception Score's code does.

        Source: openai/improved-gan, inception_score/model.py.
        """
        return np.asarray(features @ self._classes.double().cpu().numpy().T)


@final
class EffLite0(FeatureNet):
    """EfficientNet-Lite0 of ImageNet, 1280 pooled features; pictures are resized to 224 (bicubic) and scaled.

    Its Frechet distance is called FD-EffLite0 and cannot be compared with an FID.

    Args:
        path: of ``efficientnet-lite0-57934424.pth``.

    Raises:
        UsageError: efficientnet-lite-pytorch is not installed.
        WeightsError: the file does not fit.
    """

    name = "efflite0"
    width = 1280
    enough = 256  # as in the full runs of this project; compare distances over equal numbers of pictures only

    def __init__(self, path: Path) -> None:
        package = imported("efficientnet_lite_pytorch", "pip install efficientnet-lite-pytorch")
        net = package.EfficientNet.from_name("efficientnet-lite0")
        weights.fill(net, weights.read(path), path)
        self._net = net.eval().to(device())

    @classmethod
    def open(cls, folder: str = "") -> EffLite0:
        return cls(weights.find(weights.EFFLITE0, folder))

    def batch(self, pixels: UInt8[Tensor, "B 3 H W"]) -> Float[Tensor, "B E"]:
        import torch

        sized = torch.nn.functional.interpolate(
            pixels.to(device()).float(), size=(224, 224), mode="bicubic", antialias=True
        )
        scaled = (sized.round().clamp(0, 255) - 127) / 128
        maps: Tensor = self._net.extract_features(scaled)
        return maps.mean((2, 3))


def device() -> str:
    """Return the device of the networks: the accelerator if there is one. Scores are never timed."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def imported(name: str, how: str) -> Any:
    """Import an optional package.

    Raises:
        UsageError: it is not installed.
    """
    from stridebench.harness.platform import torchvision

    torchvision.ensure()
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{name} cannot be imported ({error}). {how}") from error


def _pytorch_fid(tensors: dict[str, Tensor], path: Path) -> Any:
    """Build pytorch-fid's network with these weights. Its loader, which downloads, is replaced meanwhile."""
    module = imported("pytorch_fid.inception", INSTALL)
    own = module.load_state_dict_from_url
    module.load_state_dict_from_url = lambda *_, **__: tensors
    try:
        return module.InceptionV3([3]).eval().to(device())
    except RuntimeError as error:
        raise weights.incompatibility(path, "pytorch-fid's InceptionV3", error) from error
    finally:
        module.load_state_dict_from_url = own
