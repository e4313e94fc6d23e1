"""The worker of a pool: it runs units of a plan, and keeps the backbone of the latest one."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from stridebench.harness.errors import RunIncomplete, StrideError, printable_line
from stridebench.harness.plan.cells import Cell, Plan
from stridebench.harness.plan.entries import Resources
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.store import SealedError, Store
from stridebench.harness.run.group import run_cells
from stridebench.harness.run.loading import WarmModels
from stridebench.harness.run.workers.protocol import WorkerSetup

# Units of a plan: cells that one worker runs in one go.


@dataclass(frozen=True)
class Unit:
    """Cells of one backbone and type that one worker runs.

    Args:
        after: ids of cells whose outputs these are compared with, and which another unit holds.
        lost: how each earlier worker of this unit was lost.
    """

    cells: tuple[str, ...]
    group: tuple[str, str]
    after: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


def units_of(plan: Plan) -> list[Unit]:
    """The runnable cells as units, in the plan's order.

    Where seconds are measured, a unit is a baseline with all cells that are paired with it, so that they take turns on
    one device. If they are not, every cell is a unit; at T = 0 it waits for its baseline.
    """
    if not plan.suite.suite.timing:
        return [_alone(plan, cell) for cell in plan.runnable]
    settings: dict[Any, list[Cell]] = {}
    for cell in plan.runnable:
        settings.setdefault(cell.setting, []).append(cell)
    return [Unit(tuple(cell.id for cell in cells), cells[0].group) for cells in settings.values()]


def _alone(plan: Plan, cell: Cell) -> Unit:
    baseline = plan.baseline(cell)
    compared = cell.role == "method" and cell.sampling.temperature == 0 and baseline.skip is None
    return Unit((cell.id,), cell.group, (baseline.id,) if compared else ())


def after_loss(unit: Unit, reason: str) -> Unit:
    """The unit, to be run again."""
    return replace(unit, lost=(*unit.lost, reason))


@dataclass(frozen=True)
class Needs:
    """Resources that a worker takes: CPU cores, GPUs, and bytes of memory if they are known."""

    cpus: int
    gpus: float
    memory: int | None


def needs_of(plan: Plan, unit: Unit, device: str) -> Needs:
    """Return the resources declared for the unit's backbone; it takes a core for every thread."""
    entries = (entry for entry in plan.suite.suite.backbones if entry.name == unit.group[0])
    declared = next(entries).resources or Resources.model_validate({})
    gpus = declared.gpus if declared.gpus is not None else float(device.startswith("cuda"))
    memory = None if declared.memory_gb is None else int(declared.memory_gb * 1e9)
    return Needs(max(declared.cpus, plan.suite.suite.threads or 1), gpus, memory)


# One timed unit of cells at a time on a device, whatever else runs on the machine.


@contextmanager
def exclusive(device: str) -> Iterator[None]:
    """Wait until no other worker of this user times on the device, and keep others waiting.

    The lock is the kernel's, so it ends with the process, however that ends.
    """
    handle = os.open(lock_file(device), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def lock_file(device: str) -> Path:
    """The file that stands for a device of this machine."""
    return Path(tempfile.gettempdir()) / f"stride-timing-{os.getuid()}-{_identity(device)}.lock"


def _identity(device: str) -> str:
    """Name a GPU by its UUID, since each worker may see it under another number."""
    if not device.startswith("cuda"):
        return "cpu"
    properties = torch.cuda.get_device_properties(torch.device(device))
    return f"gpu-{getattr(properties, 'uuid', torch.device(device).index or 0)}"


CAUTIOUS = 2
"""From so many losses on, methods run in separate processes, so that the one that ends it is known."""


@dataclass(frozen=True)
class Refusal:
    """A worker could not go on for a reason that holds for the whole run."""

    text: str
    incomplete: bool

    def error(self) -> StrideError:
        """As the error that ended the worker's unit."""
        return RunIncomplete(self.text) if self.incomplete else StrideError(self.text)


class CellWorker:
    """Runs units of one plan in this process."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup, self._plan, self._models = setup, setup.plan(), WarmModels()

    def run(self, unit: Unit) -> Refusal | None:
        """Run all cells of a unit to their seals, and return why that was refused, or None."""
        store, plan, device = Store.open(self._setup.path), self._plan, self._setup.options.device
        store.fetch([*unit.cells, *unit.after])
        cells = [plan.by_id[cell] for cell in unit.cells]
        facts = CellMeta(lost_workers=list(unit.lost)) if unit.lost else CellMeta()
        for _ in range(len(cells) + 1):
            try:
                with exclusive(device) if plan.suite.suite.timing else nullcontext():
                    run_cells(_cautious(plan, unit), cells, store, self._setup.options, self._models, facts)
            except SealedError:
                continue  # a worker that was thought lost has finished a cell; the others are left
            except StrideError as error:
                return Refusal(str(error), isinstance(error, RunIncomplete))
            break
        return None


def _cautious(plan: Plan, unit: Unit) -> Plan:
    """Return the plan, with methods in separate processes once several workers were lost."""
    suite = plan.suite.suite
    if len(unit.lost) < CAUTIOUS or suite.isolation is not None:
        return plan
    return replace(plan, suite=replace(plan.suite, suite=suite.model_copy(update={"isolation": "process"})))


def describe(error: BaseException) -> str:
    """An error of an engine as the reason of a loss, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable_line(f"{type(error).__name__}: {' '.join(lines)}")[:500]
