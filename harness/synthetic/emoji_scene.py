"""Emoji scenes and how they are drawn: objects in fixed arrangements, in the six families of GenEval.

Source of the families and of what "left of" means: Ghosh et al. 2023, arXiv:2310.11513, section 3.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from stridebench.harness.errors import UsageError
from stridebench.harness.synthetic.emoji_ground import Ground, draw
from stridebench.harness.synthetic.emoji_layout import RELATIONS, SHIFTS, SIDE, places
from stridebench.harness.synthetic.emoji_sprites import COLOURS, KINDS

FAMILIES = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
"""GenEval's own names of its families. Those with as many objects are drawn alike, since captions state everything."""
NUMBERS = {"single_object": (1,), "colors": (1,), "counting": (2, 3, 4)}
"""How many objects the families show that have equal ones. The others show two different ones."""

SPLITS = ("train", "held-out")
HELD_OUT = 10
"""One composition in this many is held out."""


@dataclass(frozen=True)
class Thing:
    """An object.

    Args:
        kind: one of ``KINDS``.
        colour: one of ``COLOURS``.
        row: of its upper left corner, in lattice steps of 8 pixels.
        column: of the same corner.
    """

    kind: str
    colour: str
    row: int
    column: int

    @property
    def side(self) -> int:
        """Side in lattice steps."""
        return SIDE


@dataclass(frozen=True)
class Scene:
    """One to four objects on a background.

    Args:
        family: one of ``FAMILIES``.
        things: objects that do not overlap.
        ground: the background.
        relation: how the first of two different objects stands to the second; "" for equal objects.
    """

    family: str
    things: tuple[Thing, ...]
    ground: Ground
    relation: str = ""


def scene(random: np.random.Generator, split: str, family: str | None = None) -> Scene:
    """Draw a scene of a split, of any family or of a given one.

    The hash of a composition (objects, places, background pattern and colours) decides its split, so no composition is
    in both splits, whatever the generators' seeds.

    Raises:
        UsageError: there is no such split or family.
    """
    if split not in SPLITS or family not in (None, *FAMILIES):
        raise UsageError(
            f"no scenes of split {split!r} and family {family!r}; splits are {', '.join(SPLITS)}, families "
            f"{', '.join(FAMILIES)}"
        )
    while True:
        drawn = draw_scene(random, family or FAMILIES[random.integers(len(FAMILIES))])
        if is_held_out(drawn) == (split == "held-out"):
            return drawn


def is_held_out(drawn: Scene) -> bool:
    """Whether a scene is in the held-out split; its composition alone decides, whatever the seed."""
    ground = drawn.ground
    parts = (drawn.things, ground.pattern, ground.near, ground.far, ground.direction)
    return zlib.crc32(repr(parts).encode()) % HELD_OUT == 0


def draw_scene(random: np.random.Generator, family: str) -> Scene:
    """A scene of one of GenEval's families, of either split."""
    kind, colour = int(random.integers(len(KINDS))), int(random.integers(len(COLOURS)))
    down = int(random.integers(SHIFTS))
    if family in NUMBERS:
        number, relation = int(random.choice(NUMBERS[family])), ""
        looks = [(kind, colour)] * number
    else:
        number, relation = 2, RELATIONS[random.integers(len(RELATIONS))]
        looks = [(kind, colour), (_other(random, kind, len(KINDS)), _other(random, colour, len(COLOURS)))]
    corners = places(number, relation, down)
    things = tuple(
        Thing(KINDS[kind], COLOURS[colour], row, column)
        for (kind, colour), (row, column) in zip(looks, corners, strict=True)
    )
    return Scene(family, things, draw(random), relation)


def _other(random: np.random.Generator, index: int, count: int) -> int:
    """Another index below ``count``."""
    return int((index + random.integers(1, count)) % count)
