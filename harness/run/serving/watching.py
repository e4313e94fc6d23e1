"""A fixed set of probes against a running server: acceptance and latency as one line of a history."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from stridebench.harness.core.engine import Counters, Engine, EngineFault, Weights
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.plan.engine_cells import EngineCell
from stridebench.harness.plan.engine_entries import EngineUse
from stridebench.harness.plan.names import TaskUse
from stridebench.harness.record.request_metrics import measures
from stridebench.harness.record.requests import Request, table
from stridebench.harness.run.serving.reference import Reference
from stridebench.harness.run.serving.requests import Asked, ask, seed_of

TOLD = ("length_per_draft", "length_per_pass")
SHOWN = ("acceptance", "ttft_ms_p50", "tpot_ms_p50", "tokens_per_second")


class Watched:
    """A server under watch.

    Args:
        use: the engine, with its address as an option.
        task: of the probes, for the setting's name.
        prompts: the probes, the same every time.
        tokens: of each output; the end of text is ignored, outputs are greedy.
    """

    def __init__(self, use: EngineUse, task: TaskUse, prompts: Sequence[Prompt], tokens: int) -> None:
        self._prompts = prompts
        sampling = Sampling(temperature=0.0)
        self._cell = EngineCell(use, use.name, "", task, sampling, tokens, ignore_eos=True, seed=0)
        self._counted = Counters()

    def line(self) -> dict[str, Any]:
        """One reading, a line of a history (`reports.history.series`). Where it failed: the fault and no figures.

        ``restarted`` is there where the server's counters are below those of the reading before.
        """
        use, created = self._cell.use, datetime.now(UTC).isoformat(timespec="milliseconds")
        facts: dict[str, Any] = {
            **{"created": created, "run": use.options["url"], "cell": f"watch.{use.name}", "label": use.label},
            **{"backbone": use.name, "dtype": "", "temperature": 0.0, "task": self._cell.task.title},
        }
        try:
            with use.make() as engine:
                engine.open(Weights())
                return {**facts, **self._read(engine), "status": "done", "machine": use.options["url"]}
        except EngineFault as fault:
            return {**facts, "status": "failed", "fault": fault.kind, "error": str(fault)}

    def _read(self, engine: Engine) -> dict[str, Any]:
        before = engine.counters() if engine.tells.counters else None
        restarted = before is not None and before.since(self._counted).backwards
        rows = list(self._ask(engine))
        after = engine.counters() if before is not None else None
        self._counted = after or Counters()
        growth = after.since(before) if after is not None and before is not None else None
        if growth is not None and growth.backwards:
            raise EngineFault("server_died", "its counters went backwards between two probes")
        frame = table(rows).to_pandas(use_threads=False)
        figures = measures(frame, dict(growth.values) if growth is not None else {}, {})
        return {
            **({"restarted": True} if restarted else {}),
            **{name: figures[f"{name}_pooled"] for name in TOLD},
            **{name.removesuffix("_p50"): figures[name] for name in SHOWN},
        }

    def _ask(self, engine: Engine) -> list[Request]:
        start, rows = time.perf_counter_ns(), []
        for prompt in self._prompts:
            asked = Asked(prompt, 0, self._cell.max_new_tokens, seed_of(self._cell, prompt, 0))
            row = ask(engine, self._cell, Reference(self._cell.backbone, None), asked, 0, start)
            if row.status != "ok":
                raise EngineFault(str(row.fault), str(row.error).partition(": ")[2])
            rows.append(row)
        return rows
