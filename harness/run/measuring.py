"""What the cells of a plan cost on this machine, measured on a few tokens of one prompt each before the run is planned.

The same code decodes as in the run, into a folder that is removed. Weights that are missing are fetched first.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from stridebench.harness.core.clock import CpuClock
from stridebench.harness.core.costs import Passes
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import StrideError, UsageError
from stridebench.harness.plan import presets
from stridebench.harness.plan.cells import Cell, Plan
from stridebench.harness.plan.estimate import CellCost, Costs, cost_key
from stridebench.harness.plan.expand import expand
from stridebench.harness.plan.resolve import resolve_again
from stridebench.harness.plan.suite import duration_words
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.store import SealedCell, Store
from stridebench.harness.run.executors import groups
from stridebench.harness.run.loading import Options, Progress, WarmModels, load_group
from stridebench.harness.run.passes import settle, timed_pass
from stridebench.harness.run.schedule import Schedule
from stridebench.harness.run.scoring import Scorer
from stridebench.harness.run.workers.isolation import IsolatedCells

MOST = 0.5
"""The share of a budget that measuring may take."""
TOKENS, TOKENS_OF_TEXT = 64, 16
"""Output tokens of a cell that are timed. Models of text are the dear ones; a window over a picture needs a start."""
SMALL_MODEL, SMALL_PASSES = "random-llama-1m", 9
"""The model of about a million parameters whose passes stand for proofs and reports, and how many are timed."""


@dataclass(frozen=True)
class MeasuredCosts:
    """Costs, and the times of passes of each group, by which the run chooses its threads too."""

    costs: Costs
    passes: Mapping[tuple[str, str], Passes]


class _Watch(Progress):
    """Keeps how long each cell took for its one prompt, scores included: the cells decode one after the other.

    Args:
        begun: when the run began.
        budget: of the run, in seconds.
    """

    def __init__(self, begun: float, budget: float) -> None:
        self._begun, self._budget, self._last = begun, budget, begun
        self.took: dict[Cell, float] = {}

    def start(self) -> None:
        """Begin with the cells of a group."""
        self._last = time.monotonic()

    def done(self, cell: Cell, prompt: Prompt) -> None:
        now = time.monotonic()
        self.took[cell], self._last = now - self._last, now
        if now - self._begun > MOST * self._budget:
            raise UsageError(
                f"measuring {len(self.took)} cells took {duration_words(now - self._begun)} of the budget of "
                f"{duration_words(self._budget)}, which leaves too little for the run: this machine is busy or slow; "
                f"give a larger --budget, or --limit"
            )


def measure(plan: Plan, options: Options, begun: float) -> MeasuredCosts:
    """Load every backbone of a plan once, and decode the beginning of one prompt with every cell.

    Args:
        begun: when the run began, by ``time.monotonic``; fetching weights does not count.

    Raises:
        UsageError: measuring takes more than `MOST` of the plan's budget.
    """
    fetching = time.monotonic()
    for name in dict.fromkeys(cell.backbone for cell in plan.runnable) if options.fetch else ():
        try:
            presets.fetch(name, options.progress.say)
        except StrideError:
            continue  # the group's cells are skipped with this reason
    begun += time.monotonic() - fetching
    watch = _Watch(begun, plan.suite.suite.budget or math.inf)
    options.progress.say(f"measuring {len(plan.runnable)} cells on the beginning of a prompt each, to keep the budget")
    probe, quiet = _probe(plan), replace(options, progress=Progress())
    cells: dict[object, CellCost] = {}
    loads: dict[tuple[str, str], float] = {}
    passes: dict[tuple[str, str], Passes] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "run", {**probe.manifest(), "provenance": {}})
        try:
            for group in groups(probe):
                loads[group], settled = _measure_group(probe, group, store, quiet, watch, cells)
                passes |= {} if settled is None else {group: settled}
        finally:
            store.release()
    costs = Costs(_cautious(plan, cells), loads, _small_pass(), time.monotonic() - begun)
    return MeasuredCosts(costs, passes)


def _probe(plan: Plan) -> Plan:
    """Return the plan with one prompt a task and few tokens, without proofs."""
    data = plan.suite.suite.model_dump()
    for entry, task in zip(data["tasks"], plan.suite.suite.tasks, strict=True):
        tokens = TOKENS_OF_TEXT if all(use.task.modality == "text" for use in task.uses) else TOKENS
        entry |= {"limit": 1, "max_new_tokens": tokens, "repetitions": 1}
    for entry in data["backbones"]:
        entry["max_new_tokens"] = None
    data |= {"prove": False, "warmup": 0, "budget": None, "greedy_check": {"prompts": 0}}
    return expand(resolve_again(data))


def _measure_group(
    probe: Plan,
    group: tuple[str, str],
    store: Store,
    options: Options,
    watch: _Watch,
    cells: dict[object, CellCost],
) -> tuple[float, Passes | None]:
    """Add the costs of a group's cells; return the seconds in which its backbone was loaded, and what passes take."""
    models, threads, begin = WarmModels(all_at_once=True), torch.get_num_threads(), time.monotonic()
    mine = [cell for cell in probe.runnable if cell.group == group]
    try:
        with torch.inference_mode():
            loaded = load_group(probe, mine, store, options, models)
            load_s = time.monotonic() - begin
            if loaded is None or not loaded.cells:
                return load_s, None
            passes = settle(loaded)
            loaded = replace(loaded, options=replace(options, progress=watch))
            watch.start()
            with IsolatedCells(loaded) as isolated:
                Schedule(loaded, Scorer(loaded, isolated), isolated).run()
        for cell in loaded.cells:
            store.seal(cell.id, probe.meta(cell).merged(CellMeta(status="done")))
            one = store.cell(cell.id)
            if len(one.steps):
                rest = watch.took.get(cell, 0.0) - float(one.steps["wall_ns"].sum()) / 1e9
                cells[cost_key(cell)] = CellCost(max(0.0, rest), _token_s(one))
        return load_s, passes
    finally:
        models.release()
        torch.set_num_threads(threads)


def _token_s(cell: SealedCell) -> float:
    """Return the seconds of an output token; the median step counts, because the first ones allocate."""
    tokens = cell.steps["emitted"] + cell.steps["overshoot"]
    return float(cell.steps["wall_ns"].median()) / 1e9 * len(tokens) / max(1, int(tokens.sum()))


def _cautious(plan: Plan, cells: Mapping[object, CellCost]) -> dict[object, CellCost]:
    """Return the costs with half of what a method gained on its baseline: few tokens say little about acceptance."""
    out = dict(cells)
    for cell in plan.runnable:
        plain, own = cells.get(cost_key(plan.baseline(cell))), cells.get(cost_key(cell))
        if plain is not None and own is not None and own.token_s < plain.token_s:
            out[cost_key(cell)] = replace(own, token_s=(own.token_s + plain.token_s) / 2)
    return out


@torch.inference_mode()
def _small_pass() -> float:
    """Return the seconds of a pass of the small model with one thread: work as small as proofs gains by no second."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        one = timed_pass(presets.load(SMALL_MODEL, "fp32"), Prompt("small", tokens=(7,) * 8), CpuClock())
        return sorted(one(1) for _ in range(SMALL_PASSES))[SMALL_PASSES // 2] / 1e3
    finally:
        torch.set_num_threads(threads)
