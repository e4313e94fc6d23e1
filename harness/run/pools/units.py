"""Units of a plan: cells that one worker runs in one go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from stridebench.harness.plan.cells import Cell, Plan
from stridebench.harness.plan.suite import Resources


@dataclass(frozen=True)
class Unit:
    """Cells of one backbone and type that one worker runs.

    Args:
        cells: their ids.
        group: the backbone and the type.
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
    one device. Where they are not, every cell is a unit; at T = 0 it waits for its baseline.
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
    """What a worker takes of its machine: CPU cores, GPUs and bytes of memory (None: unknown)."""

    cpus: int
    gpus: float
    memory: int | None


def needs_of(plan: Plan, unit: Unit, device: str) -> Needs:
    """What the suite declares for the unit's backbone; a worker takes no fewer cores than the suite has threads."""
    entries = (entry for entry in plan.suite.suite.backbones if entry.name == unit.group[0])
    declared = next(entries).resources or Resources.model_validate({})
    gpus = declared.gpus if declared.gpus is not None else float(device.startswith("cuda"))
    memory = None if declared.memory_gb is None else int(declared.memory_gb * 1e9)
    return Needs(max(declared.cpus, plan.suite.suite.threads or 1), gpus, memory)
