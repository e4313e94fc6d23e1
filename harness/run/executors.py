"""Executors of the cells of a plan: one group after the other in this process, or on the workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stridebench.harness.plan.cells import Plan
from stridebench.harness.record.store import Store
from stridebench.harness.run.attempt import NO_OUTPUT
from stridebench.harness.run.group import run_group
from stridebench.harness.run.loading import Options
from stridebench.harness.run.workers import pool as settings

Executor = Callable[[Plan, Store, Options], None]


def groups(plan: Plan) -> list[tuple[str, str]]:
    """Backbone and type of each group, in the plan's order."""
    return list(dict.fromkeys(cell.group for cell in plan.runnable))


def serial(plan: Plan, store: Store, options: Options) -> None:
    """One group after the other in this process."""
    for group in groups(plan):
        run_group(plan, group, store, options)


def check_executor(name: str, options: Mapping[str, Any]) -> Any:
    """The options of an executor, checked before a run folder is made."""
    checked = settings.check(name, options)
    if name == "ray":
        from stridebench.harness.run.workers.ray import engine

        engine()
    if name == "slurm":
        from stridebench.harness.run.workers.slurm import check_cluster

        check_cluster(checked)
    return checked


def ray(plan: Plan, store: Store, options: Options) -> None:
    """Run the cells on a Ray cluster; the suite declares the needs of a worker by backbone (`workers.ray`)."""
    from stridebench.harness.run.workers.pool import run_on, setup_of
    from stridebench.harness.run.workers.ray import RayPool

    chosen = options.executor or settings.check("ray", {})
    run_on(RayPool(plan, setup_of(plan, store, options), chosen), plan, store, options, chosen.retries)


def slurm(plan: Plan, store: Store, options: Options) -> None:
    """The cells as arrays of jobs of Slurm (`pools.slurm`)."""
    from stridebench.harness.run.workers.pool import run_on, setup_of
    from stridebench.harness.run.workers.slurm import SlurmPool

    chosen = options.executor or settings.check("slurm", {})
    folder = store.path / "workers" / "slurm"
    pool = SlurmPool(plan, setup_of(plan, store, options), chosen, folder)
    if pool.found:
        numbers = ", ".join(str(job.job_id) for job in pool.found)
        options.progress.say(f"jobs of an earlier run of this folder still live, and are waited for: {numbers}")
    run_on(pool, plan, store, options, chosen.retries)


EXECUTORS: dict[str, Executor] = {"serial": serial, "ray": ray, "slurm": slurm}


# The counts that a run ends with.


def summary(plan: Plan, store: Store) -> Mapping[str, Any]:
    """{run, cells, done, failed, malformed, skipped}; failed and malformed count samples.

    Malformed: tokens without an output, such as a mesh cut inside a patch. Failed: every other error.
    """
    done = failed = skipped = malformed = 0
    for planned in plan.cells:
        if planned.skip:
            skipped += 1
        elif store.sealed(planned.id):
            cell = store.cell(planned.id)
            skipped += cell.meta.status == "skipped"
            done += cell.meta.status == "done"
            errors = cell.samples.loc[(cell.samples["status"] == "failed") & ~cell.samples["warmup"], "error"]
            without_output = errors.fillna("").str.startswith(NO_OUTPUT)
            malformed += int(without_output.sum())
            failed += int((~without_output).sum())
    return {
        "run": store.address,
        "cells": len(plan.cells),
        "done": done,
        "failed": failed,
        "malformed": malformed,
        "skipped": skipped,
    }
