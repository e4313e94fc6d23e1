"""Cells of engines, as a run sees them. Engines are a guest: the base reaches them through a registry only.

A package that runs engines registers an `EngineRunner` as `RUNNERS["engines"]`. If it is not installed, a suite with
engines is refused with one error, and everything else works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stridebench.harness.core.engine import EngineFault
from stridebench.harness.plan.cells import Plan
from stridebench.harness.plan.engine_cells import EngineCell
from stridebench.harness.plan.entries import EngineUse
from stridebench.harness.record.files import latest_of_suite
from stridebench.harness.registry import RUNNERS

if TYPE_CHECKING:  # a dry run loads neither torch nor pandas
    from stridebench.harness.record.store import Store
    from stridebench.harness.run.loading import Options


@dataclass(frozen=True)
class StoppedEngine:
    """An engine that could not finish its cells, and why."""

    label: str
    fault: EngineFault


class EngineRunner(Protocol):
    """Runs the cells of engines."""

    def obstacle(self, use: EngineUse) -> str | None:
        """Return why an engine cannot start on this machine now, or None if nothing is known to be missing."""

    def run(self, plan: Plan, store: Store, options: Options) -> Sequence[StoppedEngine]:
        """Run every cell that is not sealed yet, and return the engines that stopped before they had finished."""


def _runner() -> EngineRunner:
    runner: EngineRunner = RUNNERS.get("engines")()
    return runner


def with_obstacles(plan: Plan, out: Path | str | None = None, resume: bool = False) -> Plan:
    """Return the plan with the cells skipped whose engine cannot start on this machine now.

    The reason is not stored: a resumed run tries these cells again. Cells that it has finished need no engine.

    Args:
        out: the run folder or its URL, or None if it gets its usual place.
        resume: whether a run goes on. The engines of one at a URL are tried when they run.
    """
    if resume and "://" in str(out):
        return plan
    finished = _finished(plan, out) if resume else frozenset[str]()
    uses = {cell.use.label: cell.use for cell in plan.runnable_engines if cell.id not in finished}
    if not uses:
        return plan
    runner = _runner()
    obstacles = {label: runner.obstacle(use) for label, use in uses.items()}

    def checked(cell: EngineCell) -> EngineCell:
        reason = None if cell.skip or cell.id in finished else obstacles[cell.use.label]
        return cell if reason is None else replace(cell, skip=reason, only_now=True)

    return replace(plan, engines=tuple(checked(cell) for cell in plan.engines))


def _finished(plan: Plan, out: Path | str | None) -> frozenset[str]:
    """Return the ids of the sealed cells of engines in the run folder, or in the latest one of the suite."""
    folder = latest_of_suite(plan.suite.suite.name) if out is None else Path(out)
    return frozenset() if folder is None else frozenset(cell.name for cell in folder.glob("engines/*"))


def run_engines(plan: Plan, store: Store, options: Options) -> Sequence[StoppedEngine]:
    """Run the cells of engines (`EngineRunner.run`)."""
    return _runner().run(plan, store, options) if plan.runnable_engines else ()
