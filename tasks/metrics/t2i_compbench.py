"""T2I-CompBench++: each category's own score of a picture, from recorded answers and detections.

Source: Huang et al. 2023, arXiv:2307.06350 (and its ++ edition); Karine-Huang/T2I-CompBench: BLIPvqa_eval, UniDet_eval
(2D, 3D, numeracy), CLIPScore_eval, 3_in_1_eval; their quirks included. BLIP-VQA, UniDet, the depth net and the parser
that finds a prompt's nouns are not part of this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float

from harness.core.task import SetScore
from harness.errors import ContractError
from tasks.loaders.files import Where, json_file
from tasks.metrics.box_relations import LOCALITIES_3D, Box, position_2d, position_3d, same
from tasks.metrics.image_stats import mean

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
"""What the detector calls some of the benchmark's objects; "telivision" is the benchmark's spelling."""

Kind = Literal["spatial", "action", "both"]


@dataclass(frozen=True)
class Found:
    """A detected object. name: the detector's label. box: x0, y0, x1, y1 in pixels. score: the detector's."""

    name: str
    box: Box
    score: float = 1.0


def blip_vqa(answers: Sequence[float | None]) -> float:
    """Colour, shape, texture: the product of P(yes) over a prompt's noun phrases, to four digits.

    Args:
        answers: of each noun phrase; None: the prompt has no such phrase, which counts as 1.
    """
    return round(math.prod(1.0 if answer is None else answer for answer in answers), 4)


def locality(prompt: str, known: Sequence[str] = LOCALITIES_2D) -> str | None:
    """The first of the known relations, in their order, that the prompt contains."""
    return next((word for word in known if word in prompt), None)


def spatial_2d(prompt: str, first: str, second: str, found: Sequence[Found]) -> float:
    """A quarter of each object's detection score and half of their position; below 0.5 nothing.

    Args:
        first, second: the prompt's first and last noun.
    """
    names, nouns = [thing.name for thing in found], [_person(first), _person(second)]
    places = [names.index(noun) if noun in names else None for noun in nouns]
    score = _scores(found, places)
    if places[0] is not None and places[1] is not None:
        score += position_2d(locality(prompt), found[places[0]].box, found[places[1]].box) / 2
    return 0.0 if score < 0.5 else score


def spatial_3d(prompt: str, first: str, second: str, found: Sequence[Found], depth: Float[np.ndarray, "A B"]) -> float:
    """As in two dimensions, but a label need only contain the noun, and nothing is cut off.

    Of several matching detections the official code takes the last one it meets before it has both nouns.
    """
    nouns = [_person(first), _person(second)]
    together = " ".join(thing.name for thing in found)
    places = [_place(found, nouns, which) if nouns[which] in together else None for which in (0, 1)]
    score = _scores(found, places)
    if places[0] is not None and places[1] is not None:
        one, other = found[places[0]].box, found[places[1]].box
        score += position_3d(locality(prompt, LOCALITIES_3D), one, other, depth) / 2
    return score


def numeracy(asked: Sequence[tuple[str, int]], found: Sequence[Found]) -> float:
    """For each object of the prompt half its share for being there and half for its exact number.

    Args:
        asked: the prompt's objects, in the singular, and how many of each.

    Raises:
        ContractError: no object is asked for.
    """
    if not asked:
        raise ContractError("a numeracy prompt names no object; give the objects that the parser found in it")
    names = [thing.name for thing in _distinct(found)]
    score, share = 0.0, 1.0 / len(asked)
    for noun, number in asked:
        name = ALIASES.get(noun, noun)
        if name not in names:
            names = [name if name in label else label for label in names]
        if name in names:
            score += share / 2 + (share / 2 if names.count(name) == number else 0.0)
    return score


def three_in_one(attribute: float, spatial: float, action: float, kind: Kind) -> float:
    """Complex prompts: the mean of the scores that apply to what the prompt's file says of it."""
    parts = {"spatial": (spatial, attribute), "action": (action, attribute), "both": (attribute, spatial, action)}[kind]
    return sum(parts) / len(parts)


def kind_of(prompt: str, spatial: Sequence[str], action: Sequence[str]) -> Kind:
    """What a complex prompt is about, by the files ``complex_val_spatial.txt`` and ``complex_val_action.txt``."""
    plain = _plain(prompt)
    return "spatial" if plain in map(_plain, spatial) else "action" if plain in map(_plain, action) else "both"


def read_results(path: Path) -> dict[int, float]:
    """Scores of a ``vqa_result.json``, by question id; numbers may be written as text.

    Raises:
        UsageError: it is missing or malformed.
    """
    held = json_file(path, "T2I-CompBench results", "the evaluation of Karine-Huang/T2I-CompBench")
    out: dict[int, float] = {}
    for index, row in enumerate(held if isinstance(held, list) else [held]):
        try:
            number, value = int(row["question_id"]), float(row["answer"])
        except (TypeError, KeyError, ValueError) as error:
            raise Where(path, index + 1, "entry").fault("expected {question_id: a number, answer: a number}") from error
        if number in out:
            raise Where(path, index + 1, "entry").fault(f"question_id {number} is there twice")
        out[number] = value
    return out


def summary(results: Mapping[str, Mapping[int, float]], per_prompt: int = 10) -> dict[str, SetScore]:
    """The mean of each category. Question ids count pictures, ``per_prompt`` of one prompt after the other.

    Args:
        results: by category, then by question id.
    """
    out = {}
    for name in CATEGORIES:
        rows = sorted(results.get(name, {}).items())
        out[f"t2i_{name}"] = mean([str(number // per_prompt) for number, _ in rows], [value for _, value in rows])
    return out


def _person(noun: str) -> str:
    """Where objects stand in a relation, people are renamed for the detector, and nothing else is."""
    return "person" if ALIASES.get(noun) == "person" else noun


def _plain(prompt: str) -> str:
    return prompt.strip("\n").split(".")[0].lower()


def _scores(found: Sequence[Found], places: Sequence[int | None]) -> float:
    """A quarter of the score of each object that is there."""
    return sum(0.25 * found[place].score for place in places if place is not None)


def _place(found: Sequence[Found], nouns: Sequence[str], which: int) -> int | None:
    """The detection of one of two nouns; a noun that is alone is taken at its first."""
    together = " ".join(thing.name for thing in found)
    if not all(noun in together for noun in nouns):
        return next((i for i, thing in enumerate(found) if nouns[which] in thing.name), None)
    places: list[int | None] = [None, None]
    for i, thing in enumerate(found):
        places = [i if noun in thing.name else place for noun, place in zip(nouns, places, strict=True)]
        if None not in places:
            break
    return places[which]


def _distinct(found: Sequence[Found]) -> list[Found]:
    """Without later boxes of a label that nearly lie on, in or around an earlier one of it (nine tenths shared)."""
    out: list[Found] = []
    for thing in found:
        if not any(thing.name == other.name and same(thing.box, other.box) for other in out):
            out.append(thing)
    return out
