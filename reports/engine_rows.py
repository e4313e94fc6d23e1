"""A row for each cell of an engine, whose figures come from its requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from stridebench.harness.record.entries import SAMPLING, CellMeta, StoredCounters
from stridebench.harness.record.requests import measures
from stridebench.harness.record.store import Store
from stridebench.reports.finished_cell import Row, task_words

SETTING_OF_ENGINE = ("backbone", *SAMPLING, "task", "max_new_tokens")
"""What cells of engines share that stand in one table."""


def of_engine(rows: pd.DataFrame | pd.Series[Any] | Mapping[str, Any]) -> bool:
    """Return whether a row, or the rows of a summary, are those of engines."""
    return "load" in rows


def summarise_engines(store: Store) -> pd.DataFrame:
    """Return one row a cell of an engine; cells that are not finished have the status "unfinished"."""
    objective = (store.manifest.suite.load or {}).get("objective") or {}
    frame = pd.DataFrame([_engine_row(store, name, objective) for name in store.manifest.engines])
    if frame.empty:
        return frame
    frame["task"] = list(task_words(store.manifest.engines).values())
    keys = [*SETTING_OF_ENGINE, "concurrency", "rate"]
    speeds = frame.get("tokens_per_second", pd.Series(np.nan, frame.index)).astype(float)
    places = {(row["label"], *row[keys]): i for i, row in frame[frame["role"] == "plain"].iterrows()}
    plain = [speeds.get(places.get((row["plain"], *row[keys]), -1), np.nan) for _, row in frame.iterrows()]
    return frame.assign(speedup=speeds / pd.Series(plain, frame.index).replace(0, np.nan))


def _engine_row(store: Store, name: str, objective: Mapping[str, Any]) -> Row:
    planned = store.manifest.engines[name]
    sampling = {word: getattr(planned.sampling, word) for word in SAMPLING}
    facts = {**planned.stored(), **sampling, "status": "unfinished", "verdict": ""}
    if not store.sealed(name):
        requests = store.requests(name)
        faults = [row.error for row in requests if row.status != "ok"]
        answered = sum(row.status == "ok" and not row.warmup for row in requests)
        return {**facts, "n_ok": answered, "note": faults[-1] if faults else ""}
    cell = store.cell(name)
    verdict, ok = cell.meta.judged, cell.requests.loc[~cell.requests["warmup"], "status"] == "ok"
    audited = ("log_e", "visible_tv", "tokens", "best", "verdict")
    return {
        **facts,
        **measures(cell.requests, cell.meta.growth, objective),
        **{"status": "done", "verdict": verdict.verdict, "n_ok": int(ok.sum()), "n_failed": int((~ok).sum())},
        **{word: getattr(verdict, word) for word in ("same", "visible_share", "floor")},
        **{f"audit_{key}": getattr(verdict.audit, key, None) for key in audited},
        "note": "; ".join(engine_notes(cell.requests, cell.meta)),
    }


def engine_notes(requests: pd.DataFrame, meta: CellMeta) -> Iterator[str]:
    """Yield the notes on a cell that its figures do not show."""
    for fault, rows in requests[requests["status"] != "ok"].groupby("fault"):
        yield f"{len(rows)} x {fault}: {rows['error'].iloc[0]}"
    verdict, counters = meta.judged, meta.counters or StoredCounters()
    told = requests["drafted"].dropna()
    drafted = float(told.sum()) if len(told) else meta.growth.get("drafted")
    if meta.role == "speculative" and drafted == 0:
        yield "nothing was drafted, so this was a plain decode"
    if counters.problem:
        yield f"counters: {counters.problem}"
    yield from (f"counters: {line}" for line in counters.disagree)
    yield from (f"identity: {line}" for line in verdict.broken_identities)
    margins = [abs(one.margin) for one in verdict.differences or [] if one.margin is not None]
    if margins:
        outputs = "1 output differs" if len(margins) == 1 else f"{len(margins)} outputs differ"
        yield (f"{outputs} first where the reference's logits are {min(margins):.2g} to {max(margins):.2g} apart")
