"""Times of passes by their rows, and of the drafters that size trees by them; stored for `harness.core.costs`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from stridebench.harness.bench.paired import Result, Settings, build, prompt_ids
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.costs import Costs, costs_file, write_costs
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.harness.plan import presets
from stridebench.harness.run.passes import Threads, drafter_costs, measure

MEASURED = ("eagle2", "eagle3")
"""Methods that can size their trees by measured costs."""


def windows(dtype: str) -> Callable[[str, Settings], Result]:
    """Milliseconds of the target's largest window beside one row. The tables of all drafters that are here are stored.

    Raises:
        WeightsError: no drafter of the backbone that grows trees is here.
    """

    def act(name: str, settings: Settings) -> Result:
        backbone = presets.load(settings.backbone, dtype)
        prompt = Prompt("windows", tokens=tuple(prompt_ids(backbone, 1)[0]))
        passes = measure(backbone, prompt, Threads(torch.get_num_threads(), choose=False), busy=False)
        drafters = stored(backbone, prompt, passes.rows)
        rows, ms = zip(*passes.rows, strict=True)
        times = ", ".join(f"{count} rows {time:.1f}" for count, time in passes.rows)
        note = f"ours: {rows[-1]} rows, peer: {rows[0]}; {times}; kept for {', '.join(drafters)}"
        return Result(name, ms[-1], ms[0], ms[-1] / ms[0], None, None, "ms", "", "", 1, note)

    return act


def stored(backbone: Backbone, prompt: Prompt, rows: tuple[tuple[int, float], ...]) -> list[str]:
    """The drafters that are here, each with its table measured and stored."""
    drafters: list[str] = []
    missing: WeightsError | UsageError | None = None
    for name in MEASURED:
        method = build(name, {"sizing": "measured"})
        try:
            tables = drafter_costs(backbone, lambda drafter: presets.drafter(backbone, drafter), method, prompt)
        except (WeightsError, UsageError) as error:
            missing = error
            continue
        for drafter, table in tables.items():
            write_costs(costs_file(backbone, drafter), Costs(rows, table))
            drafters.append(drafter)
    if not drafters and missing is not None:
        raise missing
    return drafters
