"""Time of a pass by its number of rows, from decodes with trees of several sizes; stored for `harness.core.costs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from harness.bench import costs
from harness.bench.paired import Result, Settings, build, decoded, prompt_ids
from harness.bench.trees import Rival
from harness.core.backbone import Backbone
from harness.core.costs import Costs, costs_file, write_costs
from harness.core.method import Method
from harness.errors import UsageError, WeightsError
from harness.plan import presets
from harness.record.columns import Step

NODES = (1, 2, 4, 8, 16, 32, 60)
"""Sizes of trees. A tree of n nodes is read in n + 1 rows."""
MEASURED = (("eagle2", "eagle1"), ("eagle3", "eagle3"))
"""Methods that can size their trees by measured costs, each with its drafter."""
PROMPTS = 4


def windows(dtype: str) -> Callable[[str, Settings], Result]:
    """Milliseconds of the target's largest window beside one row. The tables of all drafters that are here are stored.

    Raises:
        WeightsError: no drafter of the backbone that grows trees is here.
    """

    def act(name: str, settings: Settings) -> Result:
        backbone = presets.load(settings.backbone, dtype)
        prompts = prompt_ids(backbone, min(PROMPTS, settings.pairs))
        tables: dict[str, Costs] = {}
        missing: WeightsError | UsageError | None = None
        for method, part in MEASURED:
            try:
                Rival(method, {"features": part}).load(backbone)
            except (WeightsError, UsageError) as error:
                missing = error
                continue
            tables[part] = costs.table(timed(backbone, method, part, prompts, settings.tokens))
            write_costs(costs_file(backbone, part), tables[part])
        if not tables:
            assert missing is not None, "there is a method to look for"
            raise missing
        rows, ms = zip(*next(iter(tables.values())).target, strict=True)
        times = ", ".join(f"{count} rows {time:.1f}" for count, time in zip(rows, ms, strict=True))
        note = f"ours: {rows[-1]} rows, peer: {rows[0]}; {times}; kept for {', '.join(tables)}"
        return Result(name, ms[-1], ms[0], ms[-1] / ms[0], None, None, "ms", "", "", len(prompts), note)

    return act


def timed(
    backbone: Backbone, method: str, part: str, prompts: list[list[int]], tokens: int
) -> Iterator[tuple[int, Step]]:
    """Steps of decodes with a tree of each size and without one, each without its first step; see `costs.table`."""
    plain: list[tuple[int, Method[object]]] = [(0, build("autoregressive", {}))]
    for nodes in NODES:
        width = min(nodes, 10)
        plain.append((width, build(method, {"features": part, "depth": 2, "width": width, "nodes": nodes})))
    for width, decoder in plain:
        for ids in prompts:
            yield from ((width, step) for step in decoded(decoder, backbone, ids, tokens, True).steps[1:])
