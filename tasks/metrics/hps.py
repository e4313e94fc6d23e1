"""Human Preference Score v2: the cosine of a picture and its prompt under a CLIP ViT-H/14 tuned on preferences.

Source: Wu et al. 2023, arXiv:2306.09341; tgxs002/HPSv2, hpsv2/img_score.py, which returns the cosine (its
benchmark table prints 100 times that).
"""

from __future__ import annotations

from stridebench.harness.core.task import SetScore
from stridebench.tasks.metrics import image_weights as weights
from stridebench.tasks.metrics.clip import Clip
from stridebench.tasks.metrics.image_stats import PictureSet, mean

MODEL = "ViT-H-14"


def open_hps(published: weights.Weights, folder: str, model: str = MODEL) -> Clip:
    """Open the scorer: an open_clip checkpoint whose tensors lie under ``state_dict``.

    Raises:
        UsageError: open_clip is not installed.
        WeightsError: the file is missing, damaged or has another layout.
    """
    return Clip(model, weights.find(published, folder), tensor_resize=True)


def hpsv2(picture_set: PictureSet, clip: Clip) -> SetScore:
    """Return the mean cosine of pictures and prompts."""
    if not picture_set.pictures:
        return mean((), (), picture_set.failures)
    return mean(picture_set.ids, clip.cosines(picture_set.pictures, picture_set.texts).tolist(), picture_set.failures)
