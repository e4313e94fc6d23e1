"""The columns of requests.parquet, as the fields of `Request`: one request to an engine.

What an engine does not tell is null. Times are nanoseconds on one monotonic clock of the run's process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa


@dataclass(frozen=True)
class Request:
    """One request to an engine.

    Args:
        prompt: the prompt's id.
        repetition: 0, 1, ...; each has another seed.
        warmup: stored, never counted.
        status: "ok" or "failed".
        fault: the kind of a failure (`stridebench.harness.core.engine.FAULTS`), or None if there was none.
        error: the failure in one line.
        category: the prompt's.
        session: 0, 1, ...: which start of the run made it. Times of two sessions are not compared.
        seed: of its draws.
        prompt_tokens: ids of the prompt, as the backbone's tokenizer has them.
        told_prompt_tokens: as the engine says; null: not told.
        tokens: output ids; null: not told.
        text: the output; of an engine that tells ids alone, as the backbone's tokenizer reads them; null: neither is
            told.
        output_tokens: number of tokens of the output; null: not told.
        finish: why the output ended, in the engine's word.
        scheduled_ns: when it was due, in an open loop; null: it was sent when a place was free.
        sent_ns: when it was sent, from the session's start.
        ended_ns: when the answer was complete, from the session's start.
        arrivals_ns: when each part of the output arrived, after ``sent_ns``; null: not told.
        chunk_tokens: tokens of each part; null: not told.
        logprobs: log p of each token (natural), as the engine says; null: not told.
        draft_steps: target passes that verified at least one draft.
        drafted: drafted tokens.
        accepted: drafted tokens kept.
        histogram: entry i is the number of steps that kept i drafts.
        per_position: entry i is the number of steps that kept a draft at position i.
        target_passes: passes of the target.
        told_length: the mean acceptance length that the engine tells.
        told_rate: the acceptance rate that the engine tells.
    """

    prompt: str
    repetition: int
    warmup: bool
    status: str
    fault: str | None = None
    error: str | None = None
    category: str = ""
    session: int = 0
    seed: int = 0
    prompt_tokens: int | None = None
    told_prompt_tokens: int | None = None
    tokens: tuple[int, ...] | None = None
    text: str | None = None
    output_tokens: int | None = None
    finish: str = ""
    scheduled_ns: int | None = None
    sent_ns: int = 0
    ended_ns: int = 0
    arrivals_ns: tuple[int, ...] | None = None
    chunk_tokens: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    draft_steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    histogram: tuple[int, ...] | None = None
    per_position: tuple[int, ...] | None = None
    target_passes: int | None = None
    told_length: float | None = None
    told_rate: float | None = None

    @property
    def key(self) -> tuple[str, int, bool]:
        """What tells it from the other requests of its cell."""
        return self.prompt, self.repetition, self.warmup

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Request:
        """The inverse of `dataclasses.asdict` through JSON."""
        lists = {name: tuple(value) for name, value in plain.items() if isinstance(value, list)}
        return Request(**{**plain, **lists})


_TYPES = {
    "str": pa.string(),
    "int": pa.int64(),
    "bool": pa.bool_(),
    "float": pa.float64(),
    "tuple[int, ...]": pa.list_(pa.int64()),
    "tuple[float, ...]": pa.list_(pa.float64()),
}
REQUESTS = pa.schema({f.name: _TYPES[str(f.type).removesuffix(" | None")] for f in fields(Request)})
"""The schema of requests.parquet."""
COUNTS = ("draft_steps", "drafted", "accepted", "target_passes")
"""Columns of acceptance that are totals."""


def table(requests: list[Request]) -> pa.Table:
    """The table of some requests."""
    return pa.Table.from_pylist([asdict(request) for request in requests], schema=REQUESTS)


def counted(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that succeeded and are not warm-ups."""
    return frame[(frame["status"] == "ok") & ~frame["warmup"]]


def identities(request: Request, rounding: float = 0.006) -> list[str]:
    """Return the identities that an engine's numbers break; empty if there are none, or too little is told.

    Args:
        rounding: by how much its means may differ, since engines print two decimals.
    """
    steps, drafted, accepted, histogram = (
        request.draft_steps,
        request.drafted,
        request.accepted,
        request.histogram,
    )
    wrong = []
    if drafted is not None and accepted is not None and not 0 <= accepted <= drafted:
        wrong.append(f"accepted {accepted} of {drafted} drafts")
    if accepted is not None and request.output_tokens is not None and accepted > request.output_tokens:
        wrong.append(f"accepted {accepted} drafts in {request.output_tokens} tokens")
    if histogram is not None and steps is not None and sum(histogram) != steps:
        wrong.append(f"the histogram holds {sum(histogram)} steps, and there were {steps}")
    if histogram is not None and accepted is not None:
        in_it = sum(number * count for number, count in enumerate(histogram))
        if in_it != accepted:
            wrong.append(f"the histogram holds {in_it} accepted drafts, and there were {accepted}")
    if request.told_length is not None and steps and accepted is not None:
        length = 1 + accepted / steps
        if abs(length - request.told_length) > rounding:
            wrong.append(f"it says a mean length of {request.told_length:g}, and its counts give {length:.3f}")
    if request.told_rate is not None and drafted and accepted is not None:
        rate = accepted / drafted
        if abs(rate - request.told_rate) > rounding:
            wrong.append(f"it says an acceptance of {request.told_rate:g}, and its counts give {rate:.3f}")
    return wrong


# Measures of an engine's requests, one definition of each. What an engine does not tell is missing, never guessed.
# ==================== =====================================================================================
# length_per_draft     1 + accepted / target passes with a draft (vLLM's and llama.cpp's mean acceptance length)
# length_per_pass      output tokens / target passes; where passes are not told, output tokens - accepted stands
#                      for them, since each pass emits its accepted drafts and one more token
# acceptance           accepted / drafted
# ttft                 from sending a request to the first part of its output
# tpot                 from the first to the last part / (output tokens - those of the first part)
# itl                  between two parts of an output; a part holds a token or several
# tokens_per_second    output tokens / wall time from the first sending to the last answer, a session at a time
# goodput              good requests / the same wall time; a good one keeps the suite's objective
# ==================== =====================================================================================
# ``_pooled`` is the ratio of the totals, ``_mean`` the mean of the requests' own ratios.


FloatArray = npt.NDArray[np.float64]
PERCENTILES = (50, 95, 99)


def measures(frame: pd.DataFrame, counters: Mapping[str, Any], objective: Mapping[str, Any]) -> dict[str, float | None]:
    """All measures of a cell.

    Args:
        counters: growth of the server's counters by field, for what requests do not tell; empty: none.
        objective: ``ttft_ms`` and ``tpot_ms`` of a good request, or None if there is no limit.
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
    """Return ``ttft_ms`` and ``tpot_ms`` of each request; NaN if the engine does not tell enough."""
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
    """Return the sum of a column, or None if a request does not tell it."""
    return float(column.sum()) if len(column) and bool(column.notna().all()) else None


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _mean(column: pd.Series[Any]) -> float | None:
    told = column.dropna()
    return float(told.mean()) if len(told) else None
