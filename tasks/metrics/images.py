"""The scorers of pictures by name, and what they are computed from. One that cannot be computed says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from harness.core.task import Scored, SetScore
from harness.errors import StrideError, UnknownNameError, UsageError
from harness.record.outputs import Picture
from tasks.metrics import image_weights as weights
from tasks.metrics.aesthetic import aesthetic, open_head
from tasks.metrics.clip import OPENAI, clip_score, open_clip
from tasks.metrics.diversity import Distance, diversity
from tasks.metrics.features import EffLite0, FeatureNet, Inception
from tasks.metrics.frechet import Gaussian, frechet, statistics
from tasks.metrics.hps import hpsv2, open_hps
from tasks.metrics.image_stats import Shown, shown
from tasks.metrics.inception import inception_score
from tasks.metrics.lpips import Lpips

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


@dataclass(frozen=True)
class Settings:
    """What scorers are computed from.

    Args:
        weights: folder of their weight files; "" is torch's checkpoint folder.
        reference: a folder of real pictures, or an .npz of statistics, for Frechet distances; the features of a folder
            are computed anew for every cell.
        minimum: fewest pictures of a Frechet distance; 0: what its net declares.
        clip_model, clip_weights: another CLIP than OpenAI's ViT-L/14, and its checkpoint.
    """

    weights: str = ""
    reference: str = ""
    minimum: int = 0
    clip_model: str = OPENAI
    clip_weights: str = ""


Scorer = Callable[[Shown, Settings], SetScore]


def _fd(seen: Shown, settings: Settings, net: type[FeatureNet]) -> SetScore:
    if not settings.reference:
        raise UsageError("reference is not set: give a folder of real pictures, or an .npz with mu and sigma")
    opened = net.found(settings.weights)
    reference = _reference(Path(settings.reference).expanduser())
    return frechet(seen.pictures, reference, opened, minimum=settings.minimum, failures=seen.failures)


def _clip(seen: Shown, settings: Settings) -> SetScore:
    return clip_score(seen, open_clip(settings.clip_model, settings.clip_weights, settings.weights))


def _hps(seen: Shown, settings: Settings, published: weights.Weights) -> SetScore:
    return hpsv2(seen, open_hps(published, settings.weights))


def _aesthetic(seen: Shown, settings: Settings) -> SetScore:
    head = open_head(settings.weights)
    return aesthetic(seen, open_clip(OPENAI, "", settings.weights), head)


def _diversity(seen: Shown, settings: Settings, found: Callable[[str], Distance]) -> SetScore:
    return diversity(seen.groups(), found(settings.weights), seen.failures)


def _inception_score(seen: Shown, settings: Settings) -> SetScore:
    return inception_score(seen, Inception.found(settings.weights))


SCORERS: Mapping[str, Mapping[str, Scorer]] = {
    "fid": {"fid": partial(_fd, net=Inception)},
    "fd_efflite0": {"fd_efflite0": partial(_fd, net=EffLite0)},
    "inception_score": {"inception_score": _inception_score},
    "clip_score": {"clip_score": _clip},
    "hpsv2": {"hpsv2": partial(_hps, published=weights.HPS_20)},
    "hpsv2.1": {"hpsv2.1": partial(_hps, published=weights.HPS_21)},
    "aesthetic": {"aesthetic": _aesthetic},
    "diversity": {
        "diversity_lpips": partial(_diversity, found=Lpips.found),
        "diversity_efflite0": partial(_diversity, found=EffLite0.found),
    },
}
"""What a task may ask for, and the figures that it then reports. HPSv2.0 and v2.1 are two scales: two names."""

FIGURES = tuple(figure for figures in SCORERS.values() for figure in figures)


def names(asked: Sequence[str] | str) -> tuple[str, ...]:
    """Names of scorers, from a sequence or from one string with commas or spaces.

    Raises:
        UnknownNameError: there is no such scorer.
    """
    listed = asked.replace(",", " ").split() if isinstance(asked, str) else list(asked)
    for name in listed:
        if name not in SCORERS:
            raise UnknownNameError("picture scorer", name, SCORERS)
    return tuple(dict.fromkeys(listed))


def score(
    asked: Sequence[str] | str, outputs: Sequence[Scored], settings: Settings, own: Mapping[str, Scorer] | None = None
) -> dict[str, SetScore]:
    """Every figure asked for. One whose weights or package are absent has no value, and the reason.

    Args:
        own: further figures, of a benchmark's own.

    Raises:
        UnknownNameError: there is no such scorer.
        ContractError: two outputs have the same prompt and repetition.
    """
    seen = shown(outputs)
    scorers = [*(own or {}).items(), *(item for name in names(asked) for item in SCORERS[name].items())]
    out = {}
    for figure, scorer in scorers:
        try:
            out[figure] = scorer(seen, settings)
        except StrideError as error:
            out[figure] = SetScore(None, len(seen.pictures), seen.failures, reason=str(error))
    return out


def elsewhere(seen: Shown, settings: Settings, *, how: str, requirements: Sequence[weights.Weights] = ()) -> SetScore:
    """A figure that rests on a detector or a question answerer, none of which is part of this.

    Args:
        how: what judges, and how to get the figure. needs: the files of it whose publisher states a hash.

    Raises:
        WeightsError: a file is absent, or not the published one.
        UsageError: all are here: says how to use them.
    """
    for published in requirements:
        weights.find(published, settings.weights)
    raise UsageError(f"it is judged by {how}")


def _reference(path: Path) -> Gaussian | list[Picture]:
    if path.suffix == ".npz":
        return statistics(path)
    if not path.is_dir():
        raise UsageError(f"the reference {path} is neither a folder of pictures nor an .npz of statistics")
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
    if not files:
        raise UsageError(f"the reference folder {path} holds no picture ({', '.join(SUFFIXES)})")
    return [picture(file) for file in files]


def picture(file: Path) -> Picture:
    """Read a picture file.

    Raises:
        UsageError: it cannot be read as a picture.
    """
    from PIL import Image

    try:
        with Image.open(file) as image:
            return Picture(np.asarray(image.convert("RGB")))
    except OSError as error:
        raise UsageError(f"{file} cannot be read as a picture: {error}") from error
