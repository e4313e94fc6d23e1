"""How much a plan will decode at most, and about how long that takes on a CPU, before anything is loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
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
LONGEST_HEADER = 100_000_000
"""Bytes of a safetensors header at most, as its format says."""
_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}
_PARAMETERS = re.compile(r"([\d.]+) ([MB])\b")


@dataclass(frozen=True)
class Estimate:
    """Upper bounds: every decode as long as its budget or picture, and one token a pass.

    Args:
        decodes: timed ones, of all these cells.
        tokens: that they emit at most.
        seconds: of these tokens on a CPU without proofs and scores, or None if the size of a backbone is not known.
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
        a_token = _seconds(cell, specs[cell.backbone])
        decodes, tokens = decodes + count, tokens + count * length
        seconds = None if seconds is None or a_token is None else seconds + count * length * a_token
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
