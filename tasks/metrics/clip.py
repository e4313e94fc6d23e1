"""CLIP of a local checkpoint, the CLIP-Score, and two scores of its embeddings: the aesthetic predictor and HPSv2.

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
from torch import Tensor, nn

from stridebench.harness.core.task import SetScore
from stridebench.harness.errors import UsageError
from stridebench.harness.record.outputs import Picture
from stridebench.tasks.metrics import image_weights as weights
from stridebench.tasks.metrics.features import INSTALL, PictureSet, batches, device, imported, lanczos_square, mean


@final
class Clip:
    """Unit embeddings of pictures and texts.

    Args:
        model: one of open_clip's names.
        tensor_resize: resize pictures as floats, as HPSv2 does, and not as pictures, as CLIP does.

    Raises:
        UsageError: open_clip is not installed, or lacks the model.
        WeightsError: the checkpoint cannot be read or does not fit.
    """

    def __init__(self, model: str, path: Path, *, tensor_resize: bool = False) -> None:
        package = imported("open_clip", INSTALL)
        if model not in package.list_models():
            raise UsageError(f"open_clip lacks the model {model!r}; see open_clip.list_models()")
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
        """Return the cosine of each picture with its text."""
        return np.asarray(np.einsum("ne,ne->n", self.pictures(pictures), self.texts(texts)))

    def _images(self, pictures: Sequence[Picture]) -> Float[Tensor, "B 3 H W"]:
        from PIL import Image

        return torch.stack([self._transform(Image.fromarray(picture.pixels)) for picture in pictures])

    def _all(self, encode: Any, parts: Sequence[Tensor]) -> Float[np.ndarray, "N E"]:
        with torch.inference_mode():
            embeddings = [encode(part.to(device()), normalize=True).double().cpu().numpy() for part in parts]
        return np.concatenate(embeddings)


def open_clip(model: str, path: str, folder: str) -> Clip:
    """Open the CLIP that a task names: the user's checkpoint, or OpenAI's archive of it, checked by its hash."""
    if path:
        checkpoint = Path(path).expanduser()
        return Clip(
            model, weights.find(weights.WeightFile(checkpoint.name, f"whoever trained {model}"), str(checkpoint.parent))
        )
    if model not in weights.OPENAI_FILES:
        raise UsageError(f"clip_model is {model!r}: give its checkpoint as clip_weights, a path")
    return Clip(model, weights.find(weights.OPENAI_FILES[model], folder))


def resized(picture: Picture, how: str) -> Picture:
    """Return a picture resized as one of `images.RESIZES`.

    lanczos-256: the square in the middle, by LANCZOS to 256 pixels. bilinear-299: the whole picture, without
    antialiasing, to 299.

    Source: Haodong-Lei-Ray/ADT-Tree at 6526280, entrypoints/eval_fid_clip.py; tyshiwo1/Accelerating-T2I-AR-with-SJD at
    b389cfb, evaluation_metrics.py.
    """
    if how == "lanczos-256":
        return Picture(lanczos_square(picture.pixels, 256))
    if how == "bilinear-299":
        pixels = torch.from_numpy(np.ascontiguousarray(picture.pixels)).permute(2, 0, 1)[None]
        return Picture(nn.functional.interpolate(pixels, size=(299, 299), mode="bilinear")[0].permute(1, 2, 0).numpy())
    return picture


def clip_score(picture_set: PictureSet, clip: Clip, prefix: str = "", resize: str = "") -> SetScore:
    """Return the mean of 100 max(cosine, 0) over pictures.

    Args:
        resize: one of `images.RESIZES`.
    """
    if not picture_set.pictures:
        return mean((), (), picture_set.failures)
    pictures = [resized(picture, resize) for picture in picture_set.pictures]
    texts = [prefix + text for text in picture_set.texts]
    return mean(
        picture_set.ids,
        (100 * np.maximum(clip.cosines(pictures, texts), 0)).tolist(),
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


# LAION's improved aesthetic predictor: linear maps of the embedding of OpenAI's CLIP ViT-L/14; about 1 to 10.
# Source: christophschuhmann/improved-aesthetic-predictor, simple_inference.py.


WIDTH = 768


class Head(nn.Module):
    """768 -> 1024 -> 128 -> 64 -> 16 -> 1 without activations. Layers are numbered as in the checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        first = (nn.Linear(WIDTH, 1024), nn.Dropout(0.2), nn.Linear(1024, 128), nn.Dropout(0.2))
        self.layers = nn.Sequential(*first, nn.Linear(128, 64), nn.Dropout(0.1), nn.Linear(64, 16), nn.Linear(16, 1))

    def forward(self, embedding: Float[Tensor, "N 768"]) -> Float[Tensor, " N"]:
        """Return a score for each unit embedding."""
        scores: Tensor = self.layers(embedding)
        return scores[:, 0]


def open_head(folder: str) -> Head:
    """Open the published head, or raise WeightsError if its file is missing or has another layout."""
    return load_head(weights.find(weights.AESTHETIC, folder))


def load_head(path: Path) -> Head:
    """Read a head from a file, or raise WeightsError if the file cannot be read or does not fit."""
    head = Head()
    weights.fill(head, weights.read(path), path)
    return head.eval()


def aesthetic(picture_set: PictureSet, clip: Clip, head: Head) -> SetScore:
    """Return the mean predicted score of the pictures; prompts are not used."""
    if not picture_set.pictures:
        return mean((), (), picture_set.failures)
    with torch.inference_mode():
        scores = head(torch.from_numpy(clip.pictures(picture_set.pictures)).float())
    return mean(picture_set.ids, scores.tolist(), picture_set.failures)


# Human Preference Score v2: the cosine of a picture and its prompt under a CLIP ViT-H/14 tuned on preferences.
# Source: Wu et al. 2023, arXiv:2306.09341; tgxs002/HPSv2, hpsv2/img_score.py, which returns the cosine (its
# benchmark table prints 100 times that).


MODEL = "ViT-H-14"


def open_hps(published: weights.WeightFile, folder: str, model: str = MODEL) -> Clip:
    """Open the scorer: an open_clip checkpoint whose tensors lie under ``state_dict``."""
    return Clip(model, weights.find(published, folder), tensor_resize=True)


def hpsv2(picture_set: PictureSet, clip: Clip) -> SetScore:
    """Return the mean cosine of pictures and prompts."""
    if not picture_set.pictures:
        return mean((), (), picture_set.failures)
    return mean(picture_set.ids, clip.cosines(picture_set.pictures, picture_set.texts).tolist(), picture_set.failures)
