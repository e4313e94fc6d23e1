"""Nets that turn pictures into features: pytorch-fid's Inception, clean-fid's way to use it, and EfficientNet-Lite0."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from stridebench.harness.core.task import Scored, SetScore
from stridebench.harness.errors import ContractError, UsageError
from stridebench.harness.machine.extras import install_command
from stridebench.harness.record import stats
from stridebench.harness.record.outputs import Picture
from stridebench.tasks.metrics import image_weights as weights

if TYPE_CHECKING:
    import pandas as pd
    from jaxtyping import Float, UInt8
    from torch import Tensor


# What all image scorers share: pictures in a fixed order, the number of failures, intervals over prompts.


BATCH = 32


@dataclass(frozen=True)
class PictureSet:
    """The pictures of a cell with their prompts, in the order of prompt id and repetition.

    Args:
        failures: number of outputs that are not pictures.
    """

    ids: tuple[str, ...]
    categories: tuple[str, ...]
    texts: tuple[str, ...]
    pictures: tuple[Picture, ...]
    failures: int

    def only(self, category: str) -> PictureSet:
        """Return the pictures of one category. Failures are left out, because their categories are unknown."""
        indices = [index for index, name in enumerate(self.categories) if name == category]
        ids, texts = tuple(self.ids[i] for i in indices), tuple(self.texts[i] for i in indices)
        return PictureSet(ids, (category,) * len(indices), texts, tuple(self.pictures[i] for i in indices), 0)

    def groups(self) -> dict[str, list[Picture]]:
        """Return the pictures of each prompt."""
        out: dict[str, list[Picture]] = {}
        for name, picture in zip(self.ids, self.pictures, strict=True):
            out.setdefault(name, []).append(picture)
        return out


def sorted_pictures(outputs: Sequence[Scored]) -> PictureSet:
    """Sort outputs by the id of their prompt, so that no score depends on the order of decoding.

    Raises:
        ContractError: two outputs have the same prompt and repetition.
    """
    order = sorted(outputs, key=lambda one: (one.prompt.id, one.repetition))
    for one, other in pairwise(order):
        if (one.prompt.id, one.repetition) == (other.prompt.id, other.repetition):
            raise ContractError(f"prompt {one.prompt.id!r} has two outputs of repetition {one.repetition}")
    with_picture = [one for one in order if isinstance(one.output, Picture)]
    pictures = tuple(one.output for one in with_picture if isinstance(one.output, Picture))
    prompts = [one.prompt for one in with_picture]
    categories, texts = tuple(prompt.category for prompt in prompts), tuple(prompt.text or "" for prompt in prompts)
    return PictureSet(
        tuple(prompt.id for prompt in prompts), categories, texts, pictures, len(order) - len(with_picture)
    )


def batches(pictures: Sequence[Picture], size: int = BATCH) -> Iterator[Sequence[Picture]]:
    """Split the pictures into batches of at most ``size``."""
    for start in range(0, len(pictures), size):
        yield pictures[start : start + size]


def mean(
    ids: Sequence[str], values: Sequence[float], failures: int = 0, within: tuple[float, float] | None = None
) -> SetScore:
    """Return the mean over outputs. Its 95 % interval resamples prompts, because one prompt's outputs are correlated.

    Args:
        within: the least and the largest value that the figure can have, or None if it has no bounds.

    Raises:
        UsageError: a value lies outside ``within``.
    """
    if not len(values):
        return SetScore(None, 0, failures, reason="no output to score")
    if within is None:
        return with_interval(stats.score(by_prompt(ids, values)), len(values), failures)
    low, high = within
    scaled = [(value - low) / (high - low) for value in values]
    return with_interval(stats.bounded_mean(by_prompt(ids, scaled)), len(values), failures, within)


def by_prompt(ids: Sequence[str], values: Sequence[float]) -> pd.Series[float]:
    """Return the values by (prompt, repetition), as ``harness.record.stats`` reads them."""
    import pandas as pd

    prompts = pd.Series(ids, dtype=str)
    index = pd.MultiIndex.from_arrays([prompts, prompts.groupby(prompts).cumcount()], names=["prompt", "repetition"])
    return pd.Series(np.asarray(values, dtype=np.float64), index)


def with_interval(
    interval: stats.Interval | None, n: int, failures: int = 0, within: tuple[float, float] = (0.0, 1.0)
) -> SetScore:
    """Return an interval as the score of a set.

    Args:
        interval: in the unit that ``within`` maps 0 and 1 to; None if nothing was counted.
    """
    if interval is None:
        return SetScore(None, n, failures, reason="nothing to score was counted")
    low, width = within[0], within[1] - within[0]
    value = low + width * interval.estimate
    if interval.low is None or interval.high is None:
        reason = f"{interval.n} prompts, too few or too equal ones, give no interval"
        return SetScore(value, n, failures, reason=reason)
    if interval.low == interval.high:
        return SetScore(value, n, failures, reason="all values are equal, which says nothing of their spread")
    return SetScore(value, n, failures, low + width * interval.low, low + width * interval.high)


INSTALL = f"Install the image extra: {install_command('image')}"


class FeatureNet(ABC):
    """A network that computes ``width`` features of a picture.

    Attributes:
        enough: fewest pictures of a Frechet distance.
    """

    name: ClassVar[str]
    width: ClassVar[int]
    enough: ClassVar[int]

    @classmethod
    @abstractmethod
    def open(cls, folder: str = "") -> FeatureNet:
        """Open the published file in ``folder``, checked by hash; "" is torch's checkpoint folder."""

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
class CleanInception(FeatureNet):
    """The same network on pictures that are resized as clean-fid does, after a LANCZOS resize to 256 pixels.

    The square in the middle comes to 256 pixels; then each channel comes to 299 by PIL's bicubic filter, antialiased
    and not rounded to bytes. Values are (x - 128) / 128. clean-fid reads the same weights from NVIDIA's file.

    Args:
        path: of ``pt_inception-2015-12-05-6726825d.pth``.

    Raises:
        UsageError: pytorch-fid is not installed.
        WeightsError: the file does not fit.

    Source: Parmar et al. 2022, arXiv:2104.11222; GaParmar/clean-fid at e88c4d6, cleanfid/resize.py; the crop and 256
    pixels of Haodong-Lei-Ray/ADT-Tree at 6526280, entrypoints/eval_fid_clip.py.
    """

    name = "clean_inception_256"
    width = 2048
    enough = 2049

    def __init__(self, path: Path) -> None:
        self._net = _pytorch_fid(dict(weights.read(path)), path, resize_input=False, normalize_input=False)

    @classmethod
    def open(cls, folder: str = "") -> CleanInception:
        return cls(weights.find(weights.INCEPTION, folder))

    def batch(self, pixels: UInt8[Tensor, "B 3 H W"]) -> Float[Tensor, "B E"]:
        import torch

        squares = (lanczos_square(picture, 256) for picture in pixels.permute(0, 2, 3, 1).cpu().numpy())
        sized = torch.from_numpy(np.stack([clean_resize(square, 299) for square in squares])).permute(0, 3, 1, 2)
        pooled: Tensor = self._net((sized.to(device()) - 128) / 128)[0]
        return pooled[:, :, 0, 0]


def lanczos_square(pixels: UInt8[np.ndarray, "H W 3"], side: int) -> UInt8[np.ndarray, "S S 3"]:
    """Return the square in the middle of a picture, resized by PIL's LANCZOS filter."""
    from PIL import Image

    height, width = pixels.shape[:2]
    least = min(height, width)
    top, left = round((height - least) / 2), round((width - least) / 2)
    square = Image.fromarray(pixels[top : top + least, left : left + least])
    return np.asarray(square.resize((side, side), Image.Resampling.LANCZOS))


def clean_resize(pixels: UInt8[np.ndarray, "H W 3"], side: int) -> Float[np.ndarray, "S S 3"]:
    """Return a picture whose channels were resized one by one in float32 by PIL's bicubic filter, cut to 0 to 255."""
    from PIL import Image

    channels = [Image.fromarray(pixels[:, :, channel].astype(np.float32)) for channel in range(3)]
    sized = [np.asarray(image.resize((side, side), Image.Resampling.BICUBIC)) for image in channels]
    return np.asarray(np.stack(sized, -1).clip(0, 255))


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
    """Import an optional package, or raise UsageError if it is not installed."""
    from stridebench.harness.machine import extras

    extras.ensure()
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{name} cannot be imported ({error}). {how}") from error


def _pytorch_fid(tensors: dict[str, Tensor], path: Path, **settings: bool) -> Any:
    """Build pytorch-fid's network with these weights. Its loader, which downloads, is replaced meanwhile."""
    module = imported("pytorch_fid.inception", INSTALL)
    own = module.load_state_dict_from_url
    module.load_state_dict_from_url = lambda *_, **__: tensors
    try:
        return module.InceptionV3([3], **settings).eval().to(device())
    except RuntimeError as error:
        raise weights.incompatibility(path, "pytorch-fid's InceptionV3", error) from error
    finally:
        module.load_state_dict_from_url = own
