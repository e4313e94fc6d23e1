"""Our 4-bit decode beside llama.cpp's `llama-bench` on a 4-bit file of the same model, in turn.

Both sides have the same threads and the same number of tokens before what is timed. The rate of one row is that of
whole steps, host included, on both sides; the rate of a window is its rows over the time of a pass.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.bench.paired import Result, Settings, build, compare, decoded, order, prompt_ids
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.clock import CpuClock
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import plain
from stridebench.harness.errors import UsageError
from stridebench.harness.plan import presets
from stridebench.harness.run.passes import timed_pass

VARIABLE = "STRIDE_LLAMA_BENCH"
"""Names the program where it is on no path."""
WINDOW, DEPTH, REPEATS = 8, 64, 3
GOALS = {"autoregressive": 0.9, "window": 1.3}
Measured = Callable[[], float]


def beside(what: str) -> Callable[[str, Settings], Result]:
    """Tokens a second of int4 beside llama-bench's; ``what``: a key of ``GOALS``."""

    def act(name: str, settings: Settings) -> Result:
        base = plain(settings.backbone)
        program, file = _program(), _file(base)
        command = [program, "-m", str(file), "-t", str(settings.threads), "-d", str(DEPTH), "-r", "1", "-o", "json"]
        command += (
            ["-p", "0", "-n", str(settings.tokens)] if what == "autoregressive" else ["-p", str(WINDOW), "-n", "0"]
        )
        command += without_amx(command)
        backbone = presets.load(f"{base}:weights=int4", "bf16")
        own = _steps(backbone, settings) if what == "autoregressive" else _window(backbone)
        rows = rates_in_turn(own, lambda: rate_of(command), settings.pairs)
        result = compare(name, rows, "tokens/s", GOALS[what])
        note = f"llama-bench {' '.join(command[3:])} of {file.name}; {settings.pairs} pairs in turn"
        amx = "; its AMX kernels crash here, so --repack 0 leaves them out" if "--repack" in command else ""
        return replace(result, note=note + amx)

    return act


def _program() -> str:
    """The path of llama-bench.

    Raises:
        UsageError: there is none.
    """
    program = os.environ.get(VARIABLE) or shutil.which("llama-bench")
    if program is None or shutil.which(program) is None:
        raise UsageError(f"llama-bench is not there: build llama.cpp, and name the program in {VARIABLE}")
    return program


def _file(backbone: str) -> Path:
    """The GGUF file that a backbone's weights were read from.

    Raises:
        UsageError: they came from none.
    """
    file = sources.gguf(backbone, sources.parse(backbone, presets.resolve(backbone).params.get("source")))
    if file is None:
        raise UsageError(f"{backbone} comes from no GGUF file, which llama-bench reads; take smollm2-135m")
    return file


def without_amx(command: list[str]) -> list[str]:
    """Options with which llama-bench lives here: some builds have AMX kernels that some processors refuse."""
    tried = subprocess.run(command, capture_output=True, check=False).returncode
    return ["--repack", "0"] if tried in (-signal.SIGILL, -signal.SIGSEGV) else []


def rate_of(command: list[str]) -> float:
    """Tokens a second of one run of llama-bench.

    Raises:
        UsageError: it failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        entries: list[dict[str, Any]] = json.loads(done.stdout)
        return float(entries[0]["avg_ts"])
    except (ValueError, LookupError, TypeError) as error:
        last = done.stderr.strip()[-200:]
        raise UsageError(f"{' '.join(command)} ended with {done.returncode} and no rate: {last}") from error


def _steps(backbone: Backbone, settings: Settings) -> Measured:
    method, ids = build("autoregressive", {}), prompt_ids(backbone, 1)[0]
    ids = (ids * DEPTH)[:DEPTH]

    def rate() -> float:
        steps = decoded(method, backbone, ids, settings.tokens, True).steps
        return 1e9 * len(steps) / sum(step.wall_ns for step in steps)

    return rate


def _window(backbone: Backbone) -> Measured:
    ids = (prompt_ids(backbone, 1)[0] * DEPTH)[: DEPTH + 1]
    one = timed_pass(backbone, Prompt("llama-bench", tokens=tuple(ids)), CpuClock())
    return lambda: 1e3 * WINDOW / min(one(WINDOW) for _ in range(REPEATS))


def rates_in_turn(own: Measured, peer: Measured, pairs: int) -> pd.DataFrame:
    """The rates of both sides by pair, after a warm-up of each; which one goes first alternates."""
    with torch.inference_mode():
        sides = (own, peer)
        for side in sides:
            side()
        rows = [{f"rate{which}": sides[which]() for which in order(index)} for index in range(pairs)]
    return pd.DataFrame(rows).assign(tokens0=0, repeats0=0.0)
