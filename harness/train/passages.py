"""Passages of a backbone to train drafters of it on: made once with a fixed seed, and kept in the cache.

`Teacher.read` gives hidden rows (any taps) and logits of a passage. The prompts of the two sides differ by a hash of
their text, and no benchmark's are among them: scenes and programs are those that are not held out, texts are of
Python's library. Scenes of either split may have one caption, so passages of captions that the task asks for are
dropped. Digits have ten captions, shared by all; their pictures differ by the draws alone.
An interrupted generation goes on where it stopped, and a larger plan keeps what a smaller one made.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import islice
from typing import Literal

import numpy as np

from harness.core.draws import SeededDraws
from harness.core.sampling import Sampling
from harness.core.task import Prompt
from harness.errors import UsageError
from harness.synthetic import digits, emoji
from harness.synthetic.code import programs
from harness.train.prompts import prefixes
from harness.train.teacher import Passage, Teacher

Side = Literal["train", "development"]
SIDES: tuple[Side, Side] = ("train", "development")
World = Literal["text", "code", "scenes", "digits"]
TEMPERATURES = (0.0, 0.7, 1.0)
"""Of the batches, in turn, where a plan has none of its own; of pictures 1."""
ONE_IN = 8
"""One prompt in so many is of the development side."""
LONGEST = 600
"""Characters of a prompt."""
ASKED = 1000, 512
"""Seed and number of the scenes whose captions the task emoji_scenes asks for, unless it is told otherwise."""
DRAWN = 20_000
"""Programs and scenes that prompts are taken from."""


@dataclass(frozen=True)
class Plan:
    """What is generated.

    Args:
        world: where prompts come from. train, development: batches of each side. rows: passages of a batch.
        new: tokens added; a picture has as many as it has. seed: of prompts and draws. temperature: None is usual.
    """

    world: World
    train: int = 8
    development: int = 2
    rows: int = 64
    new: int = 128
    seed: int = 0
    temperature: float | None = None


@dataclass(frozen=True)
class Distilled:
    """A backbone, and its passages."""

    teacher: Teacher
    train: list[Passage]
    development: list[Passage]


def distilled(backbone: str, plan: Plan) -> Distilled:
    """The passages, generated where the cache does not hold them yet; says so on standard error.

    Raises:
        UsageError: there is no such backbone, or too few prompts for the plan. WeightsError: its weights cannot be had.
    """
    teacher = Teacher.load(backbone)
    return Distilled(teacher, *(_passages(teacher, plan, side) for side in SIDES))


def side_of(text: str) -> Side:
    """Told by the prompt's text alone."""
    return "development" if hashlib.sha256(text.encode()).digest()[2] % ONE_IN == 0 else "train"


@lru_cache(maxsize=4)
def prompts(world: World, seed: int, side: Side, count: int) -> tuple[str, ...]:
    """Texts of one side, the first in the order of a seed; but for those of digits, all different.

    Raises:
        UsageError: there are not so many.
    """
    if world == "digits":
        return tuple(digits.caption(index % digits.CLASSES) for index in range(count))
    found: dict[str, None] = {}
    for text in _drawn(world, seed):
        if side_of(text) == side:
            found[text] = None
        if len(found) == count:
            return tuple(found)
    raise UsageError(
        f"the world {world!r} has {len(found)} {side} prompts and {count} are asked for; plan fewer batches"
    )


def _drawn(world: World, seed: int) -> Iterator[str]:
    random = np.random.default_rng(seed)
    if world == "text":
        return (text[:LONGEST] for text in prefixes(seed, procedural=1000))
    if world == "code":
        return (program.head for program in islice(programs(random, held_out=False), DRAWN))
    return (emoji.caption(emoji.scene(random, "train")) for _ in range(DRAWN))


def _passages(teacher: Teacher, plan: Plan, side: Side) -> list[Passage]:
    """All of a side, batch by batch; each is written whole or not at all."""
    batches = plan.train if side == "train" else plan.development
    fixed = {key: value for key, value in asdict(plan).items() if key not in SIDES and value is not None}
    mark = hashlib.sha256(repr(sorted(fixed.items())).encode()).hexdigest()[:8]
    found: list[Passage] = []
    for number in range(batches):
        path = teacher.home / f"{mark}-{side}-{number:03}.json"
        if not path.is_file():
            print(f"{teacher.backbone.name}: {side} passages {number + 1} of {batches}", file=sys.stderr, flush=True)
            texts = prompts(plan.world, plan.seed, side, batches * plan.rows)
            made = _made(teacher, plan, side, number, texts[number * plan.rows :][: plan.rows])
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            part.write_text(json.dumps([[passage.start, *passage.tokens] for passage in made]), encoding="utf-8")
            part.replace(path)
        found += [Passage(tuple(ids), start) for start, *ids in json.loads(path.read_text(encoding="utf-8"))]
    texts, asked = prompts(plan.world, plan.seed, side, len(found)), captions() if plan.world == "scenes" else ()
    return [passage for text, passage in zip(texts, found, strict=True) if text not in asked]


@lru_cache(maxsize=1)
def captions() -> frozenset[str]:
    """What the task emoji_scenes asks for."""
    return frozenset(emoji.caption(scene) for scene in emoji.scenes(ASKED[0], "held-out", ASKED[1]))


def _made(teacher: Teacher, plan: Plan, side: Side, number: int, texts: Sequence[str]) -> list[Passage]:
    usual = 1.0 if plan.world in ("scenes", "digits") else TEMPERATURES[number % len(TEMPERATURES)]
    draws = SeededDraws(plan.seed, "distilled", side, number, teacher.backbone.device)
    asked = [Prompt(f"{side}/{number}/{index}", text) for index, text in enumerate(texts)]
    return teacher.continued(asked, plan.new, Sampling(usual if plan.temperature is None else plan.temperature), draws)
