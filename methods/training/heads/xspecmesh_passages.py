"""Meshes that a backbone makes of sampled point clouds, to train heads on: made once with a fixed seed, and cached.

Shapes are of the training split on both sides, of other seeds; the test split is the benchmark's.
Symbols: D heads, M rows of a condition, C wide.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from harness.core.draws import SeededDraws
from harness.core.sampling import Sampling
from harness.core.task import Prompt
from harness.synthetic import shapes
from harness.train.teacher import Passage, Teacher
from methods.training.heads.examples import Examples, examples

POINTS = 1024
BATCH = 16
"""Passages of a file of the cache."""
SAMPLING = Sampling(temperature=0.5, top_k=50, top_p=0.95, order="filter_first")
"""BPT's own, as in the suites."""


@dataclass(frozen=True)
class Shapes:
    """How many shapes of each side, and tokens of each at most."""

    train: int = 640
    development: int = 64
    new: int = 1023

    def sides(self, teacher: Teacher, heads: int) -> tuple[Meshes, Meshes]:
        """Those to train on and those to measure on, with what D heads are to guess."""
        asked = (("train", self.train), ("development", self.development))
        train, check = (Meshes.read(teacher, drawn(teacher, side, count, self.new), heads) for side, count in asked)
        return train, check


def drawn(teacher: Teacher, side: str, count: int, new: int) -> list[Passage]:
    """The first shapes of a side; more of them keep what fewer made."""
    found: list[Passage] = []
    for number in range(-(-count // BATCH)):
        prompts = [_prompt(side, number * BATCH + index) for index in range(BATCH)]
        path = teacher.home / f"shapes-{new}-{side}-{number:04}.json"
        if not path.is_file():
            print(
                f"{teacher.backbone.name}: {side} shapes from {number * BATCH} of {count}", file=sys.stderr, flush=True
            )
            draws = SeededDraws(0, "distilled", side, number, teacher.backbone.device)
            rows = [[made.start, *made.tokens] for made in teacher.continued(prompts, new, SAMPLING, draws)]
            path.parent.mkdir(parents=True, exist_ok=True)
            component = path.with_suffix(".part")
            component.write_text(json.dumps(rows), encoding="utf-8")
            component.replace(path)
        kept = zip(json.loads(path.read_text(encoding="utf-8")), prompts, strict=True)
        found += [Passage(tuple(ids), start, prompt.condition) for (start, *ids), prompt in kept]
    return found[:count]


def _prompt(side: str, index: int) -> Prompt:
    random = np.random.default_rng([*side.encode(), index])
    one = shapes.shape(random, "train")
    return Prompt(f"{side}/{index}", condition=shapes.points(one.mesh, POINTS, random))


class Meshes(NamedTuple):
    """Passages, their rows, and what the backbone made of the points of each."""

    passages: Sequence[Passage]
    rows: Examples
    conditions: Float[Tensor, "P M C"]

    @staticmethod
    def read(teacher: Teacher, passages: Sequence[Passage], heads: int) -> Meshes:
        """One pass a passage."""
        conditions = torch.stack([teacher.condition(passage) for passage in passages])
        return Meshes(passages, examples(teacher, passages, heads), conditions)

    def of(self, number: int) -> Examples:
        """Rows of one passage; none where it was too short to have any."""
        begin, end = torch.searchsorted(self.rows.passage, torch.tensor([number, number + 1])).tolist()
        return Examples(*(component[begin:end] for component in self.rows))

    def each(self) -> Iterator[tuple[int, Examples]]:
        """Number and rows of every passage that has some."""
        for number in range(len(self.passages)):
            if len((found := self.of(number)).rows):
                yield number, found
