"""Cells of engines in two runs, request by request: acceptance, seconds a token and the time to the first token."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from stridebench.harness.record.request_metrics import timings
from stridebench.harness.record.request_store import EngineCell, RequestStore
from stridebench.harness.record.requests import counted
from stridebench.reports.gate.gaps import row_of

if TYPE_CHECKING:
    from stridebench.harness.record.store import Store

SECONDS = {"ms_per_token": ("ms", "output_tokens"), "ttft_ms": ("ttft_ms", "one")}
COUNTS = {
    "tau_minus_1": ("accepted", "draft_steps"),
    "acceptance": ("accepted", "drafted"),
    "length_per_pass": ("output_tokens", "passes"),
}
"""Numerator and denominator of each metric; what an engine does not tell gives no row."""


def finished(store: Store) -> dict[str, EngineCell]:
    """Finished cells of engines by their configuration; a plain decode that was made again is none."""
    cells = RequestStore.of(store.path, store.manifest)
    return {
        configuration(cells.planned[name]): cells.cell(name)
        for name in cells.cells()
        if cells.planned[name].get("role") != "floor"
    }


def configuration(planned: Mapping[str, Any]) -> str:
    """What two cells must share, as a key."""
    return json.dumps({key: value for key, value in planned.items() if key != "cell"}, sort_keys=True)


def name_of(cell: EngineCell) -> str:
    """Its label with what it ran on."""
    meta = cell.meta
    return f"{meta['label']}, load {meta['load']} ({meta['backbone']}, T = {meta['sampling']['temperature']:g})"


def alone(run: Mapping[str, EngineCell], other: Mapping[str, EngineCell]) -> list[str]:
    """The names of the cells that the other run lacks."""
    return [name_of(cell) for key, cell in run.items() if key not in other]


def rows(a: EngineCell, b: EngineCell, seconds: bool) -> Iterator[dict[str, Any]]:
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
        "label": f"{meta['label']}, load {meta['load']}",
        **{word: meta.get(word) for word in ("backbone", "dtype", "task")},
        "temperature": float(meta["sampling"]["temperature"]),
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


def _values(cell: EngineCell) -> pd.DataFrame:
    """What the metrics are made of, and each output as a text, by (prompt, repetition)."""
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
