"""What a worker of a pool does: it runs units of a plan, and keeps the backbone of the latest one."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from stridebench.harness.discover import declare_all
from stridebench.harness.errors import RunIncomplete, StrideError, printable_line
from stridebench.harness.plan.cells import Plan, expand
from stridebench.harness.plan.suite import resolve_again
from stridebench.harness.platform.malloc import keep_pages
from stridebench.harness.platform.surroundings import restored
from stridebench.harness.record.store import SealedError, Store
from stridebench.harness.run.group import run_cells
from stridebench.harness.run.loading import WarmModels
from stridebench.harness.run.options import Options
from stridebench.harness.run.pools.exclusive import exclusive
from stridebench.harness.run.pools.units import Unit

CAUTIOUS = 2
"""From so many losses on, methods run in a process of their own, so that the one that ends it is known."""


@dataclass(frozen=True)
class Setup:
    """What a worker needs to know of a run: the dumped suite, where its store is, and how to run."""

    suite: dict[str, Any]
    path: str
    options: Options


@dataclass(frozen=True)
class Refusal:
    """A worker could not go on for a reason that holds for the whole run.

    Args:
        incomplete: what is finished can be resumed.
    """

    text: str
    incomplete: bool

    def error(self) -> StrideError:
        """As the error that ended the worker's unit."""
        return RunIncomplete(self.text) if self.incomplete else StrideError(self.text)


class CellWorker:
    """Runs units of one plan in this process."""

    def __init__(self, setup: Setup) -> None:
        keep_pages()
        self._setup = setup
        with restored():  # plugins are imported here
            declare_all()
            self._plan = expand(resolve_again(setup.suite))
        self._models = WarmModels()
        if threads := self._plan.suite.suite.threads:
            torch.set_num_threads(threads)

    def run(self, unit: Unit) -> Refusal | None:
        """All cells of a unit, to their seals; None: they are sealed."""
        store, plan, device = Store.open(self._setup.path), self._plan, self._setup.options.device
        store.fetch([*unit.cells, *unit.after])
        cells = [plan.by_id[cell] for cell in unit.cells]
        facts = {"lost_workers": list(unit.lost)} if unit.lost else {}
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
    """The plan, with methods in a process of their own once several workers were lost."""
    suite = plan.suite.suite
    if len(unit.lost) < CAUTIOUS or suite.isolation is not None:
        return plan
    return replace(plan, suite=replace(plan.suite, suite=suite.model_copy(update={"isolation": "process"})))


def describe(error: BaseException) -> str:
    """An error of an engine as the reason of a loss, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable_line(f"{type(error).__name__}: {' '.join(lines)}")[:500]
