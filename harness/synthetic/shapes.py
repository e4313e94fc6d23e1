"""Procedural furniture-like shapes: straight, bent, turned and jointed kinds, three levels, held-out parameters.

The ranges of all lengths and ratios are cut into strips, with disjoint parts for training and for tests
(`shapes_parts.SHARES`). Kind and level fix the number of parts and of corners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from stridebench.harness.errors import UsageError
from stridebench.harness.record.outputs import Mesh
from stridebench.harness.synthetic.shapes_parts import (
    SHARES,
    Dice,
    Points,
    arc,
    beam,
    block,
    joined,
    panel,
    tube,
    turned,
)

# Furniture of straight and bent parts. Each kind is a function of drawn parameters and a level from 0 to 2.


SIDES = ((-1, -1), (1, -1), (-1, 1), (1, 1))


def chair(dice: Dice, level: int) -> list[Mesh]:
    """Seat, four legs, a back of slats; then stretchers; then a bent back and arms."""
    wide, deep, seat = dice.within(0.8, 1.3), dice.within(0.8, 1.3), dice.within(0.7, 1.2)
    back, thick, leg = dice.within(0.7, 1.5), dice.within(0.07, 0.16), dice.within(0.08, 0.16)
    x, y = wide / 2 - leg / 2, deep / 2 - leg / 2
    parts = [block((-wide / 2, -deep / 2, seat), (wide / 2, deep / 2, seat + thick))]
    parts += [beam((i * x, j * y, seat / 2), (leg, leg, seat)) for i, j in SIDES]
    top = seat + thick + back
    parts += [block((i * x - leg / 2, y - leg / 2, seat + thick), (i * x + leg / 2, deep / 2, top)) for i in (-1, 1)]
    if level == 2:
        bend = dice.within(0.1, 0.4)
        edge = arc((-x, y), (0, y + bend), (x, y), 12)[:, :2]
        parts.append(panel(edge, leg * 0.6, seat + thick + back * 0.35, top))
    else:
        slats = dice.count(6, 7) - level
        for k in range(slats):
            z = seat + thick + back * (k + 1) / slats - leg / 2
            parts.append(beam((0, y, z), (2 * x - leg, leg * 0.6, leg)))
    if level >= 1:
        low = seat * dice.within(0.25, 0.6)
        parts += [beam((i * x, 0, low), (leg * 0.6, 2 * y - leg, leg * 0.6)) for i in (-1, 1)]
        parts += [beam((0, j * y, low + leg), (2 * x - leg, leg * 0.6, leg * 0.6)) for j in (-1, 1)]
    if level == 2:
        arm = seat + thick + back * dice.within(0.3, 0.5)
        parts += [beam((i * x, -0.1 * deep, arm), (leg, deep * 0.8, leg * 0.7)) for i in (-1, 1)]
        parts += [beam((i * x, -y * 0.8, (arm + seat + thick) / 2), (leg, leg, arm - seat - thick)) for i in (-1, 1)]
    return parts


def sofa(dice: Dice, level: int) -> list[Mesh]:
    """Base, bent back, arms, cushions and feet; cushions and rolled arms with the level."""
    wide, deep, seat = dice.within(1.3, 2.2), dice.within(0.7, 1.1), dice.within(0.3, 0.55)
    back, arm, foot = dice.within(0.4, 0.9), dice.within(0.12, 0.26), dice.within(0.1, 0.2)
    lift, bend = dice.within(0.15, 0.35), dice.within(0.05, 0.35)
    parts = [block((-wide / 2, -deep / 2, foot), (wide / 2, deep / 2, seat))]
    parts += [beam((i * (wide / 2 - foot), j * (deep / 2 - foot), foot / 2), (foot, foot, foot), 1.3) for i, j in SIDES]
    edge = arc((-wide / 2, deep / 2), (0, deep / 2 + bend), (wide / 2, deep / 2), (6, 6, 8)[level])[:, :2]
    parts.append(panel(edge, arm, seat * 0.6, seat + back))
    arm_places = [-wide / 2 + arm / 2, wide / 2 - arm / 2]
    for x in arm_places:
        if level == 0:
            parts.append(beam((x, 0, seat + lift / 2), (arm, deep, lift)))
        else:
            path = np.linspace((x, -deep / 2, seat + lift), (x, deep / 2, seat + lift), 3)
            parts.append(tube(path, arm * 0.7, 5))
        if level == 2:
            parts.append(beam((x, 0, seat + lift / 2), (arm, deep, lift)))
    seats = (2, 2, 3)[level]
    cushion = (wide - 2 * arm) / seats
    for k in range(seats):
        x = -wide / 2 + arm + cushion * (k + 0.5)
        parts.append(beam((x, 0, seat + 0.06), (cushion * 0.92, deep * 0.9, 0.12), 0.92))
        if level:
            parts.append(beam((x, deep * 0.4, seat + back * 0.5), (cushion * 0.85, 0.14, back * 0.6), 0.9))
    return parts


def table(dice: Dice, level: int) -> list[Mesh]:
    """Top, apron, four legs that bend more with the level, and a low board or bars."""
    wide, deep, high = dice.within(1.1, 2.0), dice.within(0.8, 1.4), dice.within(0.6, 1.2)
    thick, leg, inset = dice.within(0.06, 0.14), dice.within(0.05, 0.1), dice.within(0.05, 0.2)
    drop = dice.within(0.1, 0.25)
    x, y = wide / 2 - inset - leg, deep / 2 - inset - leg
    parts = [block((-wide / 2, -deep / 2, high), (wide / 2, deep / 2, high + thick))]
    parts += [beam((0, j * y, high - drop / 2), (2 * x, leg, drop)) for j in (-1, 1)]
    parts += [beam((i * x, 0, high - drop / 2), (leg, 2 * y, drop)) for i in (-1, 1)]
    splay = dice.within(-0.12, 0.12)
    for i, j in SIDES:
        if level == 0:
            parts.append(beam((i * x, j * y, high / 2), (2 * leg, 2 * leg, high), 1.3))
        else:
            path = arc((i * (x + splay), j * (y + splay), 0), (i * x, j * y, high / 2), (i * x, j * y, high), level + 2)
            parts.append(tube(path, np.linspace(leg * 0.7, leg * 1.1, level + 2).tolist(), (5, 5, 6)[level]))
    low = high * dice.within(0.2, 0.4)
    parts.append(beam((0, 0, low), (2 * x, 2 * y, 0.06)))
    if level != 1:
        parts += [beam((0, j * y * 0.5, low + high * 0.2), (2 * x, leg, leg)) for j in (-1, 1)]
    return parts


def shelf(dice: Dice, level: int) -> list[Mesh]:
    """Sides, boards and uprights at drawn places; things stand on the boards with the level."""
    wide, deep, high = dice.within(0.9, 1.6), dice.within(0.4, 0.8), dice.within(1.2, 2.2)
    thick, foot = dice.within(0.06, 0.12), dice.within(0.05, 0.25)
    boards = (5, 6, 8)[level]
    parts = [
        block((i * wide / 2 - thick / 2, -deep / 2, 0), (i * wide / 2 + thick / 2, deep / 2, high)) for i in (-1, 1)
    ]
    gap = (high - foot - thick) / (boards - 1)
    inner = wide / 2 - thick / 2
    for k in range(boards):
        parts.append(beam((0, 0, foot + thick / 2 + k * gap), (2 * inner, deep, thick)))
    for k in range(boards - 1):
        x = inner * dice.within(-0.6, 0.6)
        z = foot + thick + k * gap
        parts.append(block((x - thick / 2, -deep / 2, z), (x + thick / 2, deep / 2, z + gap - thick)))
        if level and k % 2 == 0:
            side = -1 if x > 0 else 1
            near, far = sorted((x + side * thick, side * inner))
            tall = (gap - thick) * dice.within(0.5, 0.9)
            parts.append(block((near + 0.05, -deep / 3, z), (far - 0.05, deep / 3, z + tall), 0.8))
    return parts


def bed(dice: Dice, level: int) -> list[Mesh]:
    """Frame, mattress, pillows, a head of slats or bars; then posts; then a bent foot end."""
    wide, long, low = dice.within(0.8, 1.6), dice.within(1.6, 2.2), dice.within(0.2, 0.5)
    head, post, thick = dice.within(0.4, 0.9), dice.within(0.08, 0.16), dice.within(0.12, 0.3)
    x, y = wide / 2, long / 2
    parts = [block((-x, -y, low), (x, y, low + 0.12)), block((-x * 0.96, -y, low + 0.12), (x * 0.96, y, low + thick))]
    for i, j in SIDES:
        top = low + (head if j > 0 else head * 0.5)
        parts.append(block((i * x - post / 2, j * y - post / 2, 0), (i * x + post / 2, j * y + post / 2, top)))
    slats = (5, 6, 8)[level]
    for k in range(slats):
        place = -x + wide * (k + 1) / (slats + 1)
        parts.append(block((place - 0.04, y - 0.03, low), (place + 0.04, y + 0.03, low + head - post)))
    parts.append(beam((0, y, low + head - post / 2), (wide, post * 0.7, post)))
    if level == 2:
        edge = arc((-x, -y - 0.03), (0, -y - dice.within(0.1, 0.4)), (x, -y - 0.03), 8)[:, :2]
        parts.append(panel(edge, 0.07, low * 0.5, low + head * 0.5))
    pillows = (1, 2, 2)[level]
    for k in range(pillows):
        place = x * (0 if pillows == 1 else 2 * k - 1) * 0.48
        parts.append(beam((place, y * 0.75, low + thick + 0.06), (wide * 0.8 / pillows, long * 0.16, 0.12), 0.8))
    if level:
        parts += [beam((i * x, 0, low + 0.06), (post * 0.5, long, post)) for i in (-1, 1)]
    return parts


# Turned, swept and jointed shapes. Each kind is a function of drawn parameters and a level from 0 to 2.


def stool(dice: Dice, level: int) -> list[Mesh]:
    """A round seat, splayed legs and bars between them."""
    radius, high, thick = dice.within(0.45, 0.8), dice.within(0.9, 1.6), dice.within(0.08, 0.2)
    leg, splay, low = dice.within(0.05, 0.09), dice.within(0.0, 0.3), dice.within(0.25, 0.6)
    around = (8, 12, 12)[level]
    rim = dice.within(0.85, 1.0)
    parts = [turned([(radius * rim, high), (radius, high + thick * 0.5), (radius * rim, high + thick)], around)]
    legs = (3, 3, 4)[level]
    corners = (5, 5, 6)[level]
    feet = []
    for k in range(legs):
        way = np.array([np.cos(2 * np.pi * (k + 0.5) / legs), np.sin(2 * np.pi * (k + 0.5) / legs), 0])
        foot, head = way * radius * (0.8 + splay), way * radius * 0.7 + np.array([0, 0, high])
        feet.append(foot * (1 - low) + head * low)
        swell = [leg * 0.8, leg * 1.2, leg] if level else [leg * 0.8, leg]
        parts.append(tube(np.linspace(foot, head, len(swell)), swell, corners))
    for k in range(legs):
        if level or k:
            parts.append(tube(np.linspace(feet[k - 1], feet[k], 2), leg * 0.6, (4, 5, 5)[level]))
    return parts


def pedestal(dice: Dice, level: int) -> list[Mesh]:
    """A round table: top, turned column, and bent feet."""
    radius, high, thick = dice.within(0.7, 1.1), dice.within(0.9, 1.4), dice.within(0.06, 0.14)
    stem, waist, reach = dice.within(0.08, 0.16), dice.within(0.5, 1.8), dice.within(0.4, 0.75)
    around = (10, 12, 14)[level]
    parts = [turned([(radius * 0.94, high), (radius, high + thick * 0.4), (radius, high + thick)], around)]
    heights = np.linspace(0.15, high, (4, 5, 6)[level])
    swell = 1 + (waist - 1) * np.sin(np.linspace(0, np.pi, len(heights))) ** 2
    parts.append(turned([(stem * s, z) for s, z in zip(swell, heights, strict=True)], (5, 6, 7)[level]))
    feet = (3, 3, 4)[level]
    for k in range(feet):
        way = np.array([np.cos(2 * np.pi * k / feet), np.sin(2 * np.pi * k / feet), 0])
        path = arc(way * stem * 0.5 + [0, 0, 0.35], way * reach * 0.7 + [0, 0, 0.3], way * reach, (2, 3, 3)[level])
        parts.append(tube(path, np.linspace(0.08, 0.05, len(path)).tolist(), (4, 5, 5)[level]))
    return parts


def lamp(dice: Dice, level: int) -> list[Mesh]:
    """A turned base, a pole, and a shade that is open below."""
    foot, stem, high = dice.within(0.3, 0.6), dice.within(0.04, 0.09), dice.within(0.8, 1.7)
    wide, narrow, tall = dice.within(0.45, 0.85), dice.within(0.2, 0.45), dice.within(0.4, 0.8)
    belly = dice.within(0.08, 0.3)
    around = (6, 8, 9)[level]
    bulge = np.linspace(0, np.pi, (4, 5, 7)[level])[1:-1]
    base = [(foot, 0.0), (foot, 0.08), (stem * 1.5, 0.14)]
    base += [(stem + belly * float(np.sin(a)), 0.14 + high * 0.5 * float(a / np.pi)) for a in bulge]
    base += [(stem, high * 0.6), (stem, high)]
    parts = [turned(base, around)]
    low, top = high - tall * 0.3, high + tall * 0.7
    skin = np.linspace(0, 1, (2, 2, 3)[level])
    outer = [(wide + (narrow - wide) * float(t), low + (top - low) * float(t)) for t in skin]
    inner = [(wide * 0.9, low), *outer, (narrow * 0.9, top)]
    parts.append(turned([(stem, high * 0.97), *inner, (stem, high + 0.05)], around))
    return parts


def _bulge(dice: Dice, count: int, high: float) -> list[tuple[float, float]]:
    """A smooth outline: radii at four heights, joined by cosines."""
    knots = [dice.within(0.3, 0.6), dice.within(0.4, 0.9), dice.within(0.2, 0.6), dice.within(0.25, 0.6)]
    place = np.linspace(0, 3, count)
    index = np.minimum(place.astype(int), 2)
    blend = 0.5 - 0.5 * np.cos(np.pi * (place - index))
    radii = np.asarray(knots)[index] * (1 - blend) + np.asarray(knots)[index + 1] * blend
    return [(float(r), float(z)) for r, z in zip(radii, np.linspace(0, high, count), strict=True)]


def vase(dice: Dice, level: int) -> list[Mesh]:
    """A hollow body of revolution with a free outline; two ears with the highest level."""
    high, wall = dice.within(1.0, 2.0), dice.within(0.06, 0.12)
    outer = _bulge(dice, (6, 8, 8)[level], high)
    inner = [(max(r - wall, 0.08), max(z, 2 * wall)) for r, z in outer[:: -2 if level else -3]]
    parts = [turned([*outer, *inner], 9)]
    if level == 2:
        reach = dice.within(0.15, 0.4)
        for side in (-1, 1):
            lower, upper = outer[3], outer[6]
            start, end = (side * lower[0] * 0.95, 0, lower[1]), (side * upper[0] * 0.95, 0, upper[1])
            out = (side * (max(lower[0], upper[0]) + 2 * reach), 0, (lower[1] + upper[1]) / 2)
            parts.append(tube(arc(start, out, end, 4), 0.06, 5))
    return parts


def mug(dice: Dice, level: int) -> list[Mesh]:
    """A hollow cup with a bent handle, and a saucer with the highest level."""
    radius, high, wall = dice.within(0.5, 0.9), dice.within(0.8, 1.6), dice.within(0.06, 0.14)
    flare, reach, grip = dice.within(0.75, 1.2), dice.within(0.25, 0.6), dice.within(0.05, 0.1)
    around = (8, 9, 10)[level]
    steps = np.linspace(0, 1, (3, 4, 4)[level])
    skin = [(radius * (1 + (flare - 1) * float(t)), high * float(t)) for t in steps]
    inner = [(r - wall, max(z, wall)) for r, z in skin[::-1]]
    parts = [turned([*skin, *inner], around)]
    upper, lower = high * dice.within(0.75, 0.9), high * dice.within(0.15, 0.35)

    def rim(z: float) -> float:
        return radius * (1 + (flare - 1) * z / high) - wall / 2

    out = (max(rim(upper), rim(lower)) + 2 * reach, 0, (upper + lower) / 2)
    path = arc((rim(lower), 0, lower), out, (rim(upper), 0, upper), (4, 5, 5)[level])
    parts.append(tube(path, grip, (5, 6, 7)[level]))
    if level == 2:
        plate = radius * dice.within(1.3, 1.8)
        parts.append(turned([(radius * 0.7, -0.1), (plate, 0.0), (plate, 0.05), (radius * 0.7, -0.03)], 9))
    return parts


def arm(dice: Dice, level: int) -> list[Mesh]:
    """A jointed desk lamp: foot, two or three bars at drawn angles with round joints, and a conical head."""
    foot, bar = dice.within(0.3, 0.55), dice.within(0.04, 0.07)
    lengths = [dice.within(0.6, 1.1), dice.within(0.5, 1.0), dice.within(0.3, 0.5)][: (2, 2, 3)[level]]
    angles = [dice.within(1.2, 2.3), dice.within(0.2, 1.0), dice.within(-0.9, 0.1)][: len(lengths)]
    cone = [(foot, 0), (foot, 0.08), (foot * 0.5, 0.15), (bar * 1.5, 0.22)]
    parts = [turned(cone if level == 2 else [*cone[:2], cone[3]], (7, 8, 8)[level])]
    place = np.array([0.0, 0.0, 0.24])
    joint = (5, 6, 6)[level]
    for length, angle in zip(lengths, angles, strict=True):
        parts.append(_joint(place, bar * 2, joint))
        end = place + length * np.array([np.cos(angle), 0, np.sin(angle)])
        parts.append(tube(np.linspace(place, end, 2), bar, 4))
        if level:
            beside = np.array([0, bar * 3, 0])
            parts.append(tube(np.linspace(place + beside, end + beside, 2), bar * 0.6, 4))
        place = end
    parts.append(_joint(place, bar * 2, joint))
    tilt, wide, deep = dice.within(-1.9, -0.9), dice.within(0.2, 0.42), dice.within(0.3, 0.6)
    way = np.array([np.cos(tilt), 0, np.sin(tilt)])
    stops = np.linspace(0, 1, (2, 3, 3)[level])
    parts.append(
        tube(place + np.outer(stops, way * deep), (bar * 1.5 + (wide - bar) * stops**1.5).tolist(), (7, 8, 8)[level])
    )
    return parts


def _joint(place: Points, radius: float, around: int) -> Mesh:
    """A short thick axle across the bars, along y."""
    across = np.array([0, radius, 0])
    return tube(np.stack([place - across, place + across]), radius, around)


KINDS: Mapping[str, Callable[[Dice, int], list[Mesh]]] = MappingProxyType(
    {
        "chair": chair,
        "sofa": sofa,
        "table": table,
        "shelf": shelf,
        "bed": bed,
        "stool": stool,
        "pedestal": pedestal,
        "lamp": lamp,
        "vase": vase,
        "mug": mug,
        "arm": arm,
    }
)
LEVELS = (0.2, 0.4, 0.4)
"""Shares of the three levels, from few parts to many."""
STRETCH = (0.5, 1.0)
"""Range of the factor along an axis. Stretches and turns make retrieval harder: the nearest of 1,500 training shapes
has a Chamfer distance of 0.067 instead of 0.059, where two samples of one surface have 0.049."""


@dataclass(frozen=True, eq=False)
class ProceduralShape:
    """A shape in [-0.95, 0.95] with z upwards; its kind (a key of ``KINDS``) and level (0 to 2)."""

    mesh: Mesh
    category: str
    level: int


def shape(random: np.random.Generator, split: str, level: int | None = None) -> ProceduralShape:
    """Draw a shape.

    Args:
        random: source of all draws.
        split: "train" or "test".
        level: 0 to 2; drawn by ``LEVELS`` if None.

    Raises:
        UsageError: no such split or level.
    """
    if split not in SHARES or level not in (None, *range(len(LEVELS))):
        raise UsageError(f"shapes have the splits {', '.join(SHARES)} and levels 0 to 2; found {split!r}, {level!r}")
    kind = str(random.choice(list(KINDS)))
    chosen = int(random.choice(len(LEVELS), p=LEVELS)) if level is None else level
    return ProceduralShape(build(kind, chosen, Dice(random, split)), kind, chosen)


def build(kind: str, level: int, dice: Dice) -> Mesh:
    """A shape of a kind, stretched along each axis and turned about z by a multiple of 90 degrees."""
    mesh = joined(KINDS[kind](dice, level))
    places = mesh.vertices * [dice.within(*STRETCH) for _ in range(3)]
    for _ in range(dice.count(0, 3)):
        places = np.stack([-places[:, 1], places[:, 0], places[:, 2]], 1)
    return normalise(Mesh(places, mesh.faces))


def normalise(mesh: Mesh, longest: float = 1.9) -> Mesh:
    """Centre the bounding box at the origin and scale its longest side.

    Raises:
        UsageError: a coordinate is not finite, or the mesh is a point.
    """
    low, high = mesh.vertices.min(0), mesh.vertices.max(0)
    extent = float((high - low).max())
    if not np.isfinite(mesh.vertices).all() or extent <= 0:
        raise UsageError("the mesh has no finite size, so it cannot be scaled to the unit box; leave it out")
    return Mesh((mesh.vertices - (low + high) / 2) * (longest / extent), mesh.faces)


def points(mesh: Mesh, n: int, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return ``n`` points of the surface, uniform by area, each with the unit normal of its face: float32 [n, 6].

    Raises:
        UsageError: the area of the mesh is 0.
    """
    corners = mesh.vertices[mesh.faces].astype(np.float64)
    along, across = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    normals = np.cross(along, across)
    area = np.linalg.norm(normals, axis=1)
    total = area.sum()
    if not np.isfinite(total) or total <= 0:
        raise UsageError("the mesh has no area, so no points can be drawn on it; leave it out")
    chosen = random.choice(len(area), n, p=area / total)
    u, v = random.random((2, n))
    u, v = np.where(u + v > 1, 1 - u, u), np.where(u + v > 1, 1 - v, v)
    places = corners[chosen, 0] + u[:, None] * along[chosen] + v[:, None] * across[chosen]
    return np.concatenate([places, normals[chosen] / area[chosen, None]], 1).astype(np.float32)
