"""Cells of engines in a baseline and in a gate: their requests as rows of the same figures as a method's samples.

A step is a pass with a draft: `output` is what those passes emitted, one token and the accepted drafts each, so that
tau - 1 is the length a draft less 1. Requests that do not tell their steps are left out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from stridebench.harness.errors import UsageError
from stridebench.harness.record import stats
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.requests import counted, timings
from stridebench.harness.record.store import SealedCell

if TYPE_CHECKING:
    from stridebench.harness.record.store import Store


# One row of a comparison: a ratio in two runs, and how far it differs.


def row_of(
    metric: str, before: pd.DataFrame, after: pd.DataFrame, ratio: tuple[str, str], minus: float = 0.0
) -> dict[str, Any] | None:
    """Return metric, a, b, difference with its bounds, prompts and evidence, or None if the runs share no value.

    Args:
        before: of run a, by (prompt, repetition).
        after: of the other run.
        ratio: the columns of numerator and denominator.
        minus: subtracted from the metric's level.
    """
    gap = stats.difference(before, after, *ratio)
    if gap is None:
        return None
    sides = {"a": stats.ratio(before, *ratio, minus), "b": stats.ratio(after, *ratio, minus)}
    levels = {side: interval.estimate if interval else None for side, interval in sides.items()}
    bounds = {"difference": gap.estimate, "low": gap.low, "high": gap.high, "prompts": gap.n}
    return {"metric": metric, **levels, **bounds, "evidence": evidence(gap)}


def evidence(gap: stats.Interval) -> float | None:
    """Return how many standard errors the difference is from zero, by its 95 % interval, or None if it lacks one.

    A difference that is the same for every prompt has standard error zero, and is infinitely far from zero.
    """
    if gap.low is None or gap.high is None:
        return None
    error = (gap.high - gap.low) / (2 * 1.96)
    if error == 0:
        return math.inf if gap.estimate else 0.0
    return abs(gap.estimate) / error


def names(store: Store) -> list[str]:
    """Finished cells of speculative engines."""
    return [name for name in store.engine_cells() if store.manifest.engines[name].role == "speculative"]


def broken(store: Store) -> list[str]:
    """Return the cells whose tokens were refuted while the plain decode's were not."""
    return [name for name in names(store) if store.meta(name).judged.verdict == "broken"]


def label(store: Store, name: str) -> str:
    """Its name in tables."""
    planned = store.manifest.engines[name]
    return f"{planned.label}, load {planned.load}"


def figures(store: Store, name: str) -> pd.DataFrame:
    """The columns of `stridebench.reports.gate.baseline.figures_of`; those that no engine tells are missing."""
    rows = counted(store.cell(name).requests).set_index(["prompt", "repetition"])
    rows = rows[rows[["draft_steps", "drafted", "accepted"]].notna().all(axis=1)].sort_index()
    steps, drafted, accepted = (rows[column].astype(int) for column in ("draft_steps", "drafted", "accepted"))
    texts = [
        json.dumps([int(token) for token in tokens]) if tokens is not None else str(text)
        for tokens, text in zip(rows["tokens"], rows["text"], strict=True)
    ]
    columns = {"output": steps + accepted, "steps": steps, "accepted": accepted, "tested": drafted, "drafted": drafted}
    frame = pd.DataFrame({**columns, "nfe": steps}, index=rows.index)
    frame[["expected", "logprob", "speedup"]] = np.nan
    return frame.assign(sha256=[hashlib.sha256(text.encode()).hexdigest() for text in texts])


def failures(store: Store, name: str) -> pd.DataFrame:
    """Requests that failed."""
    rows = store.cell(name).requests
    return rows[(rows["status"] != "ok") & ~rows["warmup"]]


def rerun(store: Store, name: str, again: Store) -> pd.DataFrame:
    """The figures of the same cell of a rerun with another seed.

    Raises:
        UsageError: there is none.
    """
    configured = configuration(store.manifest.engines[name], ("cell", "seed"))
    for other in names(again):
        if configuration(again.manifest.engines[other], ("cell", "seed")) == configured:
            return figures(again, other)
    raise UsageError(f"{again.path} lacks a finished cell like {label(store, name)}; rerun the same suite")


# Cells of engines in two runs, request by request: acceptance, seconds a token and the time to the first token.


SECONDS = {"ms_per_token": ("ms", "output_tokens"), "ttft_ms": ("ttft_ms", "one")}
COUNTS = {
    "tau_minus_1": ("accepted", "draft_steps"),
    "acceptance": ("accepted", "drafted"),
    "length_per_pass": ("output_tokens", "passes"),
}
"""Numerator and denominator of each metric; what an engine does not tell gives no row."""


def finished(store: Store) -> dict[str, SealedCell]:
    """Finished cells of engines by their configuration; a plain decode that was made again is none."""
    planned = store.manifest.engines
    cells = [name for name in store.engine_cells() if planned[name].role != "floor"]
    return {configuration(planned[name]): store.cell(name) for name in cells}


def configuration(planned: CellMeta, but: Sequence[str] = ("cell",)) -> str:
    """Return what two cells must share, as a key: all facts except some."""
    return json.dumps({key: value for key, value in planned.stored().items() if key not in but}, sort_keys=True)


def name_of(cell: SealedCell) -> str:
    """Return its label with its backbone and sampling."""
    meta = cell.meta
    return f"{meta.label}, load {meta.load} ({meta.backbone}, {meta.sampling.words})"


def alone(run: Mapping[str, SealedCell], other: Mapping[str, SealedCell]) -> list[str]:
    """The names of the cells that the other run lacks."""
    return [name_of(cell) for key, cell in run.items() if key not in other]


def rows(a: SealedCell, b: SealedCell, seconds: bool) -> Iterator[dict[str, Any]]:
    """A row a metric, over the requests that both answered.

    Args:
        seconds: whether times are compared too.
    """
    sides = [_values(cell) for cell in (a, b)]
    shared = sides[0].index.intersection(sides[1].index)
    before, after = (side.loc[shared] for side in sides)
    meta = a.meta
    common = {
        "cell": a.name,
        "label": f"{meta.label}, load {meta.load}",
        **{word: getattr(meta, word) for word in ("backbone", "dtype", "task")},
        "temperature": meta.sampling.temperature,
        "pairs": len(shared),
        "equal": int((before["output"] == after["output"]).sum()),
    }
    for metric, ratio in (COUNTS | (SECONDS if seconds else {})).items():
        one, two = (side[list(ratio)].astype(float).dropna() for side in (before, after))
        if not (one[ratio[1]].sum() and two[ratio[1]].sum()):
            continue  # an engine that does not tell
        row = row_of(metric, one, two, ratio)
        if row is not None:
            yield {**common, **row}


def _values(cell: SealedCell) -> pd.DataFrame:
    """Return the terms of the metrics, and each output as a text, by (prompt, repetition)."""
    requests = counted(cell.requests)
    frame = requests[["output_tokens", "accepted", "drafted", "draft_steps", "target_passes"]].astype(float)
    passes = frame["target_passes"].fillna(frame["output_tokens"] - frame["accepted"])
    outputs = [
        str(text if tokens is None else [int(token) for token in tokens])
        for tokens, text in zip(requests["tokens"], requests["text"], strict=True)
    ]
    ms = (requests["ended_ns"] - requests["sent_ns"]) / 1e6
    frame = frame.assign(passes=passes, ms=ms, ttft_ms=timings(requests)["ttft_ms"], one=1.0, output=outputs)
    return frame.set_index(pd.MultiIndex.from_frame(requests[["prompt", "repetition"]]))
