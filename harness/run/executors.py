"""Executors of groups of cells: one after the other in this process, or on the workers of a Ray cluster."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from harness.discover import declare_all
from harness.errors import UsageError
from harness.plan.cells import Plan, expand
from harness.plan.suite import resolve_again
from harness.record.store import Store
from harness.run.group import run_group
from harness.run.options import Options, Progress

Executor = Callable[[Plan, Store, Options], None]


def groups(plan: Plan) -> list[tuple[str, str]]:
    """Backbone and type of each group, in the plan's order."""
    return list(dict.fromkeys(cell.group for cell in plan.runnable))


def serial(plan: Plan, store: Store, options: Options) -> None:
    """One group after the other in this process."""
    for group in groups(plan):
        run_group(plan, group, store, options)


def check_executor(name: str) -> None:
    """Before a run folder is made.

    Raises:
        UsageError: what the executor needs is not installed.
    """
    if name == "ray":
        _ray()


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UsageError("the ray executor needs the extra: pip install 'stridebench[ray]'") from error


def ray(plan: Plan, store: Store, options: Options) -> None:
    """Each group as a Ray task with one GPU (none on a CPU run), writing to the same folder.

    Raises:
        UsageError: the `ray` extra is not installed.
    """
    engine = _ray()
    if not engine.is_initialized():
        engine.init(log_to_driver=False)
    gpus = 1 if options.device.startswith("cuda") else 0
    task = engine.remote(num_gpus=gpus, max_calls=1)(run_in_worker)
    quiet = replace(options, progress=Progress())
    suite = plan.suite.suite.model_dump()
    waiting = {task.remote(suite, group, str(store.path.resolve()), quiet): group for group in groups(plan)}
    while waiting:
        ready, _ = engine.wait(list(waiting), num_returns=1)
        engine.get(ready[0])
        options.progress.say(f"group done: {' '.join(waiting.pop(ready[0]))}")


def run_in_worker(suite: dict[str, Any], group: tuple[str, str], path: str, options: Options) -> None:
    """Run one group of a dumped suite in a new process; ``path`` is the run folder."""
    declare_all()
    plan = expand(resolve_again(suite))
    if plan.suite.suite.threads:
        torch.set_num_threads(plan.suite.suite.threads)
    run_group(plan, group, Store.open(Path(path)), options)


EXECUTORS: dict[str, Executor] = {"serial": serial, "ray": ray}
