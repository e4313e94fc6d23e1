"""CLIP of a local checkpoint, and the CLIP-Score.

Source: Hessel et al. 2021, arXiv:2104.08718, eq. 1, with the factor 100 that reports of generated pictures use
instead of 2.5; open_clip for the nets.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.core.task import SetScore
from stridebench.harness.errors import UsageError
from stridebench.harness.record.outputs import Picture
from stridebench.tasks.metrics import image_weights as weights
from stridebench.tasks.metrics.features import INSTALL, PictureSet, batches, device, imported, mean


@final
class Clip:
    """Unit embeddings of pictures and texts.

    Args:
        model: one of open_clip's names.
        path: a checkpoint of its layout.
        tensor_resize: resize pictures as floats, as HPSv2 does, and not as pictures, as CLIP does.

    Raises:
        UsageError: open_clip is not installed, or has no such model.
        WeightsError: the checkpoint cannot be read or does not fit.
    """

    def __init__(self, model: str, path: Path, *, tensor_resize: bool = False) -> None:
        package = imported("open_clip", INSTALL)
        if model not in package.list_models():
            raise UsageError(f"open_clip has no model {model!r}; see open_clip.list_models()")
        self._net, _, transform = package.create_model_and_transforms(model, load_weights=False)
        weights.fill(self._net, weights.read(path), path)
        self._net.eval().to(device())
        self._transform = _float_transform(self._net.visual.image_size) if tensor_resize else transform
        self._tokens = package.get_tokenizer(model)

    def pictures(self, pictures: Sequence[Picture]) -> Float[np.ndarray, "N E"]:
        """Embed pictures."""
        return self._all(self._net.encode_image, [self._images(part) for part in batches(pictures)])

    def texts(self, texts: Sequence[str]) -> Float[np.ndarray, "N E"]:
        """Embed texts; each is cut after the model's 77 tokens, as is usual."""
        parts = [list(texts[start : start + 32]) for start in range(0, len(texts), 32)]
        return self._all(self._net.encode_text, [self._tokens(part) for part in parts])

    def cosines(self, pictures: Sequence[Picture], texts: Sequence[str]) -> Float[np.ndarray, " N"]:
        """Return the cosine of each picture with its own text."""
        return np.asarray(np.einsum("ne,ne->n", self.pictures(pictures), self.texts(texts)))

    def _images(self, pictures: Sequence[Picture]) -> Float[Tensor, "B 3 H W"]:
        from PIL import Image

        return torch.stack([self._transform(Image.fromarray(picture.pixels)) for picture in pictures])

    def _all(self, encode: Any, parts: Sequence[Tensor]) -> Float[np.ndarray, "N E"]:
        with torch.inference_mode():
            embeddings = [encode(part.to(device()), normalize=True).double().cpu().numpy() for part in parts]
        return np.concatenate(embeddings)


def open_clip(model: str, path: str, folder: str) -> Clip:
    """Open the CLIP that a task names: the user's checkpoint, or OpenAI's ViT-L-14.pt, checked by its hash.

    Raises:
        UsageError: another model than OpenAI's was named without a checkpoint.
        WeightsError: the file is missing, damaged or has another layout.
    """
    if path:
        checkpoint = Path(path).expanduser()
        return Clip(
            model, weights.find(weights.Weights(checkpoint.name, f"whoever trained {model}"), str(checkpoint.parent))
        )
    if model != weights.OPENAI:
        raise UsageError(f"clip_model is {model!r}: give its checkpoint as clip_weights, a path")
    return Clip(model, weights.find(weights.CLIP_L14, folder))


def clip_score(picture_set: PictureSet, clip: Clip) -> SetScore:
    """Return the mean of 100 max(cosine, 0) over pictures."""
    if not picture_set.pictures:
        return mean((), (), picture_set.failures)
    return mean(
        picture_set.ids,
        (100 * np.maximum(clip.cosines(picture_set.pictures, picture_set.texts), 0)).tolist(),
        picture_set.failures,
    )


def _float_transform(size: Any) -> Any:
    """Return HPSv2's transform: floats, shorter side to ``size`` (bicubic), centre crop, CLIP's mean and deviation.

    Source: tgxs002/HPSv2, hpsv2/src/open_clip/transform.py.
    """
    transforms = imported("torchvision.transforms", INSTALL)
    constants = imported("open_clip.constants", INSTALL)
    side = size[0] if isinstance(size, tuple) else size
    bicubic = transforms.InterpolationMode.BICUBIC
    steps = [transforms.ToTensor(), transforms.Resize(side, interpolation=bicubic), transforms.CenterCrop(side)]
    normal = transforms.Normalize(constants.OPENAI_DATASET_MEAN, constants.OPENAI_DATASET_STD)
    return transforms.Compose([*steps, normal])
