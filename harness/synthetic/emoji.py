"""Scenes of emoji: one to four pictures on a smooth or textured background, with a caption that states everything.

Pictures are derived from Noto Color Emoji (SIL Open Font License 1.1; see data/emoji-licence.txt). Objects lie on a
lattice of 8 pixels of 64. So the tokens of a tokenizer that shrinks 4 times (16x16 of a picture of 64 pixels, 8x8 of
one of 32) depend on kind and colour, and hardly on the place. A caption leaves open the place of its arrangement (2
ways), its gradient or texture (8 colours, 8 directions), and every tile of a texture.

The world is small enough to be learnt in an hour of one core: six kinds in six colours, arrangements of one to four
equal objects, four relations of two different ones, and a texture behind one picture in seven.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stridebench.harness.errors import UsageError
from stridebench.harness.synthetic.emoji_sprites import COLOURS, KINDS, Ground, draw, paint, sprite

if TYPE_CHECKING:
    from jaxtyping import Int8, UInt8


# Emoji scenes and how they are drawn: objects in fixed arrangements, in the six families of GenEval.
# Source of the families and of the meaning of "left of": Ghosh et al. 2023, arXiv:2310.11513, section 3.


# Where the objects of an emoji scene stand: few arrangements, each of which is moved down by up to one place.
# Arrangements repeat, so a model sees the shape of a number and of a relation often enough to learn it. They are not
# moved sideways: a model that draws row by row then often began the second of two objects at a wrong column.


STEP = 8
"""Pixels of 64 between two places of the lattice."""
CELLS = 64 // STEP
SIDE = 3
"""Side of an object in lattice steps: 24 pixels of 64, 12 of 32."""
SHIFTS = 2
"""An arrangement is moved down by 0 or 1 step."""

Corner = tuple[int, int]
"""Row and column of an object's upper left corner, in lattice steps."""

ARRANGEMENTS: dict[int, tuple[str, tuple[Corner, ...]]] = {
    1: ("at centre", ((2, 2),)),
    2: ("in row", ((2, 0), (2, 4))),
    3: ("in triangle", ((0, 2), (4, 0), (4, 4))),
    4: ("at corners", ((0, 0), (0, 4), (4, 0), (4, 4))),
}
"""Words and places of equal objects, by number."""

_RELATED: dict[str, tuple[Corner, Corner]] = {
    "left of": ((2, 0), (2, 4)),
    "right of": ((2, 4), (2, 0)),
    "above": ((0, 2), (4, 2)),
    "below": ((4, 2), (0, 2)),
}
"""Places of the first and the second of two different objects."""
RELATIONS = tuple(_RELATED)


def places(number: int, relation: str, down: int) -> list[Corner]:
    """Corners of the objects, none of which overlap.

    Args:
        number: of the objects, 1 to 4.
        relation: of the first object to the second; "" for equal objects.
        down: how far all of them are moved, 0 or 1.
    """
    corners = _RELATED[relation] if relation else ARRANGEMENTS[number][1]
    return [(row + down, column) for row, column in corners]


FAMILIES = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
"""GenEval's names of its families. Those with as many objects are drawn alike, since captions state everything."""
NUMBER_WORDS = {"single_object": (1,), "colors": (1,), "counting": (2, 3, 4)}
"""How many objects the families show that have equal ones. The others show two different ones."""

SPLITS = ("train", "held-out")
HELD_OUT = 10
"""One composition in this many is held out."""


@dataclass(frozen=True)
class Thing:
    """An object.

    Args:
        row: of its upper left corner, in lattice steps of 8 pixels.
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
class EmojiScene:
    """One to four objects on a background.

    Args:
        relation: how the first of two different objects stands to the second; "" for equal objects.
    """

    family: str
    things: tuple[Thing, ...]
    ground: Ground
    relation: str = ""


def scene(random: np.random.Generator, split: str, family: str | None = None) -> EmojiScene:
    """Draw a scene of a split, of any family or of a given one.

    The hash of a composition (objects, places, background pattern and colours) decides its split, so no composition is
    in both splits, whatever the generators' seeds.
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


def is_held_out(drawn: EmojiScene) -> bool:
    """Whether a scene is in the held-out split; its composition alone decides, whatever the seed."""
    ground = drawn.ground
    parts = (drawn.things, ground.pattern, ground.near, ground.far, ground.direction)
    return zlib.crc32(repr(parts).encode()) % HELD_OUT == 0


def draw_scene(random: np.random.Generator, family: str) -> EmojiScene:
    """A scene of one of GenEval's families, of either split."""
    kind, colour = int(random.integers(len(KINDS))), int(random.integers(len(COLOURS)))
    down = int(random.integers(SHIFTS))
    if family in NUMBER_WORDS:
        number, relation = int(random.choice(NUMBER_WORDS[family])), ""
        looks = [(kind, colour)] * number
    else:
        number, relation = 2, RELATIONS[random.integers(len(RELATIONS))]
        looks = [(kind, colour), (_other(random, kind, len(KINDS)), _other(random, colour, len(COLOURS)))]
    corners = places(number, relation, down)
    things = tuple(
        Thing(KINDS[kind], COLOURS[colour], row, column)
        for (kind, colour), (row, column) in zip(looks, corners, strict=True)
    )
    return EmojiScene(family, things, draw(random), relation)


def _other(random: np.random.Generator, index: int, count: int) -> int:
    """Another index below ``count``."""
    return int((index + random.integers(1, count)) % count)


__all__ = [
    "COLOURS",
    "FAMILIES",
    "KINDS",
    "OBJECT",
    "REGIONS",
    "RELATIONS",
    "SIZES",
    "SMOOTH",
    "SPLITS",
    "TEXTURED",
    "VOCABULARY",
    "EmojiScene",
    "Ground",
    "Thing",
    "caption",
    "regions",
    "render",
    "scene",
    "scenes",
    "specification",
]

SIZES = (64, 32)
NUMBERS = {2: "two", 3: "three", 4: "four"}
VOCABULARY: tuple[str, ...] = (
    *("a", "an", "on", "of", "in", "at", "left", "right", "above", "below", "times", *NUMBERS.values()),
    *("centre", "row", "triangle", "corners", "smooth", "rough", *COLOURS, *KINDS),
)
"""Every word of every caption; its place in this tuple never changes."""

SMOOTH, TEXTURED, OBJECT = 0, 1, 2
REGIONS = {"smooth": SMOOTH, "textured": TEXTURED, "object": OBJECT}
"""Regions of a picture, by name."""


def scenes(seed: int, split: str, count: int, family: str | None = None) -> list[EmojiScene]:
    """The first ``count`` scenes of a seed, of all families in turn unless one is given."""
    families = FAMILIES if family is None else (family,)
    random = np.random.default_rng([seed, SPLITS.index(split) if split in SPLITS else 0])
    return [scene(random, split, families[i % len(families)]) for i in range(count)]


def caption(drawn: EmojiScene) -> str:
    """The scene in 7 to 10 words of ``VOCABULARY``, such as "three times a red car in triangle on rough"."""
    ground = "rough" if drawn.ground.textured else "smooth"
    first = _phrase(drawn.things[0])
    if drawn.relation:
        return f"{first} {drawn.relation} {_phrase(drawn.things[1])} on {ground}"
    number = len(drawn.things)
    times = f"{NUMBERS[number]} times " if number in NUMBERS else ""
    return f"{times}{first} {ARRANGEMENTS[number][0]} on {ground}"


def _phrase(thing: Thing) -> str:
    return f"{'an' if thing.colour[0] in 'aeiou' else 'a'} {thing.colour} {thing.kind}"


def specification(drawn: EmojiScene) -> dict[str, object]:
    """Return the requirements on a picture of the scene, in the layout of GenEval's prompts: tag, include, exclude.

    It asks for everything that the caption states, whatever the family. The second of two different objects comes
    first, and the other refers to it by index.
    """
    objects = [{"class": thing.kind, "count": 1, "color": thing.colour} for thing in drawn.things]
    metadata: dict[str, Any] = {"tag": drawn.family, "include": objects, "exclude": []}
    if drawn.family == "counting":
        first, count = objects[0], len(objects)
        metadata["include"] = [{**first, "count": count}]
        metadata["exclude"] = [{"class": first["class"], "count": count + 1}]
    if drawn.relation:
        metadata["include"] = [objects[1], {**objects[0], "position": [drawn.relation, 0]}]
    return metadata


def render(drawn: EmojiScene, size: int = 64) -> UInt8[np.ndarray, "size size 3"]:
    """Return the pixels of a scene at 64 or, from sprites of half the side, at 32 pixels; refuse other sizes."""
    if size not in SIZES:
        raise UsageError(f"a scene is drawn at {' or '.join(map(str, SIZES))} pixels, not at {size}")
    pixels = paint(drawn.ground)
    step = STEP * size // 64
    if size == 32:
        pixels = pixels.reshape(32, 2, 32, 2, 3).mean((1, 3))
    for thing in drawn.things:
        side, top, left = thing.side * step, thing.row * step, thing.column * step
        look = sprite(thing.kind, thing.colour, side)
        patch = pixels[top : top + side, left : left + side]
        patch *= look.clear
        patch += look.colour
    pixels += 0.5
    return pixels.astype(np.uint8)


def regions(drawn: EmojiScene, cells: int = 16) -> Int8[np.ndarray, "cells cells"]:
    """Return the region of each token's cell: OBJECT if a quarter of it is covered, else SMOOTH or TEXTURED.

    Args:
        cells: 16 for pictures of 64 pixels, 8 for those of 32.
    """
    region = np.full((cells, cells), TEXTURED if drawn.ground.textured else SMOOTH, dtype=np.int8)
    covered = np.zeros((64, 64), dtype=np.float32)
    for thing in drawn.things:
        side, top, left = thing.side * STEP, thing.row * STEP, thing.column * STEP
        covered[top : top + side, left : left + side] = 1 - sprite(thing.kind, thing.colour, side).clear[..., 0]
    share = covered.reshape(cells, 64 // cells, cells, 64 // cells).mean((1, 3))
    region[share >= 0.25] = OBJECT
    return region


# Captions that differ from a scene's in one attribute, by which a model's reading of captions is measured.


def colours(scene: EmojiScene) -> list[EmojiScene]:
    """The scene with its first object in every colour that the other objects leave; the true one comes first."""
    first, others = _first_and_others(scene)
    free = [colour for colour in COLOURS if colour not in {first.colour, *(thing.colour for thing in others)}]
    return [scene, *(_with_first(scene, replace(first, colour=colour)) for colour in free)]


def kinds(scene: EmojiScene) -> list[EmojiScene]:
    """The scene with its first object of every kind that the other objects leave; the true one comes first."""
    first, others = _first_and_others(scene)
    free = [kind for kind in KINDS if kind not in {first.kind, *(thing.kind for thing in others)}]
    return [scene, *(_with_first(scene, replace(first, kind=kind)) for kind in free)]


def numbers(scene: EmojiScene) -> list[EmojiScene]:
    """A scene of equal objects with one to four of them; the true number comes first."""
    others = [number for number in range(1, 5) if number != len(scene.things)]
    return [scene, *(replace(scene, things=scene.things[:1] * number) for number in others)]


def relations(scene: EmojiScene) -> list[EmojiScene]:
    """A scene of two different objects in every relation; the true one comes first."""
    return [scene, *(replace(scene, relation=other) for other in RELATIONS if other != scene.relation)]


ATTRIBUTES: dict[str, tuple[str, Callable[[EmojiScene], list[EmojiScene]]]] = {
    "colour": ("position", colours),
    "kind": ("position", kinds),
    "number": ("counting", numbers),
    "relation": ("position", relations),
}
"""Family of the scenes and the captions compared, by attribute."""


def _first_and_others(scene: EmojiScene) -> tuple[Thing, tuple[Thing, ...]]:
    return scene.things[0], scene.things[1:] if scene.relation else ()


def _with_first(scene: EmojiScene, thing: Thing) -> EmojiScene:
    things = (thing, *scene.things[1:]) if scene.relation else (thing,) * len(scene.things)
    return replace(scene, things=things)
