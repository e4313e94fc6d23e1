"""Executes the plan of `stride run`: decodes it, then writes and prints its reports."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from rich.console import Console

from stridebench.harness.cli.main import emit, say
from stridebench.harness.cli.overrides import executor_values
from stridebench.harness.cli.run_progress import RunProgress
from stridebench.harness.errors import NAMED, RunIncomplete, UsageError
from stridebench.harness.machine import device as arithmetic
from stridebench.harness.machine import noise
from stridebench.harness.machine.device import check_device
from stridebench.harness.machine.extras import typed
from stridebench.harness.machine.memory import keep_pages
from stridebench.harness.machine.quiet import stdout_on_stderr
from stridebench.harness.plan.cells import Plan
from stridebench.harness.record import files, provenance
from stridebench.harness.record.columns import SCORER_FAILED
from stridebench.harness.record.store import Store
from stridebench.harness.run.engine_runner import StoppedEngine, run_engines
from stridebench.harness.run.executors import EXECUTORS, check_executor, summary
from stridebench.harness.run.loading import Options
from stridebench.tasks.metrics import sandbox

if TYPE_CHECKING:
    from stridebench.reports import run_report

WARNING = (
    "--allow-code-execution: programs written by a language model will be executed in a child process with limits on "
    "time, memory, files and network. That is a safety net, not a security boundary: run it where nothing can be lost."
)


@dataclass(frozen=True)
class Request:
    """How a plan is run; the fields are options of `stride run`, and ``out`` may be a URL."""

    out: Path | str | None = None
    resume: bool = False
    device: str = "cpu"
    executor: str = "serial"
    executor_options: Sequence[str] = ()
    allow_code_execution: bool = False
    offline: bool = False


def execute(plan: Plan, options: dict[str, Any]) -> None:
    """Run a plan as the options of `stride run` say.

    Raises:
        UsageError: nothing can run. RunIncomplete: some cells could not be finished.
        SystemExit: with 1 where a claim is broken, a sample failed, or an error ended the check of a claim.
    """
    request = Request(**{field.name: options[field.name] for field in fields(Request)})
    if options["append"]:
        options["append"].open("a").close()  # an error now rather than after the run
    stopped: list[StoppedEngine] = []
    progress = RunProgress(Console(stderr=True), quiet=options["as_json"])
    store = perform(plan, request, progress, sys.argv, stopped)
    code = _report(plan, store, options)
    check_finished(plan, store, stopped)
    if code:
        raise SystemExit(code)


def _report(plan: Plan, store: Store, options: dict[str, Any]) -> int:
    """Write and print what engines and methods did; the exit code that their rows ask for."""
    from stridebench.harness.cli import engine_runs
    from stridebench.reports import run_report  # imported after the decode: they import matplotlib

    engines = engine_runs.report(store, options["as_json"]) if plan.engines else pd.DataFrame()
    for cell in plan.engines:
        if cell.skip and not options["as_json"]:
            say(f"skipped: {cell.label}, load {cell.load}: {cell.skip}")
    counts = {**(summary(plan, store) if plan.cells else {"run": store.address})}
    if plan.engines:
        counts |= engine_runs.counts(plan, engines)
    code = engine_runs.exit_code(engines)
    report = run_report.RunReport(store) if counts.get("done") else None
    lines: list[Mapping[Any, Any]] = [*engine_runs.history(engines)]
    if report is not None:
        lines = [*report.frame.to_dict("records"), *lines]
    if options["append"] and lines:
        run_report.append(options["append"], lines, store)
    if report is not None:
        code = max(code, _report_methods(report, counts, options))
    if options["as_json"] and (plan.engines or counts["done"]):
        emit(counts)
    return code


def perform(
    plan: Plan,
    request: Request,
    progress: RunProgress,
    command: Sequence[str],
    stopped: list[StoppedEngine] | None = None,
) -> Store:
    """Decode what a plan asks for and a run folder does not hold yet.

    Args:
        command: what the run was started with; it is stored.
        stopped: gets the engines that could not finish.

    Raises:
        UsageError: nothing can run. StoreError: the folder holds another run. RunIncomplete: the disk is full.
    """
    executor_options = _refuse(plan, request)
    if plan.suite.suite.threads:
        torch.set_num_threads(plan.suite.suite.threads)
    keep_pages()
    store = _store(plan, request, command)
    try:
        with stdout_on_stderr(), progress:
            for warning in _warnings(plan, request):
                progress.say(warning)
            fetch = not request.offline
            how = Options(request.allow_code_execution, request.device, fetch, progress, executor_options)
            if plan.cells:
                EXECUTORS[request.executor](plan, store, how)
            ended = run_engines(plan, store, how)
            if stopped is not None:
                stopped += ended
    finally:
        store.release()
    return store


def _warnings(plan: Plan, request: Request) -> list[str]:
    """What will slow the run down on this machine."""
    if request.executor != "serial":
        return []
    types = {cell.dtype for cell in plan.cells}
    found = (noise.busy(*noise.load_and_cores()), arithmetic.emulated(types, request.device))
    return [warning for warning in found if warning is not None]


def check_finished(plan: Plan, store: Store, stopped: Sequence[StoppedEngine]) -> None:
    """Refuse a run that is not finished.

    Args:
        stopped: the engines that could not finish.

    Raises:
        UsageError: no cell ran; says why the first did not. RunIncomplete: some cells did not, or an engine stopped.
    """
    from stridebench.harness.cli import engine_runs
    from stridebench.reports import run_report  # as above

    engine_runs.check(stopped, store)
    counts = summary(plan, store)
    if not counts["done"] and not plan.runnable_engines:
        reasons = [str(reason) for reason in run_report.RunReport(store).frame["reason"].dropna()]
        raise UsageError(f"no cell ran: {reasons[0] if reasons else 'none could be finished'}")
    if counts["done"] + counts["skipped"] < counts["cells"]:
        raise RunIncomplete(f"some cells could not be finished; put that right and use --resume --out {store.address}")


def _refuse(plan: Plan, request: Request) -> Any:
    """Refuse a plan that cannot run, before anything is loaded; returns the options of the executor.

    Raises:
        UsageError: every cell is skipped, there is no such device, or the executor cannot be used.
    """
    if not plan.runnable and not plan.runnable_engines:
        skips = [*((c.skip, c.label) for c in plan.cells), *((c.skip, c.label) for c in plan.engines)]
        first = dict(reversed(skips))
        reasons = [f"{label}: {why}" for why, label in reversed(first.items())]
        raise UsageError("nothing to run; " + "; ".join(reasons[:3]))
    if request.executor == "serial":
        check_device(request.device)  # the devices of other executors are those of their workers
    executor_options = check_executor(request.executor, executor_values(request.executor_options))
    if _runs_code(plan, request):
        missing = sandbox.isolation().missing()
        say(WARNING + (f" Missing on this machine: {'; '.join(missing)}." if missing else ""), err=True)
    return executor_options


def _runs_code(plan: Plan, request: Request) -> bool:
    return request.allow_code_execution and any(use.task.runs_code for use in plan.suite.tasks)


def _store(plan: Plan, request: Request, command: Sequence[str]) -> Store:
    manifest = {**plan.manifest(), "provenance": provenance.collect(list(command))}
    if _runs_code(plan, request):
        manifest["provenance"]["sandbox"] = asdict(sandbox.isolation())
    where = {"device": request.device, "machine": manifest["provenance"]["fingerprint"]}
    manifest["key"] = {**manifest["key"], **where, "allow_code_execution": request.allow_code_execution}
    out = request.out or _default(plan.suite.suite.name, request.resume)
    if isinstance(out, str):
        resume = request.resume and files.holds_run(out)
        return Store.resume(out, manifest) if resume else Store.create(out, manifest)
    path = out.absolute()
    if request.resume and (path / "manifest.json").exists():
        return Store.resume(path, manifest)
    if request.resume and path.is_dir() and any(item.name != ".lock" for item in path.iterdir()):
        raise UsageError(f"{path} holds other files and no run to resume; name a run's folder, or leave --resume out")
    return Store.create(path, manifest)


def _default(name: str, resume: bool) -> Path:
    slug = re.sub(r"[^\w=+.-]+", "-", name, flags=re.ASCII).strip(".-")[:100] or "suite"
    if resume:
        runs = sorted(Path("runs").glob(f"{slug}-2*"))
        if not runs:
            raise UsageError(f"no run of {name} in ./runs to resume; name its folder with --out")
        return runs[-1]
    return Path("runs") / f"{slug}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def _report_methods(report: run_report.RunReport, counts: Mapping[str, Any], options: dict[str, Any]) -> int:
    """Write and print the methods' reports; 1 where a claim is broken, or something failed."""
    store = report.store
    written = report.write(store.path / "report")
    store.publish("report")
    if not options["as_json"]:
        report.print()
        say("\n".join(f"wrote {path}" for path in written))
        say(f"run: {store.address} ({_counted(counts)})")
        say("\n".join(next_steps(report.frame, store.address)))
    unscored = _failed_scorers(store)
    for line in unscored[:NAMED]:
        say(f"stride: {line}", err=True)
    return int("broken" in set(report.frame["verdict"]) or bool(counts["failed"] or unscored) or _unchecked(store))


def shortest_name(cell: str, cells: Sequence[str]) -> str:
    """The first words of a cell's id that `stride show` takes for it."""
    words = cell.split(".")
    for count in range(1, len(words)):
        short = ".".join(words[:count])
        if sum(other.startswith(f"{short}.") for other in cells) == 1:
            return short
    return cell


def next_steps(frame: pd.DataFrame, address: str) -> list[str]:
    """What a user can do with a finished run, as commands with what each is for."""
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


def _unchecked(store: Store) -> bool:
    """Whether an error ended the check of a cell's claim; its note says which."""
    return any((store.cell(name).meta.get("verdict") or {}).get("error") for name in store.cells())


def _failed_scorers(store: Store) -> list[str]:
    """A line for each cell whose outputs a task's scorer could not score together."""
    lines = []
    for name in store.cells():
        scores = (store.meta(name).get("set_scores") or {}).items()
        failed = {metric: str(score.get("reason") or "") for metric, score in scores}
        failed = {metric: reason for metric, reason in failed.items() if reason.startswith(SCORER_FAILED)}
        if failed:
            lines.append(f"no {', '.join(failed)} of {name}: {next(iter(failed.values()))}")
    return lines


def _counted(counts: Mapping[str, Any]) -> str:
    text = f"{counts['done']} cells done, {counts['skipped']} skipped, {counts['failed']} failed samples"
    return text + (f", {counts['malformed']} malformed outputs" if counts["malformed"] else "")
