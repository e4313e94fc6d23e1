"""Furniture of straight and bent parts: each kind a function of drawn parameters and a level from 0 to 2."""

from __future__ import annotations

import numpy as np

from stridebench.harness.record.outputs import Mesh
from stridebench.harness.synthetic.shapes_parts import Dice, arc, beam, block, panel, tube

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
