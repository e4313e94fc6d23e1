"""The scorers of pictures by name, and their settings. A score that cannot be computed has the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np

from stridebench.harness.core.task import Scored, SetScore
from stridebench.harness.errors import OutputError, StrideError, UnknownNameError, UsageError
from stridebench.harness.record.outputs import Picture
from stridebench.harness.registry import PICTURE_SCORERS
from stridebench.tasks.metrics import image_weights as weights
from stridebench.tasks.metrics.features import (
    INSTALL,
    CleanInception,
    EffLite0,
    FeatureNet,
    Inception,
    PictureSet,
    device,
    imported,
    mean,
    sorted_pictures,
)
from stridebench.tasks.metrics.frechet import Gaussian, frechet, kid, statistics
from stridebench.tasks.metrics.image_weights import OPENAI

if TYPE_CHECKING:
    from jaxtyping import Float


# Inception Score: exp of the mean divergence between the class distribution of a picture and that of its split.
# Source: Salimans et al. 2016, arXiv:1606.03498, and its code openai/improved-gan, inception_score/model.py: logits
# without bias over all 1008 classes of the 2015 net, ten splits.


SPLITS = 10
ENOUGH = 1_000


def split_scores(logits: Float[np.ndarray, "N C"], splits: int = SPLITS) -> Float[np.ndarray, " splits"]:
    """Return the score of each of ``splits`` parts of the rows."""
    log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    scores = []
    for split in np.array_split(log_probs, splits):
        log_mean = np.log(np.exp(split).mean(0))
        scores.append(np.exp((np.exp(split) * (split - log_mean)).sum(1).mean()))
    return np.array(scores)


def inception_score(picture_set: PictureSet, net: Inception, minimum: int = ENOUGH, splits: int = SPLITS) -> SetScore:
    """Return the mean over the splits with Student's interval.

    Pictures are split at random (fixed seed), so that pictures of one prompt do not share a split.

    Args:
        minimum: fewest pictures; a score of n pictures cannot exceed n / splits, so few pictures bias it downwards.
    """
    n = len(picture_set.pictures)
    if n < max(minimum, splits):
        reason = f"{n} pictures; at least {max(minimum, splits)} are asked for, because fewer bound the score"
        return SetScore(None, n, picture_set.failures, reason=reason)
    logits = net.logits(net.features(picture_set.pictures))
    scores = split_scores(logits[np.random.default_rng(0).permutation(n)], splits)
    value = float(scores.mean())
    if splits < 2:
        return SetScore(value, n, picture_set.failures)
    from scipy.stats import t as student  # slow to import and rarely needed

    half = float(student.ppf(0.975, splits - 1) * scores.std(ddof=1) / np.sqrt(splits))
    return SetScore(value, n, picture_set.failures, value - half, value + half)


# How much the pictures of one prompt differ when only the seed does: mean distance of every two.
# Two decoders that sample the same law have the same diversity at each prompt; one that collapses has less.


class Distance(Protocol):
    """A named distance between pictures: LPIPS, or the cosine distance of a feature network."""

    @property
    def name(self) -> str:
        """Return the name that its scores have."""

    def pairwise(self, pictures: Sequence[Picture]) -> Float[np.ndarray, " pairs"]:
        """Return the distance of every two pictures."""


def diversity(groups: Mapping[str, Sequence[Picture]], net: Distance, failures: int = 0) -> SetScore:
    """Return the mean over prompts of the mean distance between two pictures of one; the interval resamples prompts.

    Args:
        groups: pictures by prompt id; prompts with fewer than two are left out.
    """
    several = {name: groups[name] for name in sorted(groups) if len(groups[name]) > 1}
    n = sum(map(len, several.values()))
    if not several:
        reason = "no prompt has two pictures; ask for two repetitions or more, at a temperature above 0"
        return SetScore(None, 0, failures, reason=reason)
    score = mean(tuple(several), [float(net.pairwise(group).mean()) for group in several.values()], failures)
    return replace(score, n=n)


@final
class Lpips:
    """LPIPS v0.1 on AlexNet: a learned distance between two pictures, by torchmetrics, which has its heads.

    Args:
        path: of torchvision's AlexNet weights.

    Raises:
        UsageError: torchmetrics or torchvision is not installed.
        WeightsError: the file does not fit.

    Source: Zhang et al. 2018, arXiv:1801.03924, eq. 1.
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
        import torch

        if len({picture.pixels.shape for picture in pictures}) > 1:
            raise OutputError("LPIPS compares pictures of one size; those of a prompt have several")
        batches = [torch.from_numpy(picture.pixels.copy()).permute(2, 0, 1)[None] for picture in pictures]
        scaled = [batch.float().to(device()) / 127.5 - 1 for batch in batches]
        with torch.inference_mode():
            return np.array([float(self._net(first, second)) for first, second in combinations(scaled, 2)])


RESIZES = ("", "lanczos-256", "bilinear-299")
"""How pictures are resized before CLIP's transform: not at all, as ADT-Tree's evaluation does, or as SJD's."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


@dataclass(frozen=True)
class Settings:
    """Settings of the scorers.

    Args:
        weights: folder of their weight files; "" is torch's checkpoint folder.
        reference: a folder of real pictures, or an .npz of statistics, for Frechet distances; the features of a folder
            are computed for every cell.
        minimum: fewest pictures of a Frechet distance; 0 takes the network's number.
        clip_model: open_clip's name of the model: one of OpenAI's ViT-L/14, ViT-B/16 and ViT-B/32, or another.
        clip_prefix: text before every prompt that CLIP reads.
        clip_resize: how pictures are resized before CLIP (``RESIZES``).
    """

    weights: str = ""
    reference: str = ""
    minimum: int = 0
    clip_model: str = OPENAI
    clip_weights: str = ""
    clip_prefix: str = ""
    clip_resize: str = ""


Scorer = Callable[[PictureSet, Settings], SetScore]


def _fd(picture_set: PictureSet, settings: Settings, net: type[FeatureNet]) -> SetScore:
    if not settings.reference:
        raise UsageError("reference is not set: give a folder of real pictures, or an .npz with mu and sigma")
    network = net.open(settings.weights)
    reference = _reference(Path(settings.reference).expanduser())
    return frechet(picture_set.pictures, reference, network, minimum=settings.minimum, failures=picture_set.failures)


def _clean_fid(picture_set: PictureSet, settings: Settings) -> SetScore:
    if settings.reference.endswith(".npz"):
        raise UsageError("reference is not a folder: statistics of pytorch-fid are of pictures resized in another way")
    return _fd(picture_set, settings, CleanInception)


def _kid(picture_set: PictureSet, settings: Settings) -> SetScore:
    reference = _reference(Path(settings.reference).expanduser()) if settings.reference else None
    if not isinstance(reference, list):
        raise UsageError("reference is not a folder: KID compares pictures, and an .npz of statistics is not enough")
    return kid(picture_set.pictures, reference, Inception.open(settings.weights), picture_set.failures)


def _clip(picture_set: PictureSet, settings: Settings) -> SetScore:
    from stridebench.tasks.metrics.clip import clip_score, open_clip

    clip = open_clip(settings.clip_model, settings.clip_weights, settings.weights)
    return clip_score(picture_set, clip, settings.clip_prefix, settings.clip_resize)


def _hps(picture_set: PictureSet, settings: Settings, published: weights.WeightFile) -> SetScore:
    from stridebench.tasks.metrics.clip import hpsv2, open_hps

    return hpsv2(picture_set, open_hps(published, settings.weights))


def _aesthetic(picture_set: PictureSet, settings: Settings) -> SetScore:
    from stridebench.tasks.metrics.clip import aesthetic, open_clip, open_head

    head = open_head(settings.weights)
    return aesthetic(picture_set, open_clip(OPENAI, "", settings.weights), head)


def _diversity(picture_set: PictureSet, settings: Settings, open_net: Callable[[str], Distance]) -> SetScore:
    return diversity(picture_set.groups(), open_net(settings.weights), picture_set.failures)


SCORERS: Mapping[str, Mapping[str, Scorer]] = {
    "fid": {"fid": partial(_fd, net=Inception)},
    "clean_fid_256": {"clean_fid_256": _clean_fid},
    "kid": {"kid": _kid},
    "fd_efflite0": {"fd_efflite0": partial(_fd, net=EffLite0)},
    "inception_score": {
        "inception_score": lambda picture_set, settings: inception_score(picture_set, Inception.open(settings.weights))
    },
    "clip_score": {"clip_score": _clip},
    "hpsv2": {"hpsv2": partial(_hps, published=weights.HPS_20)},
    "hpsv2.1": {"hpsv2.1": partial(_hps, published=weights.HPS_21)},
    "aesthetic": {"aesthetic": _aesthetic},
    "diversity": {
        "diversity_lpips": partial(_diversity, open_net=Lpips.open),
        "diversity_efflite0": partial(_diversity, open_net=EffLite0.open),
    },
}
"""Our scorers of a task and the scores that each reports. HPSv2.0 and v2.1 have different scales."""

FIGURES = tuple(figure for figures in SCORERS.values() for figure in figures)


def names(scorers: Sequence[str] | str) -> tuple[str, ...]:
    """Return the names of scorers in a sequence, or in one string that separates them by commas or spaces."""
    scorer_names = scorers.replace(",", " ").split() if isinstance(scorers, str) else list(scorers)
    for name in scorer_names:
        if name not in SCORERS and name not in PICTURE_SCORERS:
            raise UnknownNameError("picture scorer", name, [*SCORERS, *PICTURE_SCORERS])
    return tuple(dict.fromkeys(scorer_names))


def score(
    scorers: Sequence[str] | str, outputs: Sequence[Scored], settings: Settings, own: Mapping[str, Scorer] | None = None
) -> dict[str, SetScore]:
    """Return all scores. A score whose weights or package are missing has the reason and no value.

    Raises:
        UnknownNameError: there is no such scorer.
        ContractError: two outputs have the same prompt and repetition.
    """
    picture_set = sorted_pictures(outputs)
    functions = dict(own or {})
    for name in names(scorers):  # one of another package reports the score of its name
        functions |= SCORERS[name] if name in SCORERS else {name: PICTURE_SCORERS.get(name)}
    out = {}
    for figure, scorer in functions.items():
        try:
            out[figure] = scorer(picture_set, settings)
        except StrideError as error:
            out[figure] = SetScore(None, len(picture_set.pictures), picture_set.failures, reason=str(error))
    return out


def elsewhere(
    picture_set: PictureSet, settings: Settings, *, how: str, requirements: Sequence[weights.WeightFile] = ()
) -> SetScore:
    """Refuse a score whose detector or question answerer is not part of this package.

    Args:
        how: what judges, and how to get the score.
        requirements: files of the judge whose publisher states a hash.

    Raises:
        WeightsError: a file is missing, or not the published one.
        UsageError: all files are there; the message says how to use them.
    """
    for published in requirements:
        weights.find(published, settings.weights)
    raise UsageError(f"it is judged by {how}")


def _reference(path: Path) -> Gaussian | list[Picture]:
    return statistics(path) if path.suffix == ".npz" else [picture(file) for file in reference_files(path)]


def reference_files(path: Path) -> list[Path]:
    """Return the pictures of a reference, or its .npz of statistics, or raise UsageError if there are none."""
    if path.suffix == ".npz" and path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"the reference {path} is neither a folder of pictures nor an .npz of statistics")
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
    if not files:
        raise UsageError(f"the reference folder {path} holds no picture ({', '.join(SUFFIXES)})")
    return files


def picture(file: Path) -> Picture:
    """Read a picture file, or raise UsageError if the file cannot be read as a picture."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            return Picture(np.asarray(image.convert("RGB")))
    except OSError as error:
        raise UsageError(f"{file} cannot be read as a picture: {error}") from error
