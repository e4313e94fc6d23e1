"""Where the speed-up of speculation ends as more requests are under way: from the cells of a closed loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from harness.record import stats
from harness.record.request_store import RequestStore
from harness.record.stats import FloatArray
from harness.record.store import Store
from reports import engines
from reports.side_by_side import of_requests, pairs, times
from reports.text_table import Column, TextTable, number

RESAMPLES = 10_000


@dataclass(frozen=True)
class Crossover:
    """The concurrency where the speed-up falls to 1.

    Args:
        at: between two measured ones by a straight line of log speed-up over log concurrency; infinite: above 1 at all
            measured ones; the lowest measured one: at or below 1 there already.
        low: 2.5 % quantile over resampled prompts; None: fewer than six prompts.
        high: 97.5 % quantile.
    """

    at: float
    low: float | None
    high: float | None


def crossing(concurrency: FloatArray, speedups: FloatArray) -> FloatArray:
    """Where each row of speed-ups (R x C) falls to 1 for the first time (R)."""
    places, heights = np.log(concurrency), np.log(np.atleast_2d(speedups))
    out = np.full(len(heights), np.inf)
    for left in reversed(range(len(places) - 1)):
        before, after = heights[:, left], heights[:, left + 1]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = before / (before - after)
        out = np.where(
            (before > 0) & (after <= 0), np.exp(places[left] + share * (places[left + 1] - places[left])), out
        )
    result: FloatArray = np.where(heights[:, 0] <= 0, concurrency[0], out)
    return result


def crossover(tables: Mapping[int, tuple[pd.DataFrame, pd.DataFrame]]) -> Crossover | None:
    """The crossover of one pair of entries.

    Args:
        tables: plain and speculative requests (`reports.side_by_side.of_requests`) by concurrency.

    Returns:
        None where fewer than two concurrencies share prompts.
    """
    levels = sorted(tables)
    parts = [pairs(*tables[level]).add_suffix(f"_{level}") for level in levels]
    if len(levels) < 2:
        return None
    sums = pd.concat(parts, axis=1, join="inner").dropna().groupby(level=0).sum().to_numpy()
    if not len(sums):
        return None
    concurrency = np.array(levels, dtype=np.float64)

    def at(totals: FloatArray) -> FloatArray:
        return crossing(concurrency, totals[..., 0::2] / totals[..., 1::2])

    estimate = float(at(sums.sum(axis=0))[0])
    if len(sums) < stats.FEWEST:
        return Crossover(estimate, None, None)
    drawn = at(stats.resample_counts(len(sums), RESAMPLES, 0) @ sums)
    low, high = np.quantile(drawn, (0.025, 0.975), method="nearest")
    return Crossover(estimate, float(low), float(high))


def text_tables(store: Store) -> list[TextTable]:
    """A table for each entry that was measured at two concurrencies or more beside its plain decode."""
    cells = RequestStore.of(store.path, store.manifest)
    frame = engines.summarise(store)
    if frame.empty:
        return []
    frame = frame[(frame["status"] == "done") & (frame["role"] != "floor") & (frame["concurrency"] > 0)]
    keys = ["backbone", "temperature", "task", "max_new_tokens"]
    out = []
    for names, rows in frame[frame["plain"] != ""].groupby(["label", "plain", *keys], sort=False):
        label, plain, *setting = names
        beside = frame[(frame["label"] == plain) & (frame[keys] == setting).all(axis=1)].set_index("concurrency")
        tables = {
            int(row["concurrency"]): tuple(
                of_requests(cells.cell(str(name)).requests)
                for name in (beside.loc[row["concurrency"], "cell"], row["cell"])
            )
            for _, row in rows.iterrows()
            if row["concurrency"] in beside.index
        }
        if len(tables) > 1:
            out.append(_table(f"{label} over {plain}, T = {setting[1]:g}, {setting[2]}", tables))
    return out


def _table(title: str, tables: Mapping[int, Any]) -> TextTable:
    columns = (Column("load", "concurrency", rank=0), Column("times", "x plain", rank=0))
    lines = []
    for level in sorted(tables):
        interval = times(*tables[level])
        lines.append([str(level), "-" if interval is None else _span(interval.estimate, interval.low, interval.high)])
    end = crossover(tables)
    note = [] if end is None else [f"the speed-up ends at a concurrency of {_span(end.at, end.low, end.high)}"]
    return TextTable(f"speed-up by concurrency: {title}", columns, lines, note)


def _span(value: float, low: float | None, high: float | None) -> str:
    def text(one: float | None) -> str:
        return "more than measured" if one == np.inf else number(one)

    return text(value) if low is None or high is None else f"{text(value)} [{text(low)}, {text(high)}]"
