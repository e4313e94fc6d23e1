"""Reads a history, the JSON lines of `stride run --append` and `stride gate nightly`; series, and their changes."""

from __future__ import annotations

import json
import math
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stridebench.harness.errors import UsageError, printable_line

METRICS = (
    *("scr", "tau", "acceptance", "expected_per_node", "agreement", "logprob", "speedup"),
    *("length_per_draft", "length_per_pass", "ttft_ms", "tpot_ms"),
)
"""Metrics of a history, in the order of its tables; followed by the scores, ``score.NAME`` and ``set.NAME``."""
SECONDS = ("speedup", "ttft_ms", "tpot_ms")
"""Metrics that are compared between equal machines alone."""
TYPES: Mapping[str, tuple[type, ...]] = {
    **{"temperature": (int, float), "machine": (str,), "git": (dict,)},
    **dict.fromkeys(("status", "role", "label", "suite", "run", "backbone", "dtype", "task"), (str,)),
    **dict.fromkeys(METRICS, (int, float)),
}
"""Types of what else is read, which are those of scores too; each may be null."""
WIDTH = 3.92
"""A 95 % interval in standard errors."""
INFINITE = ("inf", "-inf")
"""How `stride run --append` writes an infinity, which is not a value."""
REMEDY = "remove the line, or restore the file from a copy"
LARGEST = 1e15
"""No figure is larger; a number above it is damage, and its square would leave the range of a float."""


@dataclass(frozen=True)
class Night:
    """One run of the suite.

    Args:
        created: when it began, in ISO 8601.
        commit: of the tree that it ran from, with ``+`` if that was changed, or None if it is not known.
    """

    created: str
    run: str
    commit: str | None


@dataclass(frozen=True)
class Series:
    """A metric of a cell over the nights that have it.

    Args:
        metric: a name of ``METRICS`` or of a score.
        holes: nights of the suite without a value, between those that have one.
        missing: nights of the suite since the last value, in which no series of the same metric has one.
        machine: the machine of the runs, for seconds; None for counts.
        error: standard error of a night's value over prompts, the median of the nights; 0 without intervals.
    """

    cell: str
    label: str
    setting: str
    metric: str
    nights: tuple[Night, ...]
    values: tuple[float, ...]
    holes: int
    missing: int
    machine: str | None
    error: float = 0.0


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a history's file, or of every ``*.jsonl`` of its folder. A line that stands twice counts once."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path] if path.is_file() else []
    if not files:
        raise UsageError(
            f"{path} holds no history (no *.jsonl); `stride gate nightly SUITE --history {path}` begins one"
        )
    lines: dict[tuple[str, str], tuple[dict[str, Any], str]] = {}
    for file in files:
        for number, text in enumerate(file.read_bytes().removeprefix(BOM_UTF8).split(b"\n"), start=1):
            if text.strip():
                place = f"{file}, line {number}"
                line = _line(text, place)
                before, elsewhere = lines.setdefault((line["cell"], line["created"]), (line, place))
                if not _same(before, line):
                    raise UsageError(
                        f"{place} and {elsewhere} tell different things of the cell {line['cell']!r:.60} and the time "
                        f"{line['created']}; remove the wrong one"
                    )
    if not lines:
        raise UsageError(
            f"{path} holds no history: no line is in it; `stride gate nightly SUITE --history DIR` adds some"
        )
    return [line for line, _ in lines.values()]


def _same(before: Mapping[str, Any], line: Mapping[str, Any]) -> bool:
    """Whether two lines are equal; NaN equals NaN."""
    return before is line or json.dumps(before, sort_keys=True) == json.dumps(line, sort_keys=True)


def _line(text: bytes, place: str) -> dict[str, Any]:
    try:
        line = json.loads(text.decode())
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise UsageError(f"{place}: no JSON ({error}); {REMEDY}") from error
    if not isinstance(line, dict) or not all(isinstance(line.get(key), str) for key in ("cell", "created")):
        raise UsageError(f"{place}: no line of a history, which names its cell and when its run was created")
    for key, kinds in {**TYPES, **dict.fromkeys(_scores(line), (int, float))}.items():
        value = line.get(key)
        wrong = value is not None and (not isinstance(value, kinds) or isinstance(value, bool))
        if (wrong and value not in INFINITE) or (isinstance(value, int | float) and LARGEST < abs(value) < math.inf):
            raise UsageError(f"{place}: {key} is {value!r:.60}; {REMEDY}")
    return {**line, "created": _utc(line["created"], place)}


def _utc(text: str, place: str) -> str:
    """A time in ISO 8601 as UTC, so that times sort as texts; one without a zone is taken for UTC."""
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{place}: created is {text!r:.60}, no time in ISO 8601; remove the line") from error


def series(lines: Sequence[Mapping[str, Any]]) -> list[Series]:
    """One series a cell, metric and, for seconds, machine; at least two nights each."""
    nights = {line["created"]: _night(line) for line in sorted(lines, key=lambda line: str(line["created"]))}
    suites = {line["created"]: line.get("suite") for line in lines}
    values: dict[tuple[Any, ...], dict[str, float]] = {}
    widths: dict[tuple[Any, ...], list[float]] = {}
    first: dict[str, Mapping[str, Any]] = {}
    for line in lines:
        if line.get("status", "done") != "done" or line.get("role", "method") == "floor":
            continue
        first.setdefault(line["cell"], line)
        for metric in [*METRICS, *_scores(line)]:
            number = line.get(metric)
            if isinstance(number, int | float) and math.isfinite(number):
                machine = line.get("machine") if metric in SECONDS else None
                values.setdefault((line["cell"], metric, machine), {})[line["created"]] = float(number)
                low, high = (line.get(f"{metric}_{end}") for end in ("low", "high"))
                if isinstance(low, int | float) and isinstance(high, int | float) and math.isfinite(high - low):
                    widths.setdefault((line["cell"], metric, machine), []).append(float(high - low))
    valued: dict[tuple[str, str], set[str]] = {}
    for (cell, metric, *_), by_night in values.items():
        valued.setdefault((cell, metric), set()).update(by_night)
    return [
        _series(first[key[0]], key, by_night, nights, _without(valued[key[:2]], suites), widths.get(key, []))
        for key, by_night in sorted(values.items(), key=lambda item: _order(item[0], list(first)))
        if len(by_night) > 1
    ]


def _without(valued: set[str], suites: Mapping[str, Any]) -> set[str]:
    """Return the nights of the same suites that lack a cell's metric, in whichever series."""
    own = {suites[created] for created in valued}
    return {created for created, suite in suites.items() if suite in own and created not in valued}


def _series(
    line: Mapping[str, Any],
    key: tuple[Any, ...],
    by_night: Mapping[str, float],
    nights: Mapping[str, Night],
    without: set[str],
    widths: Sequence[float],
) -> Series:
    cell, metric, machine = key
    shared = [created for created in nights if created in by_night]
    setting = f"{line.get('backbone')} {line.get('dtype')}, T = {line.get('temperature') or 0:g}, {line.get('task')}"
    return Series(
        cell,
        printable_line(str(line.get("label") or cell)),
        printable_line(setting),
        metric,
        tuple(nights[created] for created in shared),
        tuple(by_night[created] for created in shared),
        sum(shared[0] < created < shared[-1] for created in without),
        sum(created > shared[-1] for created in without),
        machine,
        median(widths) / WIDTH if widths else 0.0,
    )


def _order(key: tuple[Any, ...], cells: Sequence[str]) -> tuple[Any, ...]:
    cell, metric, machine = key
    place = METRICS.index(metric) if metric in METRICS else len(METRICS)
    return cells.index(cell), place, metric, machine or ""


def _scores(line: Mapping[str, Any]) -> list[str]:
    return [key for key in line if key.startswith(("score.", "set.")) and f"{key}_low" in line]


def _night(line: Mapping[str, Any]) -> Night:
    git = line.get("git")
    commit = git.get("commit") if isinstance(git, dict) else None
    if isinstance(commit, str):
        commit = commit[:12] + ("+" if isinstance(git, dict) and git.get("dirty") else "")
    return Night(str(line["created"]), str(line.get("run", "")), commit if isinstance(commit, str) else None)


# Candidates are the change points of ruptures (PELT) with a cost of squared deviations, in units of the noise that the
# differences of neighbouring nights show. Each is then tested between its neighbours, in two ways:
# - against noise that goes on for several nights: it explains ``GAIN`` times the variance of the nights around it. In
#   95 of 100 series without a change no place does, even if neighbouring nights are correlated by 0.6 (AR(1));
# - against odd nights: in 95 of 100 permutations of these nights no place explains as much.
# A night's deviation is at least a share of its standard error over prompts (`WITHIN`). The whole error would be too
# much: it is over prompts drawn anew, and all nights have the same ones, so most of it is common to them.
# ``python -m tests.power.history`` measures false alarms and power.


FEWEST = 8
"""Nights below which no change is looked for: permutations of fewer are too few to tell one."""
SHORTEST = 3
"""Nights on each side of a change: a step is seen on its third night, and one odd night is none."""
PENALTY = 25.0
"""Least gain of a candidate in units of the noise's variance: five standard errors."""
GAIN, SEVERAL = 40.0, 60.0
"""Least gain in units of the variance around a change: of the only candidate of a series, and of several."""
PERMUTATIONS, ALPHA = 999, 0.05
NEGLIGIBLE, WITHIN = 0.002, 0.1
"""The deviation of a night is at least this share of its value, and this share of its standard error over prompts.

A tenth of the error is what two nights differ by whose prompts agree to a correlation of 0.995.
"""


@dataclass(frozen=True)
class Change:
    """A step of a series.

    Args:
        before: mean of the nights since the change before.
        after: mean of the nights up to the next change.
    """

    before: float
    after: float
    last: Night
    first: Night

    @property
    def relative(self) -> float | None:
        """Return the step as a share of the size before, or None if that is 0."""
        return (self.after - self.before) / abs(self.before) if self.before else None

    @property
    def commits(self) -> str:
        """The range of commits in which the change lies."""
        return f"{self.last.commit or 'unknown'}..{self.first.commit or 'unknown'}"


def changes(series: Series) -> list[Change]:
    """The change points of a series, in the order of time; none in fewer than eight nights."""
    values = np.array(series.values, dtype=np.float64)
    if len(values) < FEWEST:
        return []
    floor = max(NEGLIGIBLE * float(np.median(np.abs(values))), WITHIN * series.error, 1e-12)
    import ruptures  # with scipy's optimisers, which tables of fewer nights do not need

    scaled = (values - np.median(values)) / max(noise(values), floor)
    search = ruptures.Pelt(model="l2", min_size=SHORTEST, jump=1).fit(scaled[:, None])
    ends = _tested(values, floor, [0, *search.predict(pen=PENALTY)])
    parts = [values[begin:end] for begin, end in pairwise(ends)]
    return [
        Change(float(left.mean()), float(right.mean()), series.nights[place - 1], series.nights[place])
        for (left, right), place in zip(pairwise(parts), ends[1:-1], strict=True)
    ]


def noise(values: NDArray[np.float64]) -> float:
    """Standard deviation of a night, from the median of the absolute differences of neighbours."""
    return 1.4826 * float(np.median(np.abs(np.diff(values)))) / 2**0.5


def _tested(values: NDArray[np.float64], floor: float, ends: list[int]) -> list[int]:
    """Return the ends of the parts between changes that pass both tests; the weakest candidate is left out first."""
    while len(ends) > 2:
        around = [values[begin:end] for begin, end in zip(ends, ends[2:], strict=False)]
        gains = [
            float(_gains(nights[None], floor)[0, place - begin - SHORTEST])
            for nights, begin, place in zip(around, ends, ends[1:], strict=False)
        ]
        weakest = int(np.argmin(gains))
        if gains[weakest] >= (GAIN if len(ends) == 3 else SEVERAL):
            p = [_p_of_permutations(nights, gain, floor) for nights, gain in zip(around, gains, strict=True)]
            weakest = int(np.argmax(p))
            if p[weakest] <= ALPHA:
                break
        ends = [*ends[: weakest + 1], *ends[weakest + 2 :]]
    return ends


def _gains(rows: NDArray[np.float64], floor: float) -> NDArray[np.float64]:
    """Return what a change at each place of each row explains, in units of the variance around it, [rows, places].

    The first place is behind ``SHORTEST`` nights, and the last one before as many. The deviation is at least ``floor``.
    """
    n = rows.shape[1]
    centred = rows - rows.mean(axis=1, keepdims=True)
    places = np.arange(SHORTEST, n - SHORTEST + 1)
    explained = np.cumsum(centred, axis=1)[:, places - 1] ** 2 * n / (places * (n - places))
    rest = (centred**2).sum(axis=1, keepdims=True) - explained
    gains: NDArray[np.float64] = explained / np.maximum(rest / (n - 2), floor**2)
    return gains


def _p_of_permutations(nights: NDArray[np.float64], gain: float, floor: float) -> float:
    """Return the share of permutations of the nights with a place that explains as much."""
    rows = np.random.default_rng(0).permuted(np.tile(nights, (PERMUTATIONS, 1)), axis=1)
    return float((_gains(rows, floor).max(axis=1) >= gain * (1 - 1e-9)).sum() + 1) / (PERMUTATIONS + 1)
