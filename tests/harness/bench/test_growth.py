"""Slopes of what grows, and their picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stridebench.harness.bench import growth
from stridebench.harness.bench.growth import Prepared, slope_of
from stridebench.harness.bench.paired import Settings
from stridebench.reports.growth import draw


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_a_slope_is_the_power_of_the_largest_sizes(power: float) -> None:
    grown = [(size, 1e-6 * size**power, 0.0) for size in (100.0, 1_000.0, 10_000.0)]
    slope, low, high = slope_of([(10.0, 5.0, 0.0), *grown])  # a fixed cost of the smallest size does not count
    assert slope == pytest.approx(power) and low == pytest.approx(power) == pytest.approx(high)


@pytest.mark.parametrize(("power", "verdict"), [(1, "pass"), (2, "fail")])
def test_what_grows_faster_than_its_work_fails(power: int, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def prepare(size: int) -> Iterator[Prepared]:
        yield lambda: now.__setitem__(0, now[0] + 1e-3 * size**power)

    monkeypatch.setattr(growth.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(growth.gc, "collect", lambda: 0)
    result = growth.growth("things", (10, 20, 40), prepare, "a loop")("scale by things", Settings())
    assert result.verdict == verdict and result.ratio == pytest.approx(power)
    assert [point[0] for point in result.points] == [10.0] * 3 + [20.0] * 3 + [40.0] * 3


@pytest.mark.parametrize(("axis", "size"), [("prompts", 3), ("cells", 20), ("steps", 200), ("vocabulary", 64)])
def test_each_axis_works_at_a_small_size(axis: str, size: int) -> None:
    for timed in getattr(growth, axis)(size):
        timed()


def test_the_picture_has_a_panel_for_each_curve(tmp_path: Path) -> None:
    points = [(10.0, 0.1, 1.0), (100.0, 1.0, 2.0), (1_000.0, 10.0, 30.0)]
    draw(
        [("scale by prompts", points, (1.0, 0.9, 1.1)), ("scale by cells", points, (1.0, None, None))],
        tmp_path / "a.png",
    )
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
