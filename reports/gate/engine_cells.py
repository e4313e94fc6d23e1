"""Cells of engines in a baseline and in a gate: their requests as rows of the same figures as a method's samples.

A step is a pass with a draft: `output` is what those passes emitted, one token and the accepted drafts each, so that
tau - 1 is the length a draft less 1. Requests that do not tell their steps are left out.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from stridebench.harness.errors import UsageError
from stridebench.harness.record.request_store import RequestStore
from stridebench.harness.record.requests import counted

if TYPE_CHECKING:
    from stridebench.harness.record.store import Store


def names(store: Store) -> list[str]:
    """Finished cells of speculative engines."""
    cells = RequestStore.of(store.path, store.manifest)
    return [name for name in cells.cells() if cells.planned[name].get("role") == "speculative"]


def broken(store: Store) -> list[str]:
    """Cells whose tokens were refuted where the plain decode's were not."""
    cells = RequestStore.of(store.path, store.manifest)
    return [name for name in names(store) if (cells.cell(name).meta.get("verdict") or {}).get("verdict") == "broken"]


def label(store: Store, name: str) -> str:
    """Its name in tables."""
    planned = store.manifest["engines"][name]
    return f"{planned['label']}, load {planned['load']}"


def figures(store: Store, name: str) -> pd.DataFrame:
    """The columns of `stridebench.reports.gate.baseline.figures_of`; those that no engine tells are missing."""
    rows = counted(RequestStore.of(store.path, store.manifest).cell(name).requests).set_index(["prompt", "repetition"])
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
    rows = RequestStore.of(store.path, store.manifest).cell(name).requests
    return rows[(rows["status"] != "ok") & ~rows["warmup"]]


def rerun(store: Store, name: str, again: Store) -> pd.DataFrame:
    """The figures of the same cell of a rerun with another seed.

    Raises:
        UsageError: there is none.
    """
    configuration = _configuration(store.manifest["engines"][name])
    for other in names(again):
        if _configuration(again.manifest["engines"][other]) == configuration:
            return figures(again, other)
    raise UsageError(f"{again.path} has no finished cell like {label(store, name)}; rerun the same suite")


def _configuration(planned: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in planned.items() if key not in ("cell", "seed")}, sort_keys=True)
