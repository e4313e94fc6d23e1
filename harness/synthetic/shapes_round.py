"""Turned, swept and jointed shapes: each kind a function of drawn parameters and a level from 0 to 2."""

from __future__ import annotations

import numpy as np

from stridebench.harness.record.outputs import Mesh
from stridebench.harness.synthetic.shapes_parts import Dice, Points, arc, tube, turned


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
