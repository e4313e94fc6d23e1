"""Scenes of emoji: one to four pictures on a smooth or textured background, with a caption that states everything.

Pictures are derived from Noto Color Emoji (SIL Open Font License 1.1; see data/emoji-licence.txt). Objects lie on a
lattice of 8 pixels of 64. So the tokens of a tokenizer that shrinks 4 times (16x16 of a picture of 64 pixels, 8x8 of
one of 32) depend on kind and colour, and hardly on the place. A caption leaves open where its arrangement stands
(2 ways), which gradient or texture it has (8 colours, 8 directions), and every tile of a texture.

The world is small enough to be learnt in an hour of one core: six kinds in six colours, arrangements of one to four
equal objects, four relations of two different ones, and a texture behind one picture in seven.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stridebench.harness.errors import UsageError
from stridebench.harness.synthetic.emoji_ground import Ground, paint
from stridebench.harness.synthetic.emoji_layout import ARRANGEMENTS, RELATIONS, STEP
from stridebench.harness.synthetic.emoji_scene import FAMILIES, SPLITS, Scene, Thing, scene
from stridebench.harness.synthetic.emoji_sprites import COLOURS, KINDS, sprite

if TYPE_CHECKING:
    from jaxtyping import Int8, UInt8

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
    "Ground",
    "Scene",
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


def scenes(seed: int, split: str, count: int, family: str | None = None) -> list[Scene]:
    """The first ``count`` scenes of a seed, of all families in turn unless one is given."""
    families = FAMILIES if family is None else (family,)
    random = np.random.default_rng([seed, SPLITS.index(split) if split in SPLITS else 0])
    return [scene(random, split, families[i % len(families)]) for i in range(count)]


def caption(drawn: Scene) -> str:
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


def specification(drawn: Scene) -> dict[str, Any]:
    """What a picture of the scene must show, in the layout of GenEval's prompt files: tag, include, exclude.

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


def render(drawn: Scene, size: int = 64) -> UInt8[np.ndarray, "size size 3"]:
    """Pixels of a scene at 64 or, from sprites of half the side, at 32 pixels.

    Raises:
        UsageError: another size.
    """
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


def regions(drawn: Scene, cells: int = 16) -> Int8[np.ndarray, "cells cells"]:
    """Region of each token's cell: OBJECT where a quarter of it is covered, else SMOOTH or TEXTURED.

    Args:
        drawn: the scene.
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
