"""Runs the plan of `stride run`, and writes and prints its reports."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console

from stridebench.execution import RunRequest, check_finished, perform
from stridebench.harness.cli.main import emit, say
from stridebench.harness.errors import NAMED, number_of
from stridebench.harness.machine.extras import typed
from stridebench.harness.plan.cells import Plan
from stridebench.harness.record.columns import SCORER_FAILED
from stridebench.harness.record.store import Store
from stridebench.harness.run.engine_runner import StoppedEngine
from stridebench.harness.run.executors import summary
from stridebench.harness.run.progress import RunProgress

if TYPE_CHECKING:
    from stridebench.reports import run_report


def execute(plan: Plan, request: RunRequest, options: Mapping[str, Any]) -> None:
    """Run a plan, and write and print its reports."""
    if options["append"]:
        options["append"].open("a").close()  # an error now rather than after the run
    stopped: list[StoppedEngine] = []
    progress = RunProgress(Console(stderr=True), quiet=options["as_json"])
    store, plan = perform(plan, request, progress, sys.argv, stopped)
    code = _report(plan, store, options)
    check_finished(plan, store, stopped)
    if code:
        raise SystemExit(code)


def _report(plan: Plan, store: Store, options: Mapping[str, Any]) -> int:
    """Write and print the reports of methods and engines; return the exit code that their rows ask for."""
    from stridebench.reports import run_report  # imported after the decode, since it imports matplotlib

    counts = {**(summary(plan, store) if plan.cells else {"run": store.address})}
    decoded = bool(counts.get("done"))
    if not decoded and not plan.engines:
        return 0
    report = run_report.RunReport(store)
    if plan.engines:
        skipped = [{"label": cell.label, "load": cell.load, "reason": cell.skip} for cell in plan.engines if cell.skip]
        counts |= {"engines": report.rows_of_engines, "engines_skipped": skipped}
    lines: list[Mapping[Any, Any]] = [
        *(report.frame.to_dict("records") if decoded else []),
        *engine_history(report.engines),
    ]
    if options["append"] and lines:
        run_report.append(options["append"], lines, store)
    written = report.write(store.path / "report")
    store.publish("report")
    if options["as_json"]:
        emit(counts)
    else:
        report.print()
        for cell in plan.engines:
            if cell.skip:
                say(f"skipped: {cell.label}, load {cell.load}: {cell.skip}")
        say("\n".join(f"wrote {path}" for path in written))
    failed = report.engines.get("n_failed", pd.Series(dtype=float)).fillna(0).sum()
    code = int(bool(failed) or "broken" in set(report.engines.get("verdict", [])))
    return max(code, _end(report, counts, options["as_json"])) if decoded else code


HISTORY = {
    **{f"length_per_{unit}": f"length_per_{unit}_pooled" for unit in ("draft", "pass")},
    **{f"{time}_ms": f"{time}_ms_p50" for time in ("ttft", "tpot")},
    **{name: name for name in ("acceptance", "speedup", "tokens_per_second", "audit_log_e", "n_ok", "n_failed")},
}
"""Figures of an engine's cell in a history, by the names that `stride engine watch` writes, and their columns."""


def engine_history(frame: pd.DataFrame) -> list[dict[str, object]]:
    """Return lines of a history (`stridebench.reports.history.series`), one for each finished cell of an engine."""
    facts = ("cell", "label", "load", "backbone", "dtype", "temperature", "task", "role", "status", "verdict")
    finished = frame[frame["status"] == "done"] if len(frame) else frame
    return [
        {**{name: row[name] for name in facts}, **{name: row.get(column) for name, column in HISTORY.items()}}
        for _, row in finished.iterrows()
    ]


def _end(report: run_report.RunReport, counts: Mapping[str, Any], quiet: bool) -> int:
    """Print the counts of the methods' cells; return 1 if a claim is broken or something failed."""
    store = report.store
    if not quiet:
        failed = number_of(counts["failed"], "failed sample")
        counted = f"{number_of(counts['done'], 'cell')} done, {counts['skipped']} skipped, {failed}"
        malformed = f", {counts['malformed']} malformed outputs" if counts["malformed"] else ""
        say(f"run: {store.address} ({counted}{malformed})")
        say("\n".join(next_steps(report.frame, store.address)))
    unscored = _failed_scorers(store)
    for line in unscored[:NAMED]:
        say(f"stride: {line}", err=True)
    # an error that ended the check of a claim stands in the cell's verdict
    unchecked = any(store.cell(name).meta.judged.error for name in store.cells())
    return int("broken" in set(report.frame["verdict"]) or bool(counts["failed"] or unscored) or unchecked)


def shortest_name(cell: str, cells: Sequence[str]) -> str:
    """Return the first words of a cell's id that suffice for `stride show`."""
    words = cell.split(".")
    for count in range(1, len(words)):
        short = ".".join(words[:count])
        if sum(other.startswith(f"{short}.") for other in cells) == 1:
            return short
    return cell


def next_steps(frame: pd.DataFrame, address: str) -> list[str]:
    """Return commands that a user may give next, with their purposes."""
    done = frame[frame["status"] == "done"]
    methods = done[done["role"] == "method"]
    row = (methods if len(methods) else done).iloc[0]
    cell = shortest_name(str(row["cell"]), list(frame["cell"]))
    place = Path(address)
    stride = typed("stride")
    run = shlex.quote(str(place.relative_to(Path.cwd())) if place.is_relative_to(Path.cwd()) else address)
    steps = {
        f"{stride} show {run} {shlex.quote(cell)}": "one cell, its outputs and acceptance by depth",
        f"{stride} report {run}": "this table and its plots again",
    }
    if (done["temperature"] > 0).any():
        steps[f"{stride} audit {run}"] = "were these tokens drawn from the model's distribution"
    if len(methods):
        steps[f"{stride} verify {row['method']}"] = "the proof behind a verdict"
    return ["next:", *(f"  {command}    {purpose}" for command, purpose in steps.items())]


def _failed_scorers(store: Store) -> list[str]:
    """Return a line for each cell whose outputs a task's scorer could not score together."""
    lines = []
    for name in store.cells():
        scores = store.meta(name).set_scores.items()
        failed = {metric: score.reason for metric, score in scores}
        failed = {metric: reason for metric, reason in failed.items() if reason.startswith(SCORER_FAILED)}
        if failed:
            lines.append(f"no {', '.join(failed)} of {name}: {next(iter(failed.values()))}")
    return lines
