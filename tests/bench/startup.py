"""How long the command line takes if nothing is decoded, when a first token comes, and the memory of a run."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from stridebench.harness.errors import UsageError
from stridebench.harness.plan import presets
from tests.bench.timing import PAIRS, Bench, Row, Settings, check_type, in_turn

ENTRY = "from stridebench.harness.cli.main import main; main()"
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
IMPORTS = "import torch, transformers"
MEASURED = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(usage.ru_maxrss, usage.ru_utime + usage.ru_stime, os.waitstatus_to_exitcode(status))
"""
"""Runs a command from a small process: Linux counts the memory of a process that forks to the peak of its child."""
BESIDE_IMPORTS_MB = 300
"""Memory that a run may take besides imports, weights and caches."""


def startup(words: tuple[str, ...], goal: float) -> Bench:
    """Time a verb in a new process beside bare Python; ``goal``: seconds that the median may take."""

    def act(name: str, settings: Settings) -> Iterator[Row]:
        sides = (lambda _: seconds(ENTRY, *words), lambda _: seconds("pass"))
        ours, python = zip(*in_turn(sides, range(settings.pairs + 1), settings), strict=True)
        yield _limited(name, ours, median(python), goal, f"stride {' '.join(words)}; peer: python -c pass")

    return act


def _limited(name: str, ours: tuple[float, ...], peer: float, goal: float, note: str) -> Row:
    own = median(ours)
    verdict = ("pass" if own <= goal else "fail") if len(ours) >= PAIRS else "inconclusive"
    note += "; the goal is for our median, in seconds"
    return Row(name, own, peer, own / peer, None, None, "s", f"<= {goal:g} s", verdict, len(ours), note)


def first_token(goal: float) -> Bench:
    """Time a run without warm-up until its first token, beside its imports."""

    def act(name: str, settings: Settings) -> Iterator[Row]:
        check_type("bf16", "cpu")
        sides = (lambda _: first(settings), lambda _: seconds(IMPORTS))
        ours, imports = zip(*in_turn(sides, range(settings.pairs + 1), settings), strict=True)
        note = f"stride {' '.join(decode_words('autoregressive', settings, 'DIR'))}; peer: {IMPORTS}"
        yield _limited(name, ours, median(imports), goal, note)

    return act


def peak_memory(name: str, settings: Settings) -> Iterator[Row]:
    """Measure the MB of a run of two prompts beside the sum of imports, weights, the cache and 300 MB.

    The greedy check reads the weights once more, in fp32. The cache is counted among the 300 MB.
    """
    check_type("bf16", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        own = peak_mb(ENTRY, *decode_words("prompt_lookup", settings, f"{folder}/run"))
    imports = peak_mb(IMPORTS)
    copy = presets.load(settings.backbone, "bf16").weights_bytes / 1e6
    most = imports + copy / 2 + copy + BESIDE_IMPORTS_MB
    note = f"peer: {imports:.0f} MB of imports, {copy / 2:.0f} of weights, {copy:.0f} of the greedy check's in fp32, "
    verdict = "pass" if own <= most else "fail"
    note += f"{BESIDE_IMPORTS_MB} more"
    yield Row(name, own, most, own / most, unit="MB", goal="<= 1", verdict=verdict, note=note)


def decode_words(method: str, settings: Settings, out: str) -> tuple[str, ...]:
    """Return the words of a small run."""
    chosen = ("--method", method, "--backbone", settings.backbone, "--max-new-tokens", str(settings.tokens))
    return (*DECODE, *chosen, "--set", "warmup=0", "--out", out)


def first(settings: Settings) -> float:
    """Return the seconds from the start of a process to its first token.

    Raises:
        UsageError: it ended without one.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = decode_words("autoregressive", settings, f"{folder}/run")
        begin = time.time()
        command = [sys.executable, "-c", FIRST + ENTRY, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = [line.split()[-1] for line in done.stderr.splitlines() if line.startswith("first token at")]
    if not said:
        raise UsageError(f"stride {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    return float(said[0]) - begin


class Usage(NamedTuple):
    """What a process took."""

    peak_mb: float
    cpu_s: float


def used(command: list[str]) -> Usage:
    """Run a command and return its resident high-water mark and its CPU time.

    Raises:
        UsageError: it failed.
    """
    done = subprocess.run([sys.executable, "-c", MEASURED, *command], stdout=subprocess.PIPE, text=True, check=True)
    peak, cpu, exit_code = done.stdout.split()
    if exit_code != "0":
        raise UsageError(f"{' '.join(command)} ended with exit code {exit_code}")
    return Usage(float(peak) * (1 if sys.platform == "darwin" else 1024) / 1e6, float(cpu))


def peak_mb(code: str, *words: str) -> float:
    """Return the peak memory of some Python code in a new process."""
    return used([sys.executable, "-c", code, *words]).peak_mb


def seconds(code: str, *words: str) -> float:
    """Return the wall time of some Python code in a new process."""
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"stride {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    return time.perf_counter() - begin


BENCHMARKS: dict[str, Bench] = {
    "startup list": startup(("list",), 1.0),
    "startup dry run": startup(("run", "quick", "--dry-run"), 1.5),
    "startup first token": first_token(4.0),
    "startup peak memory": peak_memory,
}
