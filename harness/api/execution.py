"""Executes the plan of a run: checks that it can run, decodes, and keeps the outputs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch

from stridebench.harness.errors import RunIncomplete, UsageError, printable
from stridebench.harness.machine import device as arithmetic
from stridebench.harness.machine import noise
from stridebench.harness.machine.device import check_device, keep_pages
from stridebench.harness.machine.surroundings import stdout_on_stderr
from stridebench.harness.plan.budget import apply, choose, described
from stridebench.harness.plan.cells import Plan
from stridebench.harness.plan.estimate import Forecast, Workload, assumed
from stridebench.harness.plan.suite import Chosen
from stridebench.harness.record import provenance, remote
from stridebench.harness.record.files import folder_of_suite, latest_of_suite
from stridebench.harness.record.store import Store
from stridebench.harness.run.engine_runner import StoppedEngine, run_engines
from stridebench.harness.run.executors import EXECUTORS, check_executor, summary
from stridebench.harness.run.loading import Options
from stridebench.harness.run.measuring import MeasuredCosts, measure
from stridebench.harness.run.progress import RunProgress
from stridebench.tasks.metrics import sandbox

WARNING = (
    "--allow-code-execution: programs written by a language model will be executed in a child process with limits on "
    "time, memory, files and network. That is a safety net, not a security boundary: run it where nothing can be lost."
)


@dataclass(frozen=True)
class RunRequest:
    """How a plan is run.

    Args:
        out: the run folder or a URL. Default: ``runs/SUITE-TIME``.
        resume: continue the run in ``out``, or the latest of the suite.
        device: a torch device, for the executor "serial".
        executor: "serial", "ray" or "slurm".
        executor_options: options of that executor.
        allow_code_execution: let tasks execute model output.
        offline: never download weights.
    """

    out: Path | str | None = None
    resume: bool = False
    device: str = "cpu"
    executor: str = "serial"
    executor_options: Mapping[str, Any] = field(default_factory=dict)
    allow_code_execution: bool = False
    offline: bool = False


class Performed(NamedTuple):
    """A run's store, and the plan that it ran: a budget may have left cells or prompts out."""

    store: Store
    plan: Plan


def perform(
    plan: Plan,
    request: RunRequest,
    progress: RunProgress,
    command: Sequence[str],
    stopped: list[StoppedEngine] | None = None,
) -> Performed:
    """Decode the outputs of a plan that its run folder does not hold yet; a budget chooses some of them.

    Args:
        command: the command line; it is stored.
        stopped: gets the engines that could not finish.

    Raises:
        UsageError: nothing can run. StoreError: the folder holds another run. RunIncomplete: the disk is full.
    """
    begun = time.monotonic()
    executor_options = _refuse(plan, request)
    if plan.suite.suite.threads:
        torch.set_num_threads(plan.suite.suite.threads)
    keep_pages()
    how = Options(request.allow_code_execution, request.device, not request.offline, progress, executor_options)
    warnings = _warnings(plan, request)
    with stdout_on_stderr(), progress:
        fitted = _within_budget(plan, request, how, begun, warnings)
    plan = fitted.plan
    store = _store(plan, request, command)
    try:
        with stdout_on_stderr(), progress:
            for warning in () if fitted.measured else warnings:
                progress.say(warning)
            for group, passes in (fitted.measured.passes if fitted.measured else {}).items():
                store.notes.keep_passes(*group, asdict(passes))
            progress.expect_work(_workload(fitted, store))
            if plan.cells:
                EXECUTORS[request.executor](plan, store, how)
            ended = run_engines(plan, store, how)
            if stopped is not None:
                stopped += ended
    finally:
        store.release()
    return Performed(store, plan)


class Fitted(NamedTuple):
    """The part of a plan that fits into its budget, and what was measured for that, or None if nothing was."""

    plan: Plan
    measured: MeasuredCosts | None = None


def _within_budget(plan: Plan, request: RunRequest, options: Options, begun: float, warnings: Sequence[str]) -> Fitted:
    """Measure the costs of a plan with a budget, and choose by them; a resumed run goes on with the stored choice."""
    suite = plan.suite.suite
    if suite.budget is None or suite.chosen is not None:
        return Fitted(plan)
    if request.executor != "serial" or plan.engines:
        what = "suites without engines" if plan.engines else f"runs of one process, and not for {request.executor}"
        raise UsageError(f"a budget is for {what}; give --limit instead")
    place, measured = _place(plan, request), None
    if _holds_run(place):
        chosen = Store.open(place).manifest.suite.stored().get("chosen") if request.resume else None
        if chosen is None:
            return Fitted(plan)  # of another run, or of one without a budget: the store says so
        chosen = Chosen.model_validate(chosen)
    else:
        for warning in warnings:
            options.progress.say(warning)
        measured = measure(plan, options, begun)
        chosen = choose(plan, measured.costs, suite.budget)
    plan = apply(plan, chosen)
    for line in described(plan):
        options.progress.say(line)
    return Fitted(plan, measured)


def _workload(fitted: Fitted, store: Store) -> Workload | None:
    """Return the work that a run has left, or None if the size of a backbone is not known."""
    plan = fitted.plan
    costs = assumed(plan) if fitted.measured is None else fitted.measured.costs
    cells = [cell for cell in plan.runnable if not store.sealed(cell.id)]
    return None if costs is None else Forecast(plan, costs).workload(cells)


def _warnings(plan: Plan, request: RunRequest) -> list[str]:
    """Return what will slow the run down on this machine."""
    if request.executor != "serial":
        return []
    types = {cell.dtype for cell in plan.cells}
    found = (noise.busy(*noise.load_and_cores()), arithmetic.emulated(types, request.device))
    return [warning for warning in found if warning is not None]


def check_finished(plan: Plan, store: Store, stopped: Sequence[StoppedEngine]) -> None:
    """Check that a run is finished.

    Args:
        stopped: the engines that could not finish.

    Raises:
        UsageError: no cell ran; the error says why the first did not.
        RunIncomplete: some cells did not run, or an engine stopped.
    """
    if stopped:
        faults = "; ".join(f"{one.label}: {one.fault}" for one in stopped)
        raise RunIncomplete(f"{faults}. Finished outputs are kept; use --resume --out {store.address}")
    counts = summary(plan, store)
    if not counts["done"] and not plan.runnable_engines:
        from stridebench.reports import run_report  # imports matplotlib

        reasons = [str(reason) for reason in run_report.RunReport(store).frame["reason"].dropna()]
        raise UsageError(f"no cell ran: {reasons[0] if reasons else 'none could be finished'}")
    if counts["done"] + counts["skipped"] < counts["cells"]:
        raise RunIncomplete(f"some cells could not be finished; put that right and use --resume --out {store.address}")


def _refuse(plan: Plan, request: RunRequest) -> Any:
    """Check that a plan can run, before anything is loaded; return the options of the executor."""
    if not plan.runnable and not plan.runnable_engines:
        skips = [*((c.skip, c.label) for c in plan.cells), *((c.skip, c.label) for c in plan.engines)]
        first = dict(reversed(skips))
        reasons = [f"{label}: {why}" for why, label in reversed(first.items())]
        raise UsageError("nothing to run; " + "; ".join(reasons[:3]))
    if request.executor == "serial":
        check_device(request.device)  # the devices of other executors are those of their workers
    executor_options = check_executor(request.executor, dict(request.executor_options))
    if _runs_code(plan, request):
        missing = sandbox.isolation().missing()
        missed = f" Missing on this machine: {'; '.join(missing)}." if missing else ""
        click.echo(printable(WARNING + missed), err=True)
    return executor_options


def _runs_code(plan: Plan, request: RunRequest) -> bool:
    return request.allow_code_execution and any(use.task.runs_code for use in plan.suite.tasks)


def _store(plan: Plan, request: RunRequest, command: Sequence[str]) -> Store:
    manifest = {**plan.manifest(), "provenance": provenance.collect(list(command))}
    if _runs_code(plan, request):
        manifest["provenance"]["sandbox"] = asdict(sandbox.isolation())
    where = {"device": request.device, "machine": manifest["provenance"]["fingerprint"]}
    manifest["key"] = {**manifest["key"], **where, "allow_code_execution": request.allow_code_execution}
    out = _place(plan, request)
    if isinstance(out, str):
        return Store.resume(out, manifest) if request.resume and _holds_run(out) else Store.create(out, manifest)
    if request.resume and _holds_run(out):
        return Store.resume(out, manifest)
    if request.resume and out.is_dir() and any(item.name != ".lock" for item in out.iterdir()):
        raise UsageError(f"{out} holds other files and no run to resume; name a run's folder, or leave --resume out")
    return Store.create(out, manifest)


def _place(plan: Plan, request: RunRequest) -> Path | str:
    """Return the run's URL or its folder."""
    name = plan.suite.suite.name
    out = request.out or (latest_of_suite(name) if request.resume else folder_of_suite(name))
    if out is None:
        raise UsageError(f"no run of {name} in ./runs to resume; name its folder with --out")
    return out if isinstance(out, str) else out.absolute()


def _holds_run(place: Path | str) -> bool:
    return remote.holds_run(place) if isinstance(place, str) else (place / "manifest.json").exists()
