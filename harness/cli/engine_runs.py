"""The part of `stride run` that is about engines: their reports, and how the run ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
import pandas as pd
from rich.console import Console

from harness.cli.main import strict
from harness.errors import RunIncomplete
from harness.plan.cells import Plan
from harness.record.store import Store
from harness.run.serving.engines import Stopped
from reports import engines

BROKEN = ("broken",)
"""Verdicts of an engine that end a run with code 1."""


def report(store: Store, as_json: bool) -> pd.DataFrame:
    """Write the engines' tables and print them; the rows."""
    frame = engines.summarise(store)
    written = engines.write(frame, store.path / "report")
    store.publish("report")
    if not as_json:
        engines.terminal(frame, Console())
        click.echo("\n".join(f"wrote {path}" for path in written))
    return frame


def counts(plan: Plan, frame: pd.DataFrame) -> dict[str, Any]:
    """What a run's JSON document says of its engines."""
    columns = [name for name in frame if name not in ("sampling", "task_params", "options")]
    return {"engines": strict(frame[columns].to_dict("records")), "engines_skipped": _skipped(plan)}


def _skipped(plan: Plan) -> list[Mapping[str, Any]]:
    return [{"label": cell.label, "load": cell.load, "reason": cell.skip} for cell in plan.engines if cell.skip]


def finish(frame: pd.DataFrame, stopped: Sequence[Stopped], store: Store) -> int:
    """The exit code of the engines' part: 1 where one is broken or a request failed.

    Raises:
        RunIncomplete: an engine stopped.
    """
    if stopped:
        reasons = "; ".join(f"{one.label}: {one.fault}" for one in stopped)
        raise RunIncomplete(f"{reasons}. What was finished is kept; use --resume --out {store.address}")
    failed = frame.get("n_failed", pd.Series(dtype=float)).fillna(0).sum()
    return 1 if failed or set(frame["verdict"]) & set(BROKEN) else 0
