"""Measures of an engine's requests, one definition of each. What an engine does not tell is missing, never guessed.

==================== =====================================================================================
length_per_draft     1 + accepted / target passes with a draft (vLLM's and llama.cpp's mean acceptance length)
length_per_pass      output tokens / target passes; where passes are not told, output tokens - accepted stands
                     for them, since each pass emits its accepted drafts and one more token
acceptance           accepted / drafted
ttft                 from sending a request to the first part of its output
tpot                 from the first to the last part / (output tokens - those of the first part)
itl                  between two parts of an output; a part holds a token or several
tokens_per_second    output tokens / wall time from the first sending to the last answer, a session at a time
goodput              good requests / the same wall time; a good one keeps the suite's objective
==================== =====================================================================================

``_pooled`` is the ratio of the totals, ``_mean`` the mean of the requests' own ratios.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from stridebench.harness.record.requests import counted

FloatArray = npt.NDArray[np.float64]
PERCENTILES = (50, 95, 99)


def measures(frame: pd.DataFrame, counters: Mapping[str, Any], objective: Mapping[str, Any]) -> dict[str, float | None]:
    """All measures of a cell.

    Args:
        frame: rows of requests.parquet.
        counters: growth of the server's counters by field, for what requests do not tell; empty: none.
        objective: ``ttft_ms`` and ``tpot_ms`` of a good request; None: no limit.
    """
    rows = counted(frame)
    times = timings(rows)
    wall = wall_seconds(rows)
    tokens = _total(rows["output_tokens"])
    out: dict[str, float | None] = {**acceptance(rows, counters)}
    for name in ("ttft_ms", "tpot_ms"):
        out |= percentiles(name, times[name].dropna().to_numpy(np.float64))
    gaps = [np.diff(np.asarray(row, dtype=np.float64)) / 1e6 for row in rows["arrivals_ns"] if row is not None]
    out |= percentiles("itl_ms", np.concatenate(gaps) if gaps else np.zeros(0))
    out["tokens_per_second"] = tokens / wall if tokens is not None and wall else None
    out["requests_per_second"] = len(rows) / wall if wall else None
    limits = {name: limit for name, limit in objective.items() if limit is not None}
    out["goodput"] = None
    if limits and wall and len(rows):
        good = np.logical_and.reduce([times[name].to_numpy(np.float64) <= limit for name, limit in limits.items()])
        out["goodput"] = float(good.sum()) / wall
    return out


def acceptance(rows: pd.DataFrame, counters: Mapping[str, Any]) -> dict[str, float | None]:
    """Mean acceptance lengths in both definitions, pooled and as a mean of means, and the acceptance rate."""
    totals = {name: _total(rows[name]) for name in ("draft_steps", "drafted", "accepted", "target_passes")}
    counted_ones = {name: float(value) for name, value in counters.items() if name in totals and value is not None}
    totals = {name: counted_ones.get(name) if value is None else value for name, value in totals.items()}
    tokens, accepted, passes = _total(rows["output_tokens"]), totals["accepted"], totals["target_passes"]
    if passes is None and tokens is not None and accepted is not None:
        passes = tokens - accepted
    own = rows["accepted"] / rows["draft_steps"].where(rows["draft_steps"] > 0)
    own_passes = rows["target_passes"].fillna(rows["output_tokens"] - rows["accepted"])
    own_length = rows["output_tokens"] / own_passes.where(own_passes > 0)
    per_draft = _ratio(accepted, totals["draft_steps"])
    return {
        "length_per_draft_pooled": None if per_draft is None else 1 + per_draft,
        "length_per_draft_mean": _mean(1 + own),
        "length_per_pass_pooled": _ratio(tokens, passes),
        "length_per_pass_mean": _mean(own_length),
        "told_length_mean": _mean(rows["told_length"]),
        "acceptance": _ratio(accepted, totals["drafted"]),
    }


def timings(rows: pd.DataFrame) -> pd.DataFrame:
    """``ttft_ms`` and ``tpot_ms`` of each request; NaN where the engine does not tell enough."""
    out = {"ttft_ms": [], "tpot_ms": []}  # type: dict[str, list[float]]
    for arrivals, parts, tokens in zip(rows["arrivals_ns"], rows["chunk_tokens"], rows["output_tokens"], strict=True):
        out["ttft_ms"].append(arrivals[0] / 1e6 if arrivals is not None and len(arrivals) else np.nan)
        first = None if parts is None else int(parts[0])
        later = None if first is None or pd.isna(tokens) else int(tokens) - first
        spread = (arrivals[-1] - arrivals[0]) / 1e6 if arrivals is not None and len(arrivals) else np.nan
        out["tpot_ms"].append(spread / later if later else np.nan)
    return pd.DataFrame(out, index=rows.index)


def wall_seconds(rows: pd.DataFrame) -> float:
    """Wall time from the first sending to the last answer, added up over sessions."""
    spans = rows.groupby("session").agg(first=("sent_ns", "min"), last=("ended_ns", "max"))
    return float((spans["last"] - spans["first"]).sum()) / 1e9


def per_position(frame: pd.DataFrame) -> list[float]:
    """Share of steps with a draft that kept one at each position, from the requests' histograms; empty: not told."""
    rows = counted(frame)
    histograms = [np.asarray(row, dtype=np.int64) for row in rows["histogram"] if row is not None]
    if not histograms or len(histograms) < len(rows):
        return []
    total = np.zeros(max(map(len, histograms)), dtype=np.int64)
    for histogram in histograms:
        total[: len(histogram)] += histogram
    steps = int(total.sum())
    return [float(total[place:].sum()) / steps for place in range(1, len(total))] if steps else []


def percentiles(name: str, values: FloatArray) -> dict[str, float | None]:
    """Percentiles by name, such as ``ttft_ms_p95``."""
    return {f"{name}_p{p}": float(np.percentile(values, p)) if len(values) else None for p in PERCENTILES}


def _total(column: pd.Series[Any]) -> float | None:
    """The sum of a column; None where a request does not tell it."""
    return float(column.sum()) if len(column) and bool(column.notna().all()) else None


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _mean(column: pd.Series[Any]) -> float | None:
    told = column.dropna()
    return float(told.mean()) if len(told) else None
