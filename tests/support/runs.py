"""Small runs of real cells: planned, run to the end or in parts, and read back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import StoreError
from stridebench.harness.plan import resolve
from stridebench.harness.plan.cells import Plan
from stridebench.harness.plan.expand import expand
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.store import Store
from stridebench.harness.run.executors import serial
from stridebench.harness.run.loading import Options, Progress
from tests.support.shape_checks import without_shape_checks


def plan_of(**data: Any) -> Plan:
    small = {"backbones": ["tabular"], "tasks": ["tabular"], "max_new_tokens": 6, "prove": False}
    return expand(resolve.resolve({**small, **data}, resolve.Lines("test", None)))


def start(path: Path, plan: Plan) -> Store:
    return Store.create(path, {**plan.manifest(), "provenance": {}})


def finished(path: Path, **data: Any) -> dict[str, SealedCell]:
    """Run to the end; the sealed cells by label and temperature."""
    plan = plan_of(**data)
    store = start(path, plan)
    with without_shape_checks():
        serial(plan, store, Options())
    return by_label(store)


def by_label(store: Store) -> dict[str, SealedCell]:
    cells = map(store.cell, store.cells())
    return {f"{cell.meta.label} T={cell.meta.sampling.temperature:g}": cell for cell in cells}


class Stop(Progress):
    """Ends a run after so many decodes."""

    def __init__(self, after: int) -> None:
        self.left = after

    def done(self, cell: Any, prompt: Prompt) -> None:
        self.left -= 1
        if not self.left:
            raise StoreError("stop here")


def in_parts(plan: Plan, store: Store, afters: Sequence[int]) -> None:
    """Run to the end, stopped after so many decodes each time."""
    with without_shape_checks():
        for after in afters:
            with pytest.raises(StoreError):
                serial(plan, store, Options(progress=Stop(after)))
        serial(plan, store, Options())


def counted(cell: SealedCell) -> Any:
    return cell.samples[~cell.samples["warmup"].astype(bool)].set_index("prompt")
