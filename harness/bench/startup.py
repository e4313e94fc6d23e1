"""How long the command line takes where nothing is decoded, when a first token comes, and what memory a run takes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from stridebench.harness.bench.paired import PAIRS, Result, Settings
from stridebench.harness.errors import UsageError
from stridebench.harness.plan import presets

ENTRY = "from stridebench.harness.cli.main import main; main()"


def startup(words: tuple[str, ...], goal: float) -> Callable[[str, Settings], Result]:
    """Seconds of a verb in a process of its own, beside those of bare Python.

    Args:
        words: the verb and its options.
        goal: seconds that the median may take.
    """

    def act(name: str, settings: Settings) -> Result:
        rounds = [(_seconds(ENTRY, *words), _seconds("pass")) for _ in range(settings.pairs + 1)][1:]
        own, python = (median(side) for side in zip(*rounds, strict=True))
        passed = "pass" if own <= goal else "fail"
        verdict = passed if len(rounds) >= PAIRS else "inconclusive"
        note = f"stride {' '.join(words)}; peer: python -c pass; the goal is for our median, in seconds"
        return Result(name, own, python, own / python, None, None, "s", f"<= {goal:g} s", verdict, len(rounds), note)

    return act


FIRST = """
import os, signal, sys, time
import stridebench.harness.core.loop as loop
step = loop.advance
def first(*given):
    step(*given)
    print("first token at", time.time(), file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
loop.advance = first
"""
"""Makes a run say when its first step has emitted a token, and end there."""
DECODE = ("run", "--task", "{name: humaneval, limit: 2}", "-t", "0", "--dtype", "bf16")
MEASURED = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(usage.ru_maxrss, os.waitstatus_to_exitcode(status))
"""
"""Runs a command from a small process: Linux counts the memory of a process that forks to the peak of its child."""
BESIDE_IMPORTS_MB = 300
"""Memory that a run may take beside imports, weights and caches."""


def first_token(goal: float) -> Callable[[str, Settings], Result]:
    """Seconds from the command to the first token of a run without warm-up, beside those of its imports.

    Args:
        goal: seconds that the median may take.
    """

    def act(name: str, settings: Settings) -> Result:
        rounds = [_first(settings) for _ in range(settings.pairs + 1)][1:]
        own, imports = median(rounds), median(_seconds("import torch, transformers") for _ in range(3))
        verdict = ("pass" if own <= goal else "fail") if len(rounds) >= PAIRS else "inconclusive"
        note = f"stride {' '.join(_decode('autoregressive', settings, Path('DIR')))}; peer: import torch, transformers"
        return Result(name, own, imports, own / imports, None, None, "s", f"<= {goal:g} s", verdict, len(rounds), note)

    return act


def peak_memory(name: str, settings: Settings) -> Result:
    """MB that a run of two prompts takes at most, beside what it may: imports, weights, the cache and 300 MB.

    The greedy check reads the weights once more, in fp32. The cache is counted among the 300 MB.
    """
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        own = peak_mb(ENTRY, *_decode("prompt_lookup", settings, Path(folder) / "run"))
        seconds = time.perf_counter() - begin
    imports = peak_mb("import torch, transformers")
    copy = presets.load(settings.backbone, "bf16").weights_bytes / 1e6
    most = imports + copy / 2 + copy + BESIDE_IMPORTS_MB
    verdict = "pass" if own <= most else "fail"
    note = f"peer: {imports:.0f} MB of imports, {copy / 2:.0f} of weights, {copy:.0f} of the greedy check's in fp32, "
    note += f"{BESIDE_IMPORTS_MB} besides; the run took {seconds:.1f} s"
    return Result(name, own, most, own / most, None, None, "MB", "<= 1", verdict, 1, note)


def _decode(method: str, settings: Settings, folder: Path) -> tuple[str, ...]:
    own = ("--method", method, "--backbone", settings.backbone, "--max-new-tokens", str(settings.tokens))
    return (*DECODE, *own, "--set", "warmup=0", "--out", str(folder))


def _first(settings: Settings) -> float:
    """Seconds until the first token.

    Raises:
        UsageError: the run failed or made none.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = _decode("autoregressive", settings, Path(folder) / "run")
        begin = time.time()
        done = subprocess.run(
            [sys.executable, "-c", FIRST + ENTRY, *words], capture_output=True, text=True, check=False
        )
    said = [line.split()[-1] for line in done.stderr.splitlines() if line.startswith("first token at")]
    if not said:
        raise UsageError(f"stride {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    return float(said[0]) - begin


def peak_mb(code: str, *words: str) -> float:
    """The resident high-water mark of a process of its own.

    Raises:
        UsageError: it failed.
    """
    command = [sys.executable, "-c", MEASURED, sys.executable, "-c", code, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    peak, exit_code = map(int, done.stdout.split())
    if exit_code:
        raise UsageError(f"python -c ... {' '.join(words)} ended with exit code {exit_code}")
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6


def _seconds(code: str, *words: str) -> float:
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"stride {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    return time.perf_counter() - begin
