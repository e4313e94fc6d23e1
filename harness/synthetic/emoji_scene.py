"""Emoji scenes and how they are drawn: objects on a lattice, in the six families of GenEval.

Source of the families and of what "left of" means: Ghosh et al. 2023, arXiv:2310.11513, section 3.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from harness.errors import UsageError
from harness.synthetic.emoji_ground import Ground, draw
from harness.synthetic.emoji_layout import RELATIONS, place
from harness.synthetic.emoji_sprites import COLOURED, KINDS

FAMILIES = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
"""GenEval's own names of its families."""

SPLITS = ("train", "held-out")
HELD_OUT = 10
"""One composition in this many is held out."""

SIDES = {"small": 2, "large": 3}
"""Sides of an object in lattice steps of 8 pixels of 64, so that at 32 pixels it still lies on whole tokens."""


@dataclass(frozen=True)
class Thing:
    """An object.

    Args:
        kind: one of ``KINDS``.
        colour: "" where the kind has none.
        size: small (16 pixels) or large (24).
        row: of its upper left corner, in lattice steps of 8 pixels.
        column: of the same corner.
    """

    kind: str
    colour: str
    size: str
    row: int
    column: int

    @property
    def side(self) -> int:
        """Side in lattice steps."""
        return SIDES[self.size]


@dataclass(frozen=True)
class Scene:
    """One to four objects on a background.

    Args:
        family: one of ``FAMILIES``.
        things: objects that do not overlap.
        ground: the background.
        relation: in the family position, how the first object stands to the second; else "".
        sized: whether the caption names sizes.
    """

    family: str
    things: tuple[Thing, ...]
    ground: Ground
    relation: str = ""
    sized: bool = False


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
    large, sized, count = (random.random(3) * (1, 1, 3)).tolist()
    named = family in ("colors", "color_attr")
    number = {"counting": 2 + int(count), "single_object": 1, "colors": 1}.get(family, 2)
    looks = [_look(random, named, ())]
    while len(looks) < number:
        looks.append(looks[0] if family == "counting" else _look(random, named, looks[0]))
    sizes = ["large" if large < 0.5 else "small"] * number
    if family != "counting" and number == 2 and random.random() < 0.5:
        sizes[1] = "large" if sizes[0] == "small" else "small"
    relation = RELATIONS[random.integers(4)] if family == "position" else ""
    places = place(random, [SIDES[size] for size in sizes], relation)
    things = tuple(
        Thing(kind, colour, size, row, column)
        for (kind, colour), size, (row, column) in zip(looks, sizes, places, strict=True)
    )
    return Scene(family, things, draw(random), relation, sized < 0.25)


def _look(random: np.random.Generator, named: bool, other: tuple[str, ...]) -> tuple[str, str]:
    """Kind and colour, both different from ``other``."""
    while True:
        kinds = tuple(COLOURED) if named else KINDS
        kind = kinds[random.integers(len(kinds))]
        colours = COLOURED.get(kind, ("",))
        colour = colours[random.integers(len(colours))]
        if kind not in other and (colour == "" or colour not in other):
            return kind, colour
