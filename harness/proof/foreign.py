"""Whether a method draws from a source of randomness that the harness does not control, such as torch's generator."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.method import Method
from stridebench.harness.core.run import open_run
from stridebench.harness.errors import StrideError
from stridebench.harness.proof.cases import Case
from stridebench.harness.proof.distance import toy_drafter

TRIES = 5
"""Seeds that are each decoded twice on every case, since a cold case has nearly one output."""
GENERATORS: dict[str, Callable[[], object]] = {
    "torch's global generator": lambda: torch.get_rng_state().numpy().tobytes(),
    "numpy's global generator": lambda: repr(np.random.get_state()),
    "Python's module random": random.getstate,
}


class _GeneratorWatch(TorchFunctionMode):
    """Store the line of a method that first moves torch's global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.line = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = torch.default_generator.get_state()
        result = func(*args, **(kwargs or {}))
        if not self.line and not torch.equal(before, torch.default_generator.get_state()):
            self.line = _line(sys._getframe(1))
        return result


def _line(frame: Any) -> str:
    """Return the file and line of the innermost frame outside torch."""
    home = str(Path(torch.__file__).parent)
    while frame is not None and frame.f_code.co_filename.startswith(home):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def foreign_randomness(method: Method[Any], cases: Sequence[Case]) -> str:
    """Decode each case twice with the same draws, for several seeds, until two outputs differ.

    Returns:
        A sentence that says that two outputs differ, and which generator moved at which line if that was seen; "" if
        all pairs are alike.
    """
    watch = _GeneratorWatch()

    def output(case: Case, seed: int) -> tuple[int, ...]:
        backbone = case.backbone()
        draws = SeededDraws(seed, "proof", "foreign", 0)
        run = open_run(backbone, toy_drafter(backbone), case.prompt, case.sampling, case.length, draws)
        return decode(method, run, watched=False).tokens

    before = {name: state() for name, state in GENERATORS.items()}
    differs = False
    with suppress(StrideError), watch:
        differs = any(output(case, seed) != output(case, seed) for case in cases for seed in range(TRIES))
    if not differs:
        return ""
    moved = [name for name, state in GENERATORS.items() if state() != before[name]]
    source = (
        f"{' and '.join(moved)} moved{f', at {watch.line}' if watch.line else ''}"
        if moved
        else ("no global generator moved, so it may hold a generator or state of its own between decodes")
    )
    return f"two decodes with the same draws differ: {source}. Draw every random choice with `run.draws`."
