"""The runner that the base finds in its registry. It imports torch only when engines run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stridebench.harness.engines.serving import launch
from stridebench.harness.plan.cells import Plan
from stridebench.harness.plan.entries import EngineUse
from stridebench.harness.registry import RUNNERS
from stridebench.harness.run.engine_runner import StoppedEngine

if TYPE_CHECKING:
    from stridebench.harness.record.store import Store
    from stridebench.harness.run.loading import Options


@RUNNERS.register("engines")
class ServedEngines:
    """Runs the cells of engines, in this process or behind servers (`stridebench.harness.run.engine_runner`)."""

    def obstacle(self, use: EngineUse) -> str | None:
        """Return why an engine cannot start (`launch.obstacle`)."""
        return launch.obstacle(use)

    def run(self, plan: Plan, store: Store, options: Options) -> Sequence[StoppedEngine]:
        """Run the cells (`stridebench.harness.engines.serving.engines.run_engines`)."""
        from stridebench.harness.engines.serving.engines import run_engines

        return run_engines(plan, store, options)
