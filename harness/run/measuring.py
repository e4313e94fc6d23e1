"""What the cells of a plan cost on this machine, measured on a few tokens of one prompt each before the run is planned.

The same code decodes as in the run, into a folder that is removed. Weights that are missing are fetched first.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from stridebench.harness.core.clock import CpuClock
from stridebench.harness.core.costs import Passes
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import StrideError, UsageError
from stridebench.harness.machine import noise
from stridebench.harness.plan import presets
from stridebench.harness.plan.budget import option_of
from stridebench.harness.plan.cells import Cell, Plan
from stridebench.harness.plan.estimate import CellCost, CellCosts, assumed, cost_key
from stridebench.harness.plan.expand import expand
from stridebench.harness.plan.resolve import resolve_again
from stridebench.harness.plan.suite import duration_words
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.store import Store
from stridebench.harness.run.executors import groups
from stridebench.harness.run.loading import Options, Progress, WarmModels, load_group
from stridebench.harness.run.passes import settle, timed_pass
from stridebench.harness.run.schedule import Schedule
from stridebench.harness.run.scoring import Scorer
from stridebench.harness.run.workers.isolation import IsolatedCells

MOST = 0.5
"""The share of a budget that measuring may take; cells whose turn has not come by then are dropped."""
FAST = 0.25
"""The quantile of the steps that counts, because other work only adds time, and the first steps allocate."""
WAITED = 0.05
"""Threads that waited for a core in a larger share of the measured time are mentioned in errors."""
TOKENS, TOKENS_OF_TEXT = 64, 16
"""Output tokens of a cell that are timed. Models of text are the dear ones; a window over a picture needs a start."""
SMALL_MODEL, SMALL_PASSES = "random-llama-1m", 9
"""The model of about a million parameters whose passes stand for proofs and reports, and how many are timed."""


@dataclass(frozen=True)
class MeasuredCosts:
    """CellCosts, and the times of passes of each group, by which the run chooses its threads too."""

    costs: CellCosts
    passes: Mapping[tuple[str, str], Passes]


class _HalfSpentError(Exception):
    """Measuring has taken its share of the budget."""


class _Watch(Progress):
    """Keeps how long each cell took for its one prompt, scores included: the cells decode one after the other."""

    def __init__(self, begun: float, budget: float) -> None:
        self._begun, self._budget, self._last = begun, budget, begun
        self.took: dict[Cell, float] = {}
        self.steps_ns = self.waited_ns = 0

    def start(self) -> None:
        """Begin with the cells of a group."""
        self._last = time.monotonic()

    def done(self, cell: Cell, prompt: Prompt) -> None:
        now = time.monotonic()
        self.took[cell], self._last = now - self._last, now
        if self.is_over:
            raise _HalfSpentError

    @property
    def is_over(self) -> bool:
        """Return whether measuring has taken its share."""
        return self._last - self._begun > MOST * self._budget

    def check(self, planned: int, others: str) -> None:
        """Check that a method was measured."""
        if not self.is_over or any(cell.role == "method" for cell in self.took):
            return
        spent = self._last - self._begun
        raise UsageError(
            f"measuring {len(self.took)} of {planned} cells took {duration_words(spent)} of the budget of "
            f"{duration_words(self._budget)}, which leaves too little for the run{others}; "
            f"give --budget {option_of(spent * planned / max(1, len(self.took)) / MOST)} or more, or --limit"
        )


def measure(plan: Plan, options: Options, begun: float) -> MeasuredCosts:
    """Load every backbone of a plan once, and decode the beginning of one prompt with every cell.

    Small models come first, so that a busy machine leaves out the dear ones.

    Args:
        begun: when the run began, by ``time.monotonic``; fetching weights does not count.
    """
    fetching = time.monotonic()
    load = noise.busy(*noise.load_and_cores())
    for name in dict.fromkeys(cell.backbone for cell in plan.runnable) if options.fetch else ():
        try:
            presets.fetch(name, options.progress.say)
        except StrideError:
            continue  # the group's cells are skipped with this reason
    begun += time.monotonic() - fetching
    watch = _Watch(begun, plan.suite.suite.budget or math.inf)
    options.progress.say(f"measuring {len(plan.runnable)} cells on the beginning of a prompt each, to keep the budget")
    probe, quiet, expected = _probe(plan), replace(options, progress=Progress()), assumed(plan)
    cells: dict[object, CellCost] = {}
    loads: dict[tuple[str, str], float] = {}
    passes: dict[tuple[str, str], Passes] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "run", {**probe.manifest(), "provenance": {}})
        try:
            for group in sorted(groups(probe), key=expected.loads.__getitem__) if expected else groups(probe):
                if watch.is_over:
                    break
                loads[group], settled = _measure_group(probe, group, store, quiet, watch, cells)
                passes |= {} if settled is None else {group: settled}
        finally:
            store.release()
    waited = watch.waited_ns / max(1, watch.steps_ns)
    threads = f"threads waited for a core for {waited:.0%} of the measured time"
    words = [*([load] if load else []), *([threads] if waited > WAITED else [])]
    others = "".join(f"; {one}" for one in words)
    watch.check(len(probe.runnable), others)
    late = [cell for cell in probe.runnable if cell not in watch.took] if watch.is_over else []
    for cell in late:
        plain = cells.get(cost_key(probe.baseline(cell)))
        if cell.role == "floor" and plain is not None:  # a floor costs what its baseline does
            cells[cost_key(cell)] = plain
    unmeasured = frozenset({cost_key(cell) for cell in late} - cells.keys())
    costs = CellCosts(_cautious(plan, cells), loads, _small_pass(), time.monotonic() - begun, unmeasured, others)
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
            with suppress(_HalfSpentError), IsolatedCells(loaded) as isolated:
                Schedule(loaded, Scorer(loaded, isolated), isolated).run()
        for cell in (cell for cell in loaded.cells if cell in watch.took):
            store.seal(cell.id, probe.meta(cell).merged(CellMeta(status="done")))
            one = store.cell(cell.id)
            if len(one.steps):
                steps_ns = int(one.steps["wall_ns"].sum())
                watch.steps_ns += steps_ns
                watch.waited_ns += int(one.steps["wait_ns"].sum()) // torch.get_num_threads()
                rest = watch.took[cell] - steps_ns / 1e9
                cells[cost_key(cell)] = CellCost(max(0.0, rest), _token_s(one))
        return load_s, passes
    finally:
        models.release()
        torch.set_num_threads(threads)


def _token_s(cell: SealedCell) -> float:
    """Return the seconds of an output token, by the fast steps."""
    tokens = cell.steps["emitted"] + cell.steps["overshoot"]
    return float(cell.steps["wall_ns"].quantile(FAST)) / 1e9 * len(tokens) / max(1, int(tokens.sum()))


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
        return min(one(1) for _ in range(SMALL_PASSES)) / 1e3
    finally:
        torch.set_num_threads(threads)
