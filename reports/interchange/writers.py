"""Acceptance of a run's engines in the layouts of other tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pandas as pd
import yaml

from stridebench.harness.errors import UsageError
from stridebench.harness.record.requests import acceptance, counted
from stridebench.harness.record.store import SealedCell, Store


def aiperf(store: Store) -> str:
    """JSON lines, one a request that tells its steps: AIPerf's record, with the cell and the prompt as further fields.

    Raises:
        UsageError: no request tells them.
    """
    lines = [json.dumps(line, allow_nan=False) for cell in _cells(store) for line in _records(cell)]
    if not lines:
        raise UsageError(f"no request of {store.path} tells steps with a draft and a histogram; see docs/engines.md")
    return "\n".join(lines) + "\n"


def _records(cell: SealedCell) -> Iterator[dict[str, object]]:
    for row in counted(cell.requests).to_dict("records"):
        if row["histogram"] is None or pd.isna(row["draft_steps"]) or not row["drafted"]:
            continue
        steps, drafted, accepted = (int(row[name]) for name in ("draft_steps", "drafted", "accepted"))
        yield {
            "cell": cell.name,
            "request": f"{row['prompt']}#{row['repetition']}",
            "engine": cell.meta.engine,
            "mean_acceptance_length": 1 + accepted / steps,
            "draft_acceptance_rate": accepted / drafted,
            "acceptance_histogram": {str(kept): int(count) for kept, count in enumerate(row["histogram"]) if count},
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": drafted,
            "num_spec_steps": steps,
            "num_spec_tokens": None,
            "completion_tokens": None if pd.isna(row["output_tokens"]) else int(row["output_tokens"]),
        }


def golden(store: Store, drafts: int) -> str:
    """InferenceX' YAML: the mean length a draft step of each speculative entry, at one draft length.

    Args:
        drafts: the draft length that the servers were started with, which no engine tells.

    Raises:
        UsageError: no entry tells its length.
    """
    curves: dict[str, dict[str, Any]] = {}
    for cell in _cells(store):
        growth = cell.meta.growth
        length = acceptance(counted(cell.requests), growth)["length_per_draft_pooled"]
        if length is not None:
            mode = f"{cell.meta.label}, T = {cell.meta.sampling.temperature:g}, {cell.meta.load}"
            curves.setdefault(cell.meta.backbone, {})[mode] = {drafts: round(length, 2)}
    if not curves:
        raise UsageError(f"no engine of {store.path} tells its steps with a draft; see docs/engines.md")
    head = "# Mean acceptance lengths: 1 + accepted / passes with a draft. key = num_speculative_tokens\n"
    return head + yaml.safe_dump(curves, sort_keys=False)


def _cells(store: Store) -> Iterator[SealedCell]:
    for name in store.engine_cells():
        cell = store.cell(name)
        if cell.meta.role == "speculative":
            yield cell


def lengths(store: Store) -> dict[str, pd.DataFrame]:
    """Accepted drafts and steps with a draft of each request, by the label of its cell, if it tells them."""
    out = {}
    for cell in _cells(store):
        rows = counted(cell.requests).set_index(["prompt", "repetition"])
        told = rows[["accepted", "draft_steps"]].dropna().astype(float)
        if len(told) and told["draft_steps"].sum():
            out[f"{cell.meta.label}, T = {cell.meta.sampling.temperature:g}, {cell.meta.load}"] = told
    return out
