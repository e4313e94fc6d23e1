"""The probability that a token wins a race of exponential clocks, as an area of a simplex."""

from __future__ import annotations

from stridebench.harness.errors import EnumerationLimit

Polygon = tuple[tuple[float, ...], ...]


def simplex(size: int) -> Polygon:
    """Return the corners of the simplex on which clocks / sum(clocks) is uniform; V = 2 is a line, V = 3 a triangle."""
    if size not in (2, 3):
        raise EnumerationLimit(f"races are enumerated for a vocabulary of 2 or 3; this one has {size}")
    return tuple(tuple(1.0 if i == j else 0.0 for j in range(size)) for i in range(size))


def winner(region: Polygon, probs: list[float], token: int) -> Polygon:
    """Return the part of a region in which clock / probability is least at ``token``."""
    for other in range(len(probs)):
        if other != token:
            region = _clip(region, probs[other], token, probs[token], other)
    return region


def _clip(region: Polygon, a: float, i: int, b: float, j: int) -> Polygon:
    """Return the part of the area in which a w_i <= b w_j, by walking the border once."""
    out: list[tuple[float, ...]] = []
    for n, point in enumerate(region):
        following = region[(n + 1) % len(region)]
        here, there = b * point[j] - a * point[i], b * following[j] - a * following[i]
        if here >= 0:
            out.append(point)
        if here * there < 0:
            t = here / (here - there)
            out.append(tuple(x + t * (y - x) for x, y in zip(point, following, strict=True)))
    return tuple(dict.fromkeys(out))


def area_of(region: Polygon) -> float:
    """Return the area of a region in a triangle; its length on a line."""
    if len(region) < 2:
        return 0.0
    if len(region[0]) == 2:
        return abs(region[0][0] - region[1][0])
    ring = zip(region, (*region[1:], region[0]), strict=True)
    area = abs(sum(x[0] * y[1] - y[0] * x[1] for x, y in ring)) / 2
    return area if area > 1e-15 else 0.0
