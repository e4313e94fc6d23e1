"""Meshes that a backbone generates from point clouds, to train heads on; see `stridebench.harness.train.passages`.

Both sides draw shapes of the training split, with different seeds. The test split belongs to the benchmark.
Symbols: D heads, M rows of a condition, C its width.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.task import Prompt
from stridebench.harness.synthetic import shapes
from stridebench.harness.synthetic.shape_data import DATA
from stridebench.harness.train.backbones.shapes_mesh_data import POINTS, SAMPLING
from stridebench.harness.train.passages import continued
from stridebench.harness.train.teacher import Passage, Teacher
from stridebench.methods.training.heads.examples import Examples, examples

BATCH = 16
"""Passages of a file of the cache."""


@dataclass(frozen=True)
class Shapes:
    """Number of shapes of each side, the most tokens of a passage, and a name of `harness.synthetic.shape_data`."""

    train: int = 512
    development: int = 48
    new: int = 383
    data: str = "furniture"

    def sides(self, teacher: Teacher, heads: int) -> tuple[Meshes, Meshes]:
        """Meshes to train on and meshes to measure on, with the tokens that D heads are to guess."""
        counts = (("train", self.train), ("development", self.development))
        passages = (drawn(teacher, side, count, self.new, self.data) for side, count in counts)
        train, check = (Meshes.read(teacher, chosen, heads) for chosen in passages)
        return train, check


def drawn(teacher: Teacher, side: str, count: int, new: int, data: str = "furniture") -> list[Passage]:
    """Passages of the first shapes of a side. A larger number reuses the files of a smaller one."""
    passages: list[Passage] = []
    for number in range(-(-count // BATCH)):
        prompts = [_prompt(side, number * BATCH + index, data) for index in range(BATCH)]
        path = teacher.home / f"{data}-{new}-{side}-{number:04}.json"
        if not path.is_file():
            first = number * BATCH
            print(f"{teacher.backbone.name}: {side} shapes from {first} of {count}", file=sys.stderr, flush=True)
        draws = SeededDraws(0, "distilled", side, number, teacher.backbone.device)
        passages += continued(teacher, path, prompts, new, SAMPLING, draws)
    return passages[:count]


def _prompt(side: str, index: int, data: str) -> Prompt:
    random = np.random.default_rng([*side.encode(), index])
    shape = DATA[data](random, "train", None)
    return Prompt(f"{side}/{index}", condition=shapes.points(shape.mesh, POINTS, random))


class Meshes(NamedTuple):
    """Passages, their hidden rows, and the latents of each one's points."""

    passages: Sequence[Passage]
    rows: Examples
    conditions: Float[Tensor, "P M C"]

    @staticmethod
    def read(teacher: Teacher, passages: Sequence[Passage], heads: int) -> Meshes:
        """One pass a passage."""
        conditions = torch.stack([teacher.condition(passage) for passage in passages]).float()
        return Meshes(passages, examples(teacher, passages, heads), conditions)

    def of(self, number: int) -> Examples:
        """The rows of one passage; none where the passage is too short."""
        begin, end = torch.searchsorted(self.rows.passage, torch.tensor([number, number + 1])).tolist()
        return Examples(*(column[begin:end] for column in self.rows))

    def numbered(self) -> Iterator[tuple[int, Examples]]:
        """Number and rows of every passage that has rows."""
        for number in range(len(self.passages)):
            if len((examples := self.of(number)).rows):
                yield number, examples
