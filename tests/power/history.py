"""`python -m tests.power.history [FILE]`: false alarms and power of `stride gate history`.

A history of 12 or 30 nights is drawn anew in each run, without a change or with a step of five standard deviations of a
night. Writes a results file such as ``reports/data/results/history.yaml``; prints each row as it is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stridebench.reports.history.series import Night, Series, changes
from tests.results import document, save

LEVEL, DEVIATION, STEP, RUNS = 0.6, 0.012, 5.0, 400
Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]


def odd(rng: np.random.Generator, nights: int) -> NDArray[np.float64]:
    """One value, but 30 % odd nights."""
    return LEVEL + DEVIATION * np.where(rng.random(nights) < 0.3, rng.normal(size=nights) / 0.3**0.5, 0.0)


def two_values(rng: np.random.Generator, nights: int) -> NDArray[np.float64]:
    """One value in 70 % of the nights and another in 30 %."""
    return LEVEL + DEVIATION * (rng.random(nights) < 0.3) / 0.21**0.5


def ar(rng: np.random.Generator, nights: int, correlation: float = 0.6) -> NDArray[np.float64]:
    """Normal noise, correlated by 0.6 from night to night."""
    noise = [rng.normal()]
    for draw in rng.normal(size=nights - 1):
        noise.append(correlation * noise[-1] + (1 - correlation**2) ** 0.5 * draw)
    return LEVEL + DEVIATION * np.array(noise)


def independent(rng: np.random.Generator, nights: int) -> NDArray[np.float64]:
    """Independent normal noise."""
    return ar(rng, nights, 0.0)


SERIES: Mapping[str, Draw] = {"odd": odd, "two": two_values, "ar": ar, "independent": independent}
COLUMNS = ["nights differ by", "nights", "false alarms", "step in the middle found", "step three nights ago found"]


def found(values: NDArray[np.float64]) -> list[int]:
    """Return the numbers of the nights at which a change begins."""
    nights = tuple(Night(f"{number:04d}", str(number), None) for number in range(len(values)))
    series = Series("c", "c", "", "acceptance", nights, tuple(map(float, values)), 0, 0, None)
    return [int(change.first.run) for change in changes(series)]


def row(name: str, nights: int, runs: int = RUNS) -> list[str]:
    """Return one row of the table: percent of the runs; a step is found within two nights of its own."""
    draw, rng = SERIES[name], np.random.default_rng([nights, list(SERIES).index(name)])
    shares = [sum(bool(found(draw(rng, nights))) for _ in range(runs))]
    for after in (nights // 2, 3):
        steps = [draw(rng, nights) + STEP * DEVIATION * (np.arange(nights) >= nights - after) for _ in range(runs)]
        shares.append(sum(any(abs(place - nights + after) <= 2 for place in found(step)) for step in steps))
    cells = [str(draw.__doc__).rstrip("."), str(nights), *(f"{100 * share / runs:.1f}" for share in shares)]
    print(*cells, sep="\t", flush=True)
    return cells


def results(path: Path | None) -> None:
    """Measure, and write the file."""
    rows = [row(name, nights) for name in SERIES for nights in (12, 30)]
    tables = [{"name": "power", "columns": COLUMNS, "rows": rows}]
    save(
        path,
        document(
            "False alarms and power of a history",
            "tests.power.history reports/data/results/history.yaml",
            f"Percent of {RUNS} histories. A step has five standard deviations of a night.",
            tables,
        ),
    )


if __name__ == "__main__":
    results(Path(sys.argv[1]) if sys.argv[1:] else None)
