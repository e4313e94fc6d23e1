"""The part of `stride run` that is about engines: their reports, and how the run ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from stridebench.harness.cli.main import say
from stridebench.harness.errors import RunIncomplete
from stridebench.harness.plan.cells import Plan
from stridebench.harness.record.entries import json_values
from stridebench.harness.record.store import Store
from stridebench.harness.run.engine_runner import StoppedEngine
from stridebench.reports import crossover, engines, side_by_side
from stridebench.reports.text_table import print_table

BROKEN = ("broken",)
"""Verdicts of an engine that end a run with code 1."""
REFUTED = ("broken", "other weights or arithmetic", "other arithmetic", "refuted")
"""Verdicts whose tokens were refuted: they end an audit with code 1."""
PASSED = ("same tokens", "not refuted")


def report(store: Store, as_json: bool, out: Path | None = None) -> pd.DataFrame:
    """Write the engines' tables and print them; the rows.

    Args:
        out: the folder of the files; None: RUN/report.
    """
    folder = store.path / "report" if out is None else out
    frame = engines.summarise(store)
    beside, crossovers = side_by_side.rows(store), crossover.text_tables(store)
    written = [*engines.write(frame, folder, crossovers)]
    written += [*side_by_side.write(beside, folder), *crossover.write(store, folder)]
    if out is None:
        store.publish("report")
    if not as_json:
        engines.terminal(frame, Console())
        for table in [*([side_by_side.table(beside)] if store.manifest["cells"] and len(beside) else []), *crossovers]:
            print_table(table, Console())
        say("\n".join(f"wrote {path}" for path in written))
    return frame


def engine_table(store: Store) -> pd.DataFrame:
    """One row a cell of an engine (`stridebench.reports.engines.summarise`)."""
    return engines.summarise(store)


def drawn(store: Store) -> pd.DataFrame:
    """The rows of finished cells at T > 0, whose tokens an audit judges."""
    frame = engines.summarise(store)
    return frame[(frame["temperature"] > 0) & (frame["status"] == "done")]


def audits(frame: pd.DataFrame) -> Any:
    """What an audit's JSON document says of the rows of `drawn`."""
    told = [str(name) for name in frame if str(name).startswith("audit_")]
    keys = [name for name in ("cell", "label", "load", "verdict", "same", *told) if name in frame]
    return json_values(frame[keys].to_dict("records"))


def audit_code(frame: pd.DataFrame) -> int:
    """The exit code of `stride audit` for the rows of `drawn`."""
    verdicts = set(frame["verdict"])
    if verdicts & set(REFUTED):
        return 1
    return 0 if verdicts and verdicts <= set(PASSED) else 4


def counts(plan: Plan, frame: pd.DataFrame) -> dict[str, Any]:
    """What a run's JSON document says of its engines."""
    return {"engines": rows(frame), "engines_skipped": _skipped(plan)}


def rows(frame: pd.DataFrame) -> Any:
    """The rows of the table as JSON values."""
    columns = [name for name in frame if name not in ("sampling", "task_params", "options")]
    return json_values(frame[columns].to_dict("records"))


def _skipped(plan: Plan) -> list[Mapping[str, Any]]:
    return [{"label": cell.label, "load": cell.load, "reason": cell.skip} for cell in plan.engines if cell.skip]


HISTORY = {
    **{f"length_per_{unit}": f"length_per_{unit}_pooled" for unit in ("draft", "pass")},
    **{f"{time}_ms": f"{time}_ms_p50" for time in ("ttft", "tpot")},
    **{name: name for name in ("acceptance", "speedup", "tokens_per_second", "audit_log_e", "n_ok", "n_failed")},
}
"""What a history keeps of an engine's cell, by the names that `stride watch` writes, and the columns that hold it."""


def history(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Lines of a history (`stridebench.reports.history.series`), one a finished cell of an engine."""
    facts = ("cell", "label", "load", "backbone", "dtype", "temperature", "task", "role", "status", "verdict")
    finished = frame[frame["status"] == "done"] if len(frame) else frame
    return [
        {**{name: row[name] for name in facts}, **{name: row.get(column) for name, column in HISTORY.items()}}
        for _, row in finished.iterrows()
    ]


def check(stopped: Sequence[StoppedEngine], store: Store) -> None:
    """Refuse a run whose engines could not all finish.

    Raises:
        RunIncomplete: says why each stopped.
    """
    if stopped:
        reasons = "; ".join(f"{one.label}: {one.fault}" for one in stopped)
        raise RunIncomplete(f"{reasons}. What was finished is kept; use --resume --out {store.address}")


def exit_code(frame: pd.DataFrame) -> int:
    """The exit code of the engines' rows: 1 where one is broken or a request failed."""
    failed = frame.get("n_failed", pd.Series(dtype=float)).fillna(0).sum()
    return int(bool(failed) or bool(set(frame.get("verdict", [])) & set(BROKEN)))
