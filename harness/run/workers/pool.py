"""Runs the units of a plan on a pool of workers. Units whose worker was lost are run again, or fail with the reasons.

Workers write their cells to the store themselves. The main process writes only cells that no worker could finish.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stridebench.harness.core.task import SetScore
from stridebench.harness.errors import RunIncomplete, StoreError, UsageError
from stridebench.harness.plan.cells import Cell, Plan
from stridebench.harness.proof.verdicts import unproved
from stridebench.harness.record.entries import CellMeta, StoredSetScore
from stridebench.harness.record.store import Store
from stridebench.harness.run.loading import Options, Progress
from stridebench.harness.run.workers.cluster import Refusal, Unit, after_loss, units_of
from stridebench.harness.run.workers.protocol import WorkerSetup, write_failed


@dataclass(frozen=True)
class Ended:
    """A unit that a worker finished, refused, or was lost with.

    Args:
        lost: how the worker was lost, or None if it was not.
    """

    unit: Unit
    lost: str | None = None
    refusal: Refusal | None = None


class Pool(ABC):
    """Workers of an engine."""

    @abstractmethod
    def submit(self, units: Sequence[Unit]) -> None:
        """Hand in units that can begin."""

    @abstractmethod
    def wait(self) -> Iterable[Ended]:
        """Wait for the units that end next; one at least, of those handed in."""

    @abstractmethod
    def close(self) -> None:
        """End the workers."""


def setup_of(plan: Plan, store: Store, options: Options) -> WorkerSetup:
    """Return the facts of a run for its workers."""
    return WorkerSetup(plan.suite.suite.model_dump(), store.address, replace(options, progress=Progress()))


def run_on(pool: Pool, plan: Plan, store: Store, options: Options, retries: int) -> None:
    """All units of a plan on a pool, to their seals.

    Args:
        retries: how often a unit is run again whose worker was lost.
    """
    waiting = [unit for unit in units_of(plan) if not all(_finished(store, cell) for cell in unit.cells)]
    for name in (name for unit in waiting for name in unit.cells):
        store.reopen(name)  # before any worker reads sealed cells
    cells = [cell for unit in waiting for cell in _cells(plan, unit)]
    options.progress.expect(sum(len(plan.prompts[cell.task]) * plan.repetitions(cell.task) for cell in cells))
    for cell in cells:
        options.progress.expect_of(cell, len(plan.prompts[cell.task]) * plan.repetitions(cell.task))
    unfinished = {cell for unit in waiting for cell in unit.cells}
    running = 0
    try:
        while waiting or running:
            blocked = [unit for unit in waiting if unfinished.intersection(unit.after)]
            ready = [unit for unit in waiting if not unfinished.intersection(unit.after)]
            pool.submit(ready)
            running, waiting = running + len(ready), blocked
            for ended in pool.wait():
                running -= 1
                if ended.refusal is not None:
                    raise ended.refusal.error()
                again = _settle(ended, plan, store, options, retries)
                waiting += again
                if not again:
                    unfinished.difference_update(ended.unit.cells)
    except KeyboardInterrupt as stop:
        raise RunIncomplete(
            f"interrupted; everything finished is in {store.address}. Go on with the same command and --resume."
        ) from stop
    finally:
        pool.close()
    store.send_missing()  # a worker of this machine may have been lost after its seal
    _refuse_mixed_weights(store)


def _settle(ended: Ended, plan: Plan, store: Store, options: Options, retries: int) -> list[Unit]:
    """The unit to run again, if there is one."""
    unit = ended.unit
    store.fetch(unit.cells)
    if ended.lost is not None and not all(_finished(store, cell) for cell in unit.cells):
        again = after_loss(unit, ended.lost)
        if len(again.lost) <= retries:
            options.progress.say(f"runs again: {_named(unit)}: {ended.lost}")
            return [again]
        options.progress.say(f"failed: {_named(unit)}: {ended.lost}")
        _fail(plan, again, store)
    for cell in _cells(plan, unit):
        for prompt in plan.prompts[cell.task] * plan.repetitions(cell.task):
            options.progress.done(cell, prompt)
    return []


def _fail(plan: Plan, unit: Unit, store: Store) -> None:
    """Seal the cells that no worker finished; their missing decodes become failed samples."""
    reason = f"{len(unit.lost)} workers were lost with these cells: {'; '.join(dict.fromkeys(unit.lost))}"
    for cell in _cells(plan, unit):
        if _finished(store, cell.id):
            continue
        store.reopen(cell.id)
        repetitions = range(plan.repetitions(cell.task))
        write_failed(store, cell, itertools.product(plan.prompts[cell.task], repetitions), reason)
        samples = store.pending(cell.id)
        verdict = unproved(cell, samples, reason)
        score = StoredSetScore(**vars(SetScore(None, 0, reason=reason)))
        scores = dict.fromkeys(cell.task.task.set_metrics, score)
        facts = CellMeta(status="done", lost_workers=list(unit.lost), verdict=verdict, set_scores=scores)
        store.seal(cell.id, plan.meta(cell).merged(facts))


def _refuse_mixed_weights(store: Store) -> None:
    """Raise where workers ran a backbone with unlike weights."""
    first: dict[tuple[str, str], tuple[str, str]] = {}
    for name in store.cells():
        meta = store.meta(name)
        weights = meta.fingerprint
        group = (meta.backbone, meta.dtype)
        if weights is not None and first.setdefault(group, (name, weights))[1] != weights:
            raise StoreError(
                f"{name} and {first[group][0]} in {store.path} were made with unlike weights of {group[0]}: the "
                f"machines of the workers hold unlike files. Give them the same, and start another run."
            )


def _finished(store: Store, cell: str) -> bool:
    """Whether a cell is sealed, and not as one that could be run now."""
    return store.sealed(cell) and store.meta(cell).status != "skipped"


def _cells(plan: Plan, unit: Unit) -> list[Cell]:
    return [plan.by_id[cell] for cell in unit.cells]


def _named(unit: Unit) -> str:
    more = f" and {len(unit.cells) - 1} more" if len(unit.cells) > 1 else ""
    return f"{unit.cells[0]}{more}"


# Options of the executors, as ``--executor-option KEY=VALUE`` gives them.


class Serial(BaseModel):
    """The serial executor takes no options."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Ray(BaseModel):
    """Options of the Ray executor.

    Args:
        address: of a cluster, such as ``auto``; not given: that of $RAY_ADDRESS, else a new one on this machine.
        workers: at most so many at a time; not given: as many as the cluster has room for.
        retries: how often cells are run again whose worker was lost.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    address: str | None = None
    workers: int | None = Field(None, ge=1)
    retries: int = Field(2, ge=0)


class Slurm(BaseModel):
    """Options of the Slurm executor. Those that begin with ``slurm_`` go to submitit as they are.

    Args:
        cluster: ``slurm``, or ``local`` for processes of this machine.
        minutes: time limit of a job.
        workers: jobs of an array that run at a time.
        units: units of cells of a job, at most.
        retries: how often cells are run again whose job was lost.
        poll_s: seconds between two looks at the jobs.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    cluster: str = Field("slurm", pattern="^(slurm|local)$")
    minutes: int = Field(240, ge=1)
    workers: int = Field(16, ge=1)
    units: int = Field(8, ge=1)
    retries: int = Field(2, ge=0)
    poll_s: float = Field(5.0, gt=0)

    @property
    def passed_on(self) -> dict[str, object]:
        """The options of submitit."""
        return dict(self.model_extra or {})


KINDS: Mapping[str, type[BaseModel]] = {"serial": Serial, "ray": Ray, "slurm": Slurm}


def check(executor: str, options: Mapping[str, Any]) -> Any:
    """The options of an executor, checked."""
    kind = KINDS[executor]
    try:
        settings = kind.model_validate(dict(options))
    except ValidationError as error:
        lines = [f"--executor-option {item['loc'][0]}: {item['msg']}" for item in error.errors()]
        known = ", ".join(kind.model_fields) or "none"
        raise UsageError("\n".join([*lines, f"The {executor} executor has the options: {known}."])) from error
    foreign = [name for name in settings.model_extra or {} if not name.startswith("slurm_")]
    if foreign:
        raise UsageError(
            f"--executor-option {foreign[0]}: the {executor} executor has the options: {', '.join(kind.model_fields)}, "
            f"and those of submitit that begin with slurm_."
        )
    return settings
