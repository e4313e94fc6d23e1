"""GenEval: what a picture shows, judged from an object detector's boxes; six sub-scores and their mean.

Source: Ghosh et al. 2023, arXiv:2310.11513; djghosh13/geneval, evaluation/evaluate_images.py and summary_scores.py.
The detector (Mask2Former) and the colour classifier (CLIP) are not part of this: judgements are recorded elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from harness.core.task import SetScore
from tasks.loaders.files import json_lines, text_of
from tasks.metrics import image_weights as weights
from tasks.metrics.image_stats import draws, mean

TAGS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
FIGURES = (*(f"geneval_{tag}" for tag in TAGS), "geneval_overall")

THRESHOLD, COUNTING_THRESHOLD, MOST, POSITION = 0.3, 0.9, 16, 0.1

DETECTOR = weights.Weights(
    "mask2former_swin-s-p4-w7-224_lsj_8x2_50e_coco.pth",
    "download_models.sh of djghosh13/geneval",
    "c9d0c4f2",
)


@dataclass(frozen=True)
class Found:
    """A detected object. box: x0, y0, x1, y1 in pixels. score: the detector's. colour: the classifier's, if asked."""

    box: tuple[float, float, float, float]
    score: float
    colour: str = ""


@dataclass(frozen=True)
class Judgement:
    """Whether a picture shows what was asked for, and what it lacks."""

    correct: bool
    reasons: tuple[str, ...]


def kept(found: Mapping[str, Sequence[Found]], tag: str) -> dict[str, list[Found]]:
    """Objects of each class that count: above the threshold of the tag, the surest 16, surest first."""
    least = COUNTING_THRESHOLD if tag == "counting" else THRESHOLD
    ranked = {name: sorted(objects, key=lambda one: -one.score) for name, objects in found.items()}
    sure = {name: [one for one in objects if one.score > least][:MOST] for name, objects in ranked.items()}
    return {name: objects for name, objects in sure.items() if objects}


def relations(one: Found, other: Found) -> frozenset[str]:
    """Where ``one`` lies from ``other``: left of, right of, above, below; none where they are too close to say."""
    first, second = (np.array(thing.box).reshape(2, 2) for thing in (one, other))
    offset: Float[np.ndarray, 2] = first.mean(0) - second.mean(0)
    size = np.abs(first[1] - first[0]) + np.abs(second[1] - second[0])
    apart = np.maximum(np.abs(offset) - POSITION * size, 0) * np.sign(offset)
    if (np.abs(apart) < 1e-3).all():
        return frozenset()
    dx, dy = apart / np.linalg.norm(offset)
    said = {"left of": dx < -0.5, "right of": dx > 0.5, "above": dy < -0.5, "below": dy > 0.5}
    return frozenset(name for name, true in said.items() if true)


def judge(found: Mapping[str, Sequence[Found]], metadata: Mapping[str, Any]) -> Judgement:
    """Check every ``include`` and every ``exclude`` of a prompt's metadata against the objects that were kept.

    An ``include`` looks at its surest objects only, as many as it counts; positions at those of an earlier one.
    """
    reasons: list[str] = []
    groups: list[Sequence[Found]] = []
    for asked in metadata.get("include", ()):
        name, count = asked["class"], asked["count"]
        objects = list(found.get(name, ()))[:count]
        fault = _fault(objects, asked, groups)
        reasons.extend([fault] if fault else [])
        groups.append([] if fault else objects)
    for asked in metadata.get("exclude", ()):
        number = len(found.get(asked["class"], ()))
        if number >= asked["count"]:
            reasons.append(f"expected {asked['class']}<{asked['count']}, found {number}")
    return Judgement(not reasons, tuple(reasons))


def _fault(objects: Sequence[Found], asked: Mapping[str, Any], groups: Sequence[Sequence[Found]]) -> str:
    name, count = asked["class"], asked["count"]
    if len(objects) < count:
        return f"expected {name}>={count}, found {len(objects)}"
    if "color" in asked:
        right = sum(one.colour == asked["color"] for one in objects)
        if right < count:
            return f"expected {asked['color']} {name}>={count}, found {right}"
    if "position" in asked:
        relation, target = asked["position"]
        if not groups[target]:
            return f"no target for {name} to be {relation}"
        if not all(relation in relations(one, other) for one in objects for other in groups[target]):
            return f"expected {name} {relation} target"
    return ""


@dataclass(frozen=True)
class Result:
    """A picture's line in the official ``results.jsonl``. metadata: the prompt's, as text: what a prompt is told by."""

    tag: str
    metadata: str
    correct: bool


def read_results(path: Path) -> tuple[Result, ...]:
    """The lines of a ``results.jsonl`` that evaluate_images.py wrote.

    Raises:
        UsageError: it is missing, or a line is malformed.
    """
    out = []
    for where, row in json_lines(path, "GenEval results", "evaluate_images.py of djghosh13/geneval"):
        correct = row.get("correct")
        if not isinstance(correct, bool):
            raise where.fault(f"correct is {correct!r}, not true or false")
        tag = text_of(row, "tag", where)
        if tag not in TAGS:
            raise where.fault(f"tag is {tag!r}; known: {', '.join(TAGS)}")
        out.append(Result(tag, text_of(row, "metadata", where), correct))
    return tuple(out)


def summary(results: Sequence[Result], failures: int = 0) -> dict[str, SetScore]:
    """The share of right pictures in each family, and ``geneval_overall``, the mean of the six shares.

    The overall figure is given for complete sets only: the mean over fewer families is another figure.
    """
    parts = {tag: [result for result in results if result.tag == tag] for tag in TAGS}
    ids = {tag: [result.metadata for result in rows] for tag, rows in parts.items()}
    right = {tag: [float(result.correct) for result in rows] for tag, rows in parts.items()}
    out = {f"geneval_{tag}": mean(ids[tag], right[tag]) for tag in TAGS}
    lacking = [tag for tag in TAGS if not right[tag]]
    if lacking:
        overall = SetScore(None, len(results), failures, reason=f"no picture of {', '.join(lacking)}")
    else:
        value = float(np.mean([np.mean(right[tag]) for tag in TAGS]))
        drawn = np.mean([draws(ids[tag], right[tag], seed) for seed, tag in enumerate(TAGS)], axis=0)
        low, high = np.quantile(drawn, [0.025, 0.975])
        overall = SetScore(value, len(results), failures, float(low), float(high))
    return {**out, "geneval_overall": overall}
