"""GenEval: pictures are judged by the boxes of an object detector; six sub-scores and their mean.

Source: Ghosh et al. 2023, arXiv:2310.11513; djghosh13/geneval, evaluation/evaluate_images.py and summary_scores.py.
The detector (Mask2Former) and the colour classifier (CLIP) are not part of this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stridebench.harness.core.task import SetScore
from stridebench.harness.record import stats
from stridebench.harness.synthetic.emoji import OBJECT, SMOOTH, TEXTURED
from stridebench.tasks.loaders.files import json_lines, text_of
from stridebench.tasks.metrics import image_weights as weights
from stridebench.tasks.metrics.features import by_prompt, mean, with_interval

if TYPE_CHECKING:
    from jaxtyping import Float, Int8


TAGS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
FIGURES = (*(f"geneval_{tag}" for tag in TAGS), "geneval_overall")

POSITION = 0.1

DETECTOR = weights.WeightFile(
    "mask2former_swin-s-p4-w7-224_lsj_8x2_50e_coco.pth",
    "download_models.sh of djghosh13/geneval",
    "c9d0c4f2",
)


@dataclass(frozen=True)
class Detection:
    """A detected object.

    Args:
        box: x0, y0, x1, y1 in pixels.
        colour: of the classifier; "" if it was not asked.
    """

    box: tuple[float, float, float, float]
    score: float
    colour: str = ""


@dataclass(frozen=True)
class Judgement:
    """Whether a picture satisfies its prompt, and the faults that were found."""

    correct: bool
    reasons: tuple[str, ...]


def relations(first_object: Detection, second_object: Detection) -> frozenset[str]:
    """Return the direction of the first object from the second: left of, right of, above, below; none if close."""
    corners, other_corners = (np.array(thing.box).reshape(2, 2) for thing in (first_object, second_object))
    offset: Float[np.ndarray, 2] = corners.mean(0) - other_corners.mean(0)
    size = np.abs(corners[1] - corners[0]) + np.abs(other_corners[1] - other_corners[0])
    margin = np.maximum(np.abs(offset) - POSITION * size, 0) * np.sign(offset)
    if (np.abs(margin) < 1e-3).all():
        return frozenset()
    dx, dy = margin / np.linalg.norm(offset)
    holds = {"left of": dx < -0.5, "right of": dx > 0.5, "above": dy < -0.5, "below": dy > 0.5}
    return frozenset(name for name, applies in holds.items() if applies)


def judge(detections: Mapping[str, Sequence[Detection]], metadata: Mapping[str, Any]) -> Judgement:
    """Check every ``include`` and every ``exclude`` of a prompt's metadata against the detections.

    An ``include`` uses its most confident objects, as many as it counts. A position refers to an earlier entry.
    """
    reasons: list[str] = []
    groups: list[Sequence[Detection]] = []
    for entry in metadata.get("include", ()):
        name, count = entry["class"], entry["count"]
        objects = list(detections.get(name, ()))[:count]
        fault = _fault(objects, entry, groups)
        reasons.extend([fault] if fault else [])
        groups.append([] if fault else objects)
    for entry in metadata.get("exclude", ()):
        number = len(detections.get(entry["class"], ()))
        if number >= entry["count"]:
            reasons.append(f"expected {entry['class']}<{entry['count']}, found {number}")
    return Judgement(not reasons, tuple(reasons))


def _fault(objects: Sequence[Detection], entry: Mapping[str, Any], groups: Sequence[Sequence[Detection]]) -> str:
    name, count = entry["class"], entry["count"]
    if len(objects) < count:
        return f"expected {name}>={count}, found {len(objects)}"
    if "color" in entry:
        right = sum(one.colour == entry["color"] for one in objects)
        if right < count:
            return f"expected {entry['color']} {name}>={count}, found {right}"
    if "position" in entry:
        relation, target = entry["position"]
        if not groups[target]:
            return f"no target for {name} to be {relation}"
        if not all(relation in relations(one, other) for one in objects for other in groups[target]):
            return f"expected {name} {relation} target"
    return ""


@dataclass(frozen=True)
class GenEvalResult:
    """A picture's line in the official ``results.jsonl``; the text of ``metadata`` identifies the prompt.

    ``file`` is the picture that was judged; "" if the line names none.
    """

    tag: str
    metadata: str
    correct: bool
    file: str = ""


def read_results(path: Path) -> tuple[GenEvalResult, ...]:
    """Read a ``results.jsonl`` of evaluate_images.py."""
    out = []
    for where, row in json_lines(path, "GenEval results", "evaluate_images.py of djghosh13/geneval"):
        correct = row.get("correct")
        if not isinstance(correct, bool):
            raise where.fault(f"correct is {correct!r}, not true or false")
        tag = text_of(row, "tag", where)
        if tag not in TAGS:
            raise where.fault(f"tag is {tag!r}; known: {', '.join(TAGS)}")
        metadata, file = text_of(row, "metadata", where), row.get("filename", "")
        try:
            json.loads(metadata)
        except (ValueError, RecursionError) as error:
            raise where.fault(f"metadata is {metadata!r:.80}, not a JSON object in a text") from error
        out.append(GenEvalResult(tag, metadata, correct, file if isinstance(file, str) else ""))
    return tuple(out)


def summary(results: Sequence[GenEvalResult], failures: int = 0) -> dict[str, SetScore]:
    """Return the share of right pictures in each family, and ``geneval_overall``, the mean of the six shares.

    Only complete sets have the overall score, because a mean over fewer families cannot be compared with it.
    """
    parts = {tag: [result for result in results if result.tag == tag] for tag in TAGS}
    ids = {tag: [result.metadata for result in rows] for tag, rows in parts.items()}
    right = {tag: [float(result.correct) for result in rows] for tag, rows in parts.items()}
    out = {f"geneval_{tag}": mean(ids[tag], right[tag], within=(0, 1)) for tag in TAGS}
    lacking = [tag for tag in TAGS if not right[tag]]
    if lacking:
        overall = SetScore(None, len(results), failures, reason=f"no picture of {', '.join(lacking)}")
    else:
        families = stats.mean_of_groups([by_prompt(ids[tag], right[tag]) for tag in TAGS])
        overall = with_interval(families, len(results), failures)
    return {**out, "geneval_overall": overall}


# What a picture shows of its prompt, from the detected objects: GenEval's judgement, as a whole and by aspect.
# Source: Ghosh et al. 2023, arXiv:2310.11513, section 3; the rules are those of ``tasks.metrics.geneval``. The
# detector is another module.


@dataclass(frozen=True)
class DetectedObject:
    """One object in a picture.

    Args:
        colour: "" if it has none.
        x: centre in pixels, to the right.
        y: centre in pixels, down.
        side: of its square box in pixels.
        score: confidence, 0 to 1.
    """

    kind: str
    colour: str
    x: float
    y: float
    side: float
    score: float = 1.0

    def detection(self) -> Detection:
        """Return the object in GenEval's terms."""
        half = self.side / 2
        box = (self.x - half, self.y - half, self.x + half, self.y + half)
        return Detection(box, self.score, self.colour)


def judge_attributes(objects: Sequence[DetectedObject], prompt: Mapping[str, Any]) -> dict[str, float]:
    """Score one picture; each score is 0 or 1 and is GenEval's judgement of the prompt reduced to one aspect.

    Args:
        prompt: a prompt in GenEval's layout: tag, include (class, count, and color or position if the prompt names
            them), exclude (class, count).

    Returns:
        ``object``: each class of the prompt is there at least once. ``overall``: all that GenEval requires holds.
        If the prompt asks for them, ``count``: the number is exact; ``colour`` and ``position``: they hold for the
        most confident objects of each class, as many as the prompt counts.
    """
    groups: dict[str, list[Detection]] = {}
    for thing in sorted(objects, key=lambda thing: -thing.score):
        groups.setdefault(thing.kind, []).append(thing.detection())
    include, exclude = prompt["include"], prompt.get("exclude", ())
    parts = {"object": {"include": [{"class": entry["class"], "count": 1} for entry in include]}, "overall": prompt}
    if exclude:
        parts["count"] = {"include": _without(include, "color", "position"), "exclude": exclude}
    if any("color" in entry for entry in include):
        parts["colour"] = {"include": _without(include, "position")}
    if any("position" in entry for entry in include):
        parts["position"] = {"include": _without(include, "color")}
    return {name: float(judge(groups, part).correct) for name, part in parts.items()}


def _without(include: Sequence[Mapping[str, Any]], *keys: str) -> list[dict[str, object]]:
    return [{key: value for key, value in entry.items() if key not in keys} for entry in include]


def regions(
    objects: Sequence[DetectedObject], textured: bool, cells: int = 16, pixels: int = 64
) -> Int8[np.ndarray, "cells cells"]:
    """Return the region of each token's cell in a generated picture: OBJECT if its middle lies in a detected box."""
    middle = (np.arange(cells) + 0.5) * pixels / cells
    out = np.full((cells, cells), TEXTURED if textured else SMOOTH, dtype=np.int8)
    for thing in objects:
        rows, columns = (np.abs(middle - centre) < thing.side / 2 for centre in (thing.y, thing.x))
        out[np.ix_(rows, columns)] = OBJECT
    return out
