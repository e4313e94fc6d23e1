"""Procedural furniture: eight kinds, three levels, corners on every second step of BPT's grid.

Held-out lengths: tests draw those that training never draws (``HELD_OUT``). A token can name
each corner, so 1,024 points with normals determine most of a shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from stridebench.harness.errors import UsageError
from stridebench.harness.record.outputs import Mesh
from stridebench.harness.synthetic.shapes import BOX, LEVELS, ProceduralShape, joined, loft

# Parts of furniture: boxes and prisms with corners in the cells of a grid, and lengths of a split.


Corner = tuple[float, float, float]

PERIOD, HELD_OUT = 5, 3
"""Lengths that leave the remainder 3 when divided by 5 are drawn for tests alone, all others for training alone."""
SPLITS = ("train", "test")


@dataclass(frozen=True)
class FurnitureDice:
    """Draws the parameters of a shape.

    Args:
        split: "train" or "test"; their lengths are disjoint.
    """

    random: np.random.Generator
    split: str

    def length(self, low: int, high: int) -> int:
        """A length of the split from ``low`` to ``high`` cells, both included; every range has one of each split."""
        test = self.split == "test"
        return int(self.random.choice([n for n in range(low, high + 1) if (n % PERIOD == HELD_OUT) == test]))

    def count(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included; counts are not held out."""
        return int(self.random.integers(low, high + 1))


def block(low: Corner, high: Corner, inset: int = 0) -> Mesh:
    """A box between two corners; its upper face is ``inset`` cells smaller on every side."""
    bits = (np.arange(8)[:, None] >> np.arange(3)) & 1
    corners = np.where(bits, np.asarray(high, float), np.asarray(low, float))
    corners[4:, :2] += np.where(bits[4:, :2], -inset, inset)
    return Mesh(corners, BOX)


def octagon(at: tuple[int, int], radii: tuple[int, int], low: int, high: int) -> Mesh:
    """An upright prism of eight sides with these radii below and above."""
    rings = np.empty((2, 8, 3))
    for ring, radius, height in zip(rings, radii, (low, high), strict=True):
        near = max(1, round(radius * (2**0.5 - 1)))
        r, n = radius, near
        ring[:, :2] = [(r, -n), (r, n), (n, r), (-n, r), (-r, n), (-r, -n), (-n, -r), (n, -r)]
        ring[:, :2] += at
        ring[:, 2] = height
    return loft(rings)


# Each kind of furniture is a function of drawn lengths, in cells, and of a level from 0 to 2.


def legs(wide: int, deep: int, high: int, leg: int, inset: int) -> list[Mesh]:
    """Four legs, ``inset`` cells inside the corners."""
    across = ((inset, inset + leg), (wide - inset - leg, wide - inset))
    along = ((inset, inset + leg), (deep - inset - leg, deep - inset))
    return [block((x[0], y[0], 0), (x[1], y[1], high)) for x in across for y in along]


def table(dice: FurnitureDice, level: int) -> list[Mesh]:
    """Top on two sides; on four legs; with a low board and a drawer."""
    wide, deep, high = dice.length(22, 60), dice.length(16, 46), dice.length(14, 46)
    thick, leg, inset = dice.length(2, 6), dice.length(2, 6), dice.length(0, 5)
    parts = [block((0, 0, high), (wide, deep, high + thick))]
    if level == 0:
        return [
            *parts,
            block((inset, inset, 0), (inset + leg, deep - inset, high)),
            block((wide - inset - leg, inset, 0), (wide - inset, deep - inset, high)),
        ]
    parts += legs(wide, deep, high, leg, inset)
    if level == 2:
        low, board = dice.length(3, 9), dice.length(2, 4)
        parts.append(block((inset + leg, inset, low), (wide - inset - leg, deep - inset, low + board)))
        left, drawer = dice.length(7, 13), dice.length(7, 13)
        parts.append(block((left, inset, high - dice.length(3, 7)), (left + drawer - 1, deep - inset - 1, high)))
    return parts


def chair(dice: FurnitureDice, level: int) -> list[Mesh]:
    """Seat on a foot, with a back; on four legs; with arms and a back of posts and rails."""
    wide, deep, seat = dice.length(18, 42), dice.length(16, 40), dice.length(10, 30)
    back, thick, leg = dice.length(10, 26), dice.length(2, 6), dice.length(2, 6)
    top = seat + thick + back
    parts = [block((0, 0, seat), (wide, deep, seat + thick))]
    if level < 2:
        parts.append(block((0, deep - leg, seat + thick), (wide, deep, top)))
    if level == 0:
        foot = dice.length(2, 6)
        return [*parts, block((foot, foot, 0), (wide - foot, deep - foot, seat))]
    parts += legs(wide, deep, seat, leg, 0)
    if level == 2:
        parts += [block((x, deep - leg, seat + thick), (x + leg, deep, top)) for x in (0, wide - leg)]
        rail, arm = dice.length(3, 8), seat + thick + dice.length(4, 8)
        parts.append(block((leg, deep - leg, top - rail), (wide - leg, deep, top)))
        front = dice.length(2, 9)
        parts += [block((x, front, arm - 2), (x + leg, deep - leg, arm)) for x in (0, wide - leg)]
    return parts


def bench(dice: FurnitureDice, level: int) -> list[Mesh]:
    """Long seat on two sides; with a beam and a back; with a bar of planks and arms."""
    wide, deep, high = dice.length(36, 60), dice.length(9, 24), dice.length(8, 26)
    thick, leg, inset = dice.length(2, 6), dice.length(2, 8), dice.length(0, 9)
    parts = [block((0, 0, high), (wide, deep, high + thick))]
    parts += [block((x, 0, 0), (x + leg, deep, high)) for x in (inset, wide - inset - leg)]
    if level == 0:
        return parts
    bar, low = dice.length(2, 4), dice.length(2, 4)
    parts.append(block((inset + leg, deep // 2 - 1, low), (wide - inset - leg, deep // 2 + 1, low + bar)))
    back, above = dice.length(8, 20), high + thick
    if level == 1:
        return [*parts, block((0, deep - 2, above), (wide, deep, above + back))]
    parts += [block((x, deep - 2, above), (x + leg, deep, above + back)) for x in (inset, wide - inset - leg)]
    plank = dice.length(2, 4)
    for place in (above + back - plank, above + back // 2 - 1):
        parts.append(block((inset + leg, deep - 2, place), (wide - inset - leg, deep, place + plank)))
    return parts


def shelf(dice: FurnitureDice, level: int) -> list[Mesh]:
    """Sides and boards at drawn heights; more boards; with uprights between them."""
    wide, deep, high = dice.length(20, 48), dice.length(8, 28), dice.length(44 if level == 2 else 36, 60)
    thick, foot = dice.length(2, 4), dice.length(0, 5)
    parts = [block((x, 0, 0), (x + thick, deep, high)) for x in (0, wide - thick)]
    boards = 2 if level == 0 else 2 + level + dice.count(0, 1)
    z = foot
    gap = (high - foot - thick) // (boards - 1)
    for place in range(boards):
        last = place == boards - 1
        z = high - thick if last else z
        parts.append(block((thick, 0, z), (wide - thick, deep, z + thick)))
        step = gap if level == 0 else dice.length(gap - 4, gap)
        if level == 2 and place < 2:
            x = dice.length(thick + 3, wide - thick - 6)
            parts.append(block((x, 0, z + thick), (x + 2, deep - 1, z + step)))
        z += step
    return parts


def bed(dice: FurnitureDice, level: int) -> list[Mesh]:
    """Frame, mattress and head; a foot end and pillows; posts and a blanket."""
    wide, long, low = dice.length(22, 46), dice.length(38, 54), dice.length(4, 14)
    frame, mattress, head = dice.length(2, 6), dice.length(3, 8), dice.length(8, 26)
    board, side = dice.length(2, 4), dice.length(0, 3)
    lying = low + frame
    parts = [
        block((0, board, low), (wide, long, lying)),
        block((side, board, lying), (wide - side, long - side, lying + mattress)),
        block((0, 0, 0), (wide, board, lying + head)),
    ]
    if level == 0:
        return parts
    parts.append(block((0, long, 0), (wide, long + board, lying + dice.length(1, 9))))
    pillow, high = dice.length(6, 12), dice.length(2, 4)
    gap = dice.length(1, 4)
    half = (wide - 3 * gap) // 2
    z = lying + mattress
    for x in (gap, wide - gap - half):
        parts.append(block((x, board + 1, z), (x + half, board + 1 + pillow, z + high), 1))
    if level == 2:
        start = board + pillow + dice.length(2, 9)
        parts.append(block((side, start, z), (wide - side, long - side, z + 2)))
        post = lying + head + dice.length(2, 9)
        parts += [block((x, -board, 0), (x + board, 0, post)) for x in (0, wide - board)]
    return parts


def sofa(dice: FurnitureDice, level: int) -> list[Mesh]:
    """Base, back and arms; two cushions; back cushions and feet."""
    wide, deep, seat = dice.length(36, 60), dice.length(18, 38), dice.length(8, 18)
    back, arm, lift = dice.length(8, 26), dice.length(3, 9), dice.length(3, 9)
    rear = dice.length(3, 8)
    foot = dice.length(2, 4) if level == 2 else 0
    parts = [
        block((arm, 0, foot), (wide - arm, deep - rear, foot + seat)),
        block((arm, deep - rear, foot), (wide - arm, deep, foot + seat + back)),
    ]
    parts += [block((x, 0, foot), (x + arm, deep, foot + seat + lift)) for x in (0, wide - arm)]
    if level:
        half, high = (wide - 2 * arm) // 2, dice.length(2, 4)
        top = foot + seat + high
        places = (arm, wide - arm - half)
        parts += [block((x, 0, foot + seat), (x + half, deep - rear, top)) for x in places]
    if level == 2:
        soft, tall = dice.length(2, 4), dice.length(4, 8)
        parts += [block((x + 1, deep - rear - soft, top), (x + half - 1, deep - rear, top + tall)) for x in places]
        parts += [block((x, 1, 0), (x + arm, deep - 1, foot)) for x in (0, wide - arm)]
    return parts


def desk(dice: FurnitureDice, level: int) -> list[Mesh]:
    """Top, cabinet and side; a screen; drawers that stand out and a board behind."""
    wide, deep, high = dice.length(36, 60), dice.length(16, 36), dice.length(20, 36)
    thick, cabinet, side = dice.length(2, 6), dice.length(8, 20), dice.length(2, 4)
    parts = [
        block((0, 0, high), (wide, deep, high + thick)),
        block((0, 2, 0), (cabinet, deep, high)),
        block((wide - side, 0, 0), (wide, deep, high)),
    ]
    if level == 0:
        return parts
    left, across, tall = dice.length(7, 16), dice.length(12, 20), dice.length(8, 16)
    stand, above = dice.length(2, 4), high + thick
    middle, y = left + across // 2, deep - 5
    parts.append(block((middle - 2, y - 2, above), (middle + 2, y + 3, above + stand)))
    parts.append(block((left, y, above + stand), (left + across, y + 2, above + stand + tall)))
    if level == 2:
        drawer = dice.length(5, 8)
        for z in (high - 1 - drawer, high - 2 - 2 * drawer):
            parts.append(block((1, 0, z), (cabinet - 1, 2, z + drawer)))
        parts.append(block((cabinet, deep - 2, dice.length(2, 12)), (wide - side, deep, high)))
    return parts


def lamp(dice: FurnitureDice, level: int) -> list[Mesh]:
    """Foot, pole and a shade of eight sides; a round foot; an arm with a second shade."""
    foot, thick, pole = dice.length(6, 14), dice.length(2, 5), dice.length(1, 3)
    high, shade, tall = dice.length(16, 40), dice.length(6, 14), dice.length(7, 18)
    top = dice.length(2, 6)
    base = octagon((0, 0), (foot, foot), 0, thick) if level else block((-foot, -foot, 0), (foot, foot, thick), 1)
    parts = [base, block((-pole, -pole, thick), (pole, pole, high))]
    parts.append(octagon((0, 0), (shade, top), high, high + tall))
    if level == 2:
        reach, size, low = dice.length(16, 30), dice.length(4, 9), thick + dice.length(2, 8)
        arm = low + dice.length(8, 12)
        parts.append(block((pole, -1, arm), (reach, 1, arm + 2)))
        parts.append(block((reach - size, -size, low), (reach + size, size, arm), 2))
    return parts


KINDS: Mapping[str, Callable[[FurnitureDice, int], list[Mesh]]] = MappingProxyType(
    {
        "table": table,
        "chair": chair,
        "bench": bench,
        "shelf": shelf,
        "bed": bed,
        "sofa": sofa,
        "desk": desk,
        "lamp": lamp,
    }
)
CELLS = 64
"""Places of a corner along an axis: every second of 128 steps."""


def shape(random: np.random.Generator, split: str, level: int | None = None) -> ProceduralShape:
    """Draw a shape in [-1, 1] with z upwards.

    Args:
        split: "train" or "test".
        level: 0 to 2; drawn by ``LEVELS`` if None.
    """
    if split not in SPLITS or level not in (None, *range(len(LEVELS))):
        raise UsageError(f"furniture has the splits {', '.join(SPLITS)} and levels 0 to 2; found {split!r}, {level!r}")
    kind = str(random.choice(list(KINDS)))
    chosen = int(random.choice(len(LEVELS), p=LEVELS)) if level is None else level
    return ProceduralShape(build(kind, chosen, FurnitureDice(random, split)), kind, chosen)


def boxes(random: np.random.Generator, count: int) -> ProceduralShape:
    """Plain boxes anywhere in the grid, to learn how points become corners before shapes come; level 0."""
    parts = []
    for _ in range(count):
        low, high = np.sort(np.stack([random.choice(CELLS, 2, replace=False) for _ in range(3)], 1), axis=0).tolist()
        parts.append(block(tuple(low), tuple(high)))
    return ProceduralShape(_in_grid(joined(parts)), "boxes", 0)


def build(kind: str, level: int, dice: FurnitureDice) -> Mesh:
    """A shape of a kind, turned about z by a multiple of 90 degrees; its box is centred to a cell."""
    mesh = joined(KINDS[kind](dice, level))
    places = mesh.vertices
    for _ in range(dice.count(0, 3)):
        places = np.stack([-places[:, 1], places[:, 0], places[:, 2]], 1)
    low, high = places.min(0), places.max(0)
    return _in_grid(Mesh(places + (CELLS - 1 - low - high) // 2, mesh.faces))


def _in_grid(mesh: Mesh) -> Mesh:
    """Cells 0 to 63 as coordinates in the middle of even steps, in [-1, 1]."""
    return Mesh((2 * mesh.vertices + 0.5) / CELLS - 1, mesh.faces)
