"""Reads a history, the JSON lines of `stride run --append` and `stride gate nightly`, into series of metrics."""

from __future__ import annotations

import json
import math
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

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
