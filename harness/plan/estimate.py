"""How much a plan will decode at most, and about how long the run takes, from measured or assumed costs of passes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.plan import presets
from stridebench.harness.plan.cells import Cell, Plan
from stridebench.harness.plan.compatibility import picture_tokens
from stridebench.harness.plan.engine_cells import EngineCell
from stridebench.harness.plan.preset_files import Spec

PASS_S = 2e-3
"""Seconds of a pass without reading the weights, measured on a model of about a million parameters."""
BANDWIDTH = 6e9
"""Bytes of weights that a pass reads in a second: smollm2-135m in bf16 took 45 ms a token on two cores."""
LOAD_S = 2.0
"""Seconds in which a backbone is loaded, besides reading its weights at a tenth of that speed."""
PROOF, REPORT, REPORT_CELL = 600, 2000, 150
"""Small passes (of ``PASS_S``) in which a setting is enumerated, a report is written, and a cell is added to it."""
WARMUP_TOKENS = 8
"""Output tokens of a warm-up."""
LONGEST_HEADER = 100_000_000
"""Bytes of a safetensors header at most, as its format says."""
_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}
_PARAMETERS = re.compile(r"([\d.]+) ([MB])\b")


@dataclass(frozen=True)
class CellCost:
    """What a cell takes: seconds of a prompt besides its output (reading and scoring it), and of an output token."""

    prompt_s: float
    token_s: float


@dataclass(frozen=True)
class CellCosts:
    """What a run takes on a machine.

    Args:
        cells: by `cost_key`; a cell that is absent cannot run.
        loads: seconds in which the backbone and type of a group are loaded.
        small_pass_s: of a model of about a million parameters, by which proofs and reports are scaled.
        spent_s: that the run took before its first decode.
        unmeasured: keys of the cells that there was no time to measure.
        others: what other processes did meanwhile, as the rest of a sentence; "" on a quiet machine.
    """

    cells: Mapping[object, CellCost]
    loads: Mapping[tuple[str, str], float]
    small_pass_s: float = PASS_S
    spent_s: float = 0.0
    unmeasured: frozenset[object] = frozenset()
    others: str = ""


def cost_key(cell: Cell) -> object:
    """Return what two cells share if their prompts and tokens alone differ."""
    return cell.label, cell.setting


def assumed(plan: Plan) -> CellCosts | None:
    """Return the costs of a CPU at one token a pass, or None if the size of a backbone is not known."""
    cells, loads = {}, {}
    for cell in plan.runnable:
        spec = presets.resolve(cell.backbone)
        token_s = _seconds(cell, spec)
        if token_s is None:
            return None
        cells[cost_key(cell)] = CellCost(2 * token_s, token_s)
        loads[cell.group] = LOAD_S + 10 * token_s
    return CellCosts(cells, loads)


@dataclass(frozen=True)
class Workload:
    """Seconds of the parts of a run.

    Args:
        decodes: of one decode of each cell, by its id.
        rests: of everything else in a cell: warm-up, proof and greedy check.
        report: of the tables and plots at the end.
    """

    decodes: Mapping[str, float]
    counts: Mapping[str, int]
    rests: Mapping[str, float]
    loads: Mapping[tuple[str, str], float]
    report: float

    @property
    def seconds(self) -> float:
        """Return the seconds of all parts."""
        decoding = sum(count * self.decodes[cell] for cell, count in self.counts.items())
        return decoding + sum(self.rests.values()) + sum(self.loads.values()) + self.report


class Forecast:
    """Says how long parts of a plan take.

    Args:
        tokens: the share of the token budget that outputs of text have.
    """

    def __init__(self, plan: Plan, costs: CellCosts, tokens: float = 1.0) -> None:
        self._plan, self._costs, self._share = plan, costs, tokens
        specs = {cell.backbone: presets.resolve(cell.backbone) for cell in plan.runnable}
        self._pictures = {name: picture_tokens(spec) for name, spec in specs.items()}

    def tokens(self, cell: Cell) -> int:
        """Return the most output tokens of a cell."""
        return scaled(self._plan, cell, self._share)

    def decode(self, cell: Cell) -> float:
        """Return the seconds of one decode with its score."""
        cost = self._cost(cell)
        length = min(self.tokens(cell), self._pictures[cell.backbone] or cell.max_new_tokens)
        return cost.prompt_s + length * cost.token_s

    def rest(self, cell: Cell) -> float:
        """Return the seconds of a cell besides its decodes: warm-up, enumeration, and greedy check in fp32."""
        suite, cost = self._plan.suite.suite, self._cost(cell)
        if cost.token_s == 0:
            return 0.0
        seconds = suite.warmup * (cost.prompt_s + WARMUP_TOKENS * cost.token_s) if suite.timing else 0.0
        if not suite.prove or cell.role != "method":
            return seconds
        seconds += PROOF * self._costs.small_pass_s
        if self._checked(cell):
            plain = self._cost(self._plan.baseline(cell))
            check, slower = suite.greedy_check, _BYTES["fp32"] / _BYTES[cell.dtype]
            seconds += check.prompts * slower * (plain.prompt_s + check.tokens * plain.token_s)
        return seconds

    def load(self, group: tuple[str, str], cells: Sequence[Cell]) -> float:
        """Return the seconds in which the models of a group are loaded, also in fp32 if its cells are checked there."""
        again = any(self._checked(cell) for cell in cells if cell.group == group) and group[1] not in ("fp32", "fp64")
        return self._costs.loads.get(group, 0.0) * (2 if again else 1)

    def workload(self, cells: Sequence[Cell], prompts: int | None = None) -> Workload:
        """Return the parts of a run of these cells, with at most so many prompts each."""
        there = {cell.id: len(self._plan.prompts[cell.task]) for cell in cells}
        return Workload(
            {cell.id: self.decode(cell) for cell in cells},
            {
                cell.id: min(there[cell.id], prompts or there[cell.id]) * self._plan.repetitions(cell.task)
                for cell in cells
            },
            {cell.id: self.rest(cell) for cell in cells},
            {group: self.load(group, cells) for group in dict.fromkeys(cell.group for cell in cells)},
            (REPORT + REPORT_CELL * len(cells)) * self._costs.small_pass_s,
        )

    def total(self, cells: Sequence[Cell], prompts: int | None = None) -> float:
        """Return the seconds of a run of these cells from its begin, with at most so many prompts each."""
        return self._costs.spent_s + self.workload(cells, prompts).seconds

    def _cost(self, cell: Cell) -> CellCost:
        return self._costs.cells.get(cost_key(cell), CellCost(0.0, 0.0))

    def _checked(self, cell: Cell) -> bool:
        exact = cell.planned.claim.lossless and cell.role == "method"
        return exact and self._plan.suite.suite.prove and self._plan.suite.suite.greedy_check.prompts > 0


def scaled(plan: Plan, cell: Cell, share: float) -> int:
    """Return the token budget of a cell if texts have a share of theirs; that of a backbone stays."""
    own = any(entry.name == cell.backbone and entry.max_new_tokens for entry in plan.suite.suite.backbones)
    text = cell.task.task.modality == "text"
    return max(1, round(share * cell.max_new_tokens)) if text and not own else cell.max_new_tokens


@dataclass(frozen=True)
class Estimate:
    """Upper bounds: every decode as long as its budget or picture.

    Args:
        decodes: timed ones, of all these cells.
        seconds: of the whole run on a CPU with proofs and report, at one token a pass; None if the size of a backbone
            is not known.
        unsized: backbones of pictures whose size is known only when they are loaded, so that the budget counts.
    """

    decodes: int
    tokens: int
    seconds: float | None
    unsized: tuple[str, ...]


def estimate(plan: Plan, cells: Sequence[Cell | EngineCell] | None = None) -> Estimate:
    """Return the bounds of some cells of a plan, or of all runnable ones if none are given."""
    cells = [*plan.runnable, *plan.runnable_engines] if cells is None else cells
    specs = {cell.backbone: presets.resolve(cell.backbone) for cell in cells}
    pictures = {name: picture_tokens(spec) for name, spec in specs.items()}
    decodes = tokens = 0
    seconds: float | None = 0.0
    for cell in cells:
        count = len(plan.prompts[cell.task]) * plan.repetitions(cell.task)
        length = min(cell.max_new_tokens, pictures[cell.backbone] or cell.max_new_tokens)
        decodes, tokens = decodes + count, tokens + count * length
        if isinstance(cell, EngineCell):
            token_s = _seconds(cell, specs[cell.backbone])
            seconds = None if seconds is None or token_s is None else seconds + count * length * token_s
    if methods := [cell for cell in cells if isinstance(cell, Cell)]:
        costs = assumed(plan)
        seconds = None if seconds is None or costs is None else seconds + Forecast(plan, costs).total(methods)
    unsized = (name for name, spec in specs.items() if spec.modality() == "image" and pictures[name] is None)
    return Estimate(decodes, tokens, seconds, tuple(unsized))


def _seconds(cell: Cell | EngineCell, spec: Spec) -> float | None:
    """Seconds of a pass, which reads every weight once."""
    if spec.adapter == "tabular":
        return PASS_S
    match = _PARAMETERS.search(spec.size)
    parameters = float(match[1]) * {"M": 1e6, "B": 1e9}[match[2]] if match else _stored(spec)
    if parameters is None:
        return None
    return PASS_S + parameters * _BYTES[cell.dtype] / BANDWIDTH


def _stored(spec: Spec) -> float | None:
    """Return how many numbers the headers of local safetensors files declare, or None without such a file."""
    if "source" not in spec.params:
        return None
    source = sources.parse(spec.name, spec.params["source"])
    if source.kind == "random" or not sources.ready(source):
        return None
    try:
        files = [_numbers(path) for path in sources.locate(spec.name, source).glob("*.safetensors")]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None  # loading reports the fault
    return float(sum(files)) or None


def _numbers(path: Path) -> int:
    """Numbers of a safetensors file: its first eight bytes are the length of its header, which has every shape."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > LONGEST_HEADER:
            raise ValueError(f"{path} has a header of {length} bytes")
        header = json.loads(file.read(length))
    return sum(prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
