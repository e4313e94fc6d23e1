"""Cells that a reader picked, beside the first: paired by prompt and repetition, with what cannot be compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from stridebench.harness.record import stats
from stridebench.reports.html.text import figure_of

if TYPE_CHECKING:
    from stridebench.harness.record.store import Store
    from stridebench.reports.summary import FinishedCell


@dataclass(frozen=True)
class Picked:
    """A cell, its run, and its row of the summary."""

    store: Store
    finished: FinishedCell
    row: pd.Series[Any]


@dataclass(frozen=True)
class Beside:
    """A cell beside the first.

    Args:
        label, link: as in the table of all cells.
        pairs: outputs of equal prompt and repetition.
        figures: speed, tokens a pass and share of equal outputs, with intervals.
        notes: what is not compared, and why.
    """

    label: str
    link: str
    pairs: int
    figures: tuple[str, str, str]
    notes: tuple[str, ...]


def beside_first(cells: Sequence[Picked]) -> list[Beside]:
    """Every further cell beside the first."""
    return [_beside(cells[0], other) for other in cells[1:]]


def _beside(first: Picked, other: Picked) -> Beside:
    notes = tuple(_notes(first, other))
    a, b = first.finished.totals, other.finished.totals
    both = a.index.intersection(b.index)
    timed = _machine(first) == _machine(other)
    times = [frame.loc[both, "wall_ms"] / frame.loc[both, "output"] for frame in (a, b)]
    tokens = [picked.finished.samples.loc[both, "tokens"].map(tuple) for picked in (first, other)]
    equal = (tokens[0] == tokens[1]).astype(float)
    return Beside(
        label=str(other.row["label"]),
        link=str(other.row["link"]),
        pairs=len(both),
        figures=(
            _text(stats.median_ratio(times[0], times[1]) if timed and len(both) else None),
            _text(stats.difference(a, b, "output", "nfe") if len(both) else None, sign="+"),
            _text(stats.bounded_mean(equal) if len(both) else None),
        ),
        notes=notes,
    )


def _notes(first: Picked, other: Picked) -> Iterator[str]:
    if first.finished.totals.index.intersection(other.finished.totals.index).empty:
        yield "no prompt in common"
    if _machine(first) != _machine(other):
        yield "made on another machine, so times are not compared"
    for key, meaning in (("backbone", "tokens of two models are not the same unit"), ("temperature", ""), ("task", "")):
        if first.row[key] != other.row[key]:
            yield f"other {key}: {first.row[key]} and {other.row[key]}" + (f"; {meaning}" if meaning else "")


def _machine(picked: Picked) -> object:
    return (picked.store.manifest.get("provenance") or {}).get("fingerprint")


def _text(interval: stats.Interval | None, sign: str = "") -> str:
    if interval is None:
        return figure_of(None)
    estimate = ("+" if sign and interval.estimate > 0 else "") + figure_of(interval.estimate)
    if interval.low is None or interval.high is None:
        return f"{estimate} (n={interval.n})"
    return f"{estimate} [{figure_of(interval.low)}, {figure_of(interval.high)}]"
