"""T2I-CompBench++: the score of a picture in each category, from recorded answers and detections.

Source: Huang et al. 2023, arXiv:2307.06350 (and its ++ edition); Karine-Huang/T2I-CompBench: BLIPvqa_eval, UniDet_eval
(2D, 3D, numeracy), CLIPScore_eval, 3_in_1_eval; their peculiarities are kept. BLIP-VQA, UniDet, the depth network and
the parser of nouns are not part of this module.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from stridebench.harness.core.task import SetScore
from stridebench.harness.errors import ContractError
from stridebench.tasks.loaders.files import Where, json_file
from stridebench.tasks.metrics.features import mean

if TYPE_CHECKING:
    from jaxtyping import Float


# Spatial relations of boxes, as T2I-CompBench++ scores them.
# Source: Karine-Huang/T2I-CompBench, UniDet_eval/2D_spatial_eval.py, 3D_spatial_eval.py, numeracy_eval.py.


Box = tuple[float, float, float, float]
"""x0, y0, x1, y1 in pixels."""

BESIDE = ("next to", "on side of", "near")
LOCALITIES_3D = ("in front of", "behind", "hidden")


def position_2d(relation: str | None, one: Box, other: Box, *, overlap: float = 0.1, near: float = 150) -> float:
    """Score how well two boxes have a relation, in [0, 1]. "on top of" scores 0, as in the official code."""
    dx, dy = ((other[at] + other[at + 2] - one[at] - one[at + 2]) / 2 for at in (0, 1))
    if relation in BESIDE:
        return 1.0 if abs(dx) < near or abs(dy) < near else near / max(abs(dx), abs(dy))
    offsets = {
        "on the right of": (-dx, dy),
        "on the left of": (dx, dy),
        "on the bottom of": (-dy, dx),
        "on the top of": (dy, dx),
    }
    if relation not in offsets:
        return 0.0
    ahead, sideways = offsets[relation]
    if ahead <= 0 or abs(ahead) <= abs(sideways):
        return 0.0
    shared = iou(one, other)
    return 1.0 if shared < overlap else overlap / shared


def position_3d(
    relation: str | None, one: Box, other: Box, depth: Float[np.ndarray, "A B"], *, overlap: float = 0.5
) -> float:
    """Score how well one box is before or behind another, in [0, 1]; larger depth values are nearer.

    The depth map is indexed [x, y], as in the official code.
    """
    if relation not in LOCALITIES_3D:
        return position_2d(relation, one, other)
    means = [depth[int(b[0]) : int(b[2]), int(b[1]) : int(b[3])].mean() for b in (one, other)]
    shared, ahead = iou(one, other), float(means[0] - means[1])
    holds = ahead > 0 if relation == "in front of" else ahead < 0
    if not holds or shared == overlap:
        return 0.0
    return 1.0 if shared > overlap else shared / overlap


def iou(one: Box, other: Box) -> float:
    """Return the intersection over union of two boxes of areas above 0."""
    width = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    height = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return width * height / (areas - width * height)


def same(one: Box, other: Box) -> bool:
    """Return whether nine tenths of the pixels of one box lie in the other."""
    width = max(0.0, min(one[2], other[2]) - max(one[0], other[0]) + 1)
    height = max(0.0, min(one[3], other[3]) - max(one[1], other[1]) + 1)
    areas = [(box[2] - box[0] + 1) * (box[3] - box[1] + 1) for box in (one, other)]
    shared = width * height
    return shared / (sum(areas) - shared) > 0.9 or any(shared / area > 0.9 for area in areas)


CATEGORIES = ("color", "shape", "texture", "spatial", "3d_spatial", "numeracy", "non_spatial", "complex")
FIGURES = tuple(f"t2i_{name}" for name in CATEGORIES)

LOCALITIES_2D = (
    *("on side of", "next to", "near", "on the left of", "on the right of"),
    *("on the bottom of", "on the top of", "on top of"),
)
ALIASES = {
    **dict.fromkeys(("boy", "girl", "man", "woman"), "person"),
    "ship": "boat",
    "telivision": "tv",
    "goldfish": "fish",
    "painting": "picture",
}
"""The detector's names of some of the benchmark's objects; "telivision" is the benchmark's spelling."""

Kind = Literal["spatial", "action", "both"]


@dataclass(frozen=True)
class T2IDetection:
    """A detected object.

    Args:
        name: label of the detector.
        box: x0, y0, x1, y1 in pixels.
        score: of the detector.
    """

    name: str
    box: Box
    score: float = 1.0


def blip_vqa(answers: Sequence[float | None]) -> float:
    """Score colour, shape or texture: the product of P(yes) over a prompt's noun phrases, to four digits.

    Args:
        answers: of each noun phrase; None, if the prompt lacks such a phrase, counts as 1.
    """
    return round(math.prod(1.0 if answer is None else answer for answer in answers), 4)


def locality(prompt: str, relations: Sequence[str] = LOCALITIES_2D) -> str | None:
    """Return the first of the relations, in their order, that the prompt contains."""
    return next((word for word in relations if word in prompt), None)


def spatial_2d(prompt: str, first: str, second: str, detections: Sequence[T2IDetection]) -> float:
    """Return a quarter of each object's detection score and half of their position, or 0 if that is below 0.5.

    Args:
        prompt: the prompt.
        first: its first noun.
        second: its last noun.
        detections: of the picture.
    """
    names, nouns = [thing.name for thing in detections], [_person(first), _person(second)]
    places = [names.index(noun) if noun in names else None for noun in nouns]
    score = _scores(detections, places)
    if places[0] is not None and places[1] is not None:
        score += position_2d(locality(prompt), detections[places[0]].box, detections[places[1]].box) / 2
    return 0.0 if score < 0.5 else score


def spatial_3d(
    prompt: str, first: str, second: str, detections: Sequence[T2IDetection], depth: Float[np.ndarray, "A B"]
) -> float:
    """Return the score of three dimensions: a label must only contain the noun, and scores below 0.5 count.

    Of several matching detections the official code takes the last one before both nouns have a match.
    """
    nouns = [_person(first), _person(second)]
    labels = " ".join(thing.name for thing in detections)
    places = [_place(detections, nouns, which) if nouns[which] in labels else None for which in (0, 1)]
    score = _scores(detections, places)
    if places[0] is not None and places[1] is not None:
        first_box, second_box = detections[places[0]].box, detections[places[1]].box
        score += position_3d(locality(prompt, LOCALITIES_3D), first_box, second_box, depth) / 2
    return score


def numeracy(objects: Sequence[tuple[str, int]], detections: Sequence[T2IDetection]) -> float:
    """Score numbers: an object gives half its share if it is there and half if its number is exact.

    Args:
        objects: the prompt's objects, in the singular, and the number of each.
        detections: of the picture.

    Raises:
        ContractError: the prompt names no object.
    """
    if not objects:
        raise ContractError("a numeracy prompt names no object; give the objects that the parser found in it")
    names = [thing.name for thing in _distinct(detections)]
    score, share = 0.0, 1.0 / len(objects)
    for noun, number in objects:
        name = ALIASES.get(noun, noun)
        if name not in names:
            names = [name if name in label else label for label in names]
        if name in names:
            score += share / 2 + (share / 2 if names.count(name) == number else 0.0)
    return score


def three_in_one(attribute: float, spatial: float, action: float, kind: Kind) -> float:
    """Score a complex prompt: the mean of the scores that apply to its kind."""
    parts = {"spatial": (spatial, attribute), "action": (action, attribute), "both": (attribute, spatial, action)}[kind]
    return sum(parts) / len(parts)


def kind_of(prompt: str, spatial: Sequence[str], action: Sequence[str]) -> Kind:
    """Return the kind of a complex prompt, by ``complex_val_spatial.txt`` and ``complex_val_action.txt``."""
    first_sentence = _first_sentence(prompt)
    return (
        "spatial"
        if first_sentence in map(_first_sentence, spatial)
        else "action"
        if first_sentence in map(_first_sentence, action)
        else "both"
    )


def read_results(path: Path) -> dict[int, float]:
    """Read the scores of a ``vqa_result.json`` by question id; numbers may be written as text.

    Raises:
        UsageError: the file is missing or malformed.
    """
    rows = json_file(path, "T2I-CompBench results", "the evaluation of Karine-Huang/T2I-CompBench")
    out: dict[int, float] = {}
    for index, row in enumerate(rows if isinstance(rows, list) else [rows]):
        try:
            number, value = int(row["question_id"]), float(row["answer"])
        except (TypeError, KeyError, ValueError) as error:
            raise Where(path, index + 1, "entry").fault("expected {question_id: a number, answer: a number}") from error
        if number in out:
            raise Where(path, index + 1, "entry").fault(f"question_id {number} is there twice")
        out[number] = value
    return out


def summary(results: Mapping[str, Mapping[int, float]], per_prompt: int = 10) -> dict[str, SetScore]:
    """Return the mean of each category. Question ids count pictures, ``per_prompt`` for each prompt in turn.

    Args:
        results: by category, then by question id.
        per_prompt: pictures of a prompt.
    """
    out = {}
    for name in CATEGORIES:
        rows = sorted(results.get(name, {}).items())
        out[f"t2i_{name}"] = mean([str(number // per_prompt) for number, _ in rows], [value for _, value in rows])
    return out


def _person(noun: str) -> str:
    """Rename people for the detector; relations use no other alias."""
    return "person" if ALIASES.get(noun) == "person" else noun


def _first_sentence(prompt: str) -> str:
    return prompt.strip("\n").split(".")[0].lower()


def _scores(detections: Sequence[T2IDetection], places: Sequence[int | None]) -> float:
    """Return a quarter of the score of each detected object."""
    return sum(0.25 * detections[place].score for place in places if place is not None)


def _place(detections: Sequence[T2IDetection], nouns: Sequence[str], which: int) -> int | None:
    """Return the detection of one of two nouns; if only one noun is detected, its first detection."""
    labels = " ".join(thing.name for thing in detections)
    if not all(noun in labels for noun in nouns):
        return next((i for i, thing in enumerate(detections) if nouns[which] in thing.name), None)
    places: list[int | None] = [None, None]
    for i, thing in enumerate(detections):
        places = [i if noun in thing.name else place for noun, place in zip(nouns, places, strict=True)]
        if None not in places:
            break
    return places[which]


def _distinct(detections: Sequence[T2IDetection]) -> list[T2IDetection]:
    """Leave out boxes that share nine tenths with an earlier box of the same label."""
    out: list[T2IDetection] = []
    for thing in detections:
        if not any(thing.name == other.name and same(thing.box, other.box) for other in out):
            out.append(thing)
    return out
