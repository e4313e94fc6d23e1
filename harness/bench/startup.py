"""How long the command line takes where nothing is decoded."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

from harness.bench.paired import PAIRS, Result, Settings
from harness.errors import UsageError

ENTRY = "from harness.cli.main import main; main()"


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


def _seconds(code: str, *words: str) -> float:
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"stride {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    return time.perf_counter() - begin
