"""How long stored runs take to read and report: seconds of a new process, and whether torch was loaded."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median

from tests.bench.startup import ENTRY
from tests.bench.timing import Bench, Row, Settings
from tests.support.fake_store import FakeStore, suite
from tests.support.page_runs import stored

TIMES = 5
"""Processes of a row; the median counts."""
TORCH = """
import atexit, sys
atexit.register(lambda: print("\\ntorch:", "torch" in sys.modules, file=sys.stderr))
"""
COPIES = {"RUN": 1, "LARGE": 14}
"""Copies of `fake_store.suite` in each run: 21 and 294 finished cells of six prompts."""
COMMANDS: dict[str, tuple[tuple[str, ...], float, bool]] = {
    "report, plots drawn": (("report", "RUN", "--plots"), 12.0, False),
    "report, plots there": (("report", "RUN"), 4.0, False),
    "report as JSON": (("report", "RUN", "--json"), 4.0, False),
    "show a cell": (("show", "RUN", "t0-pld"), 2.0, False),
    "compare": (("report", "RUN", "--against", "RUN"), 6.0, False),
    "no such run": (("report", "RUN/none"), 1.0, True),
    "no such method": (("run", "quick", "--method", "nothing"), 1.0, True),
    "no such cell": (("show", "RUN", "nothing"), 1.0, True),
    "large report as JSON": (("report", "LARGE", "--json"), 30.0, False),
    "large pages": (("report", "LARGE", "--html", "SITE"), 20.0, False),
}
"""Words, the seconds that the median may take, and whether the command ends with an error."""


def copied(copies: int) -> FakeStore:
    """Return a run of so many copies of the suite of the tests, each with a task of its own."""
    whole = suite(6)
    for number in range(1, copies):
        for name, cell in suite(6, seed=number).sealed_cells.items():
            renamed = {key: f"{cell.facts[key]}-{number}" for key in ("cell", "baseline", "floor") if cell.facts[key]}
            facts = {**cell.facts, **renamed, "task": f"{cell.facts['task']}-{number}"}
            whole.sealed_cells[renamed["cell"]] = replace(cell, name=renamed["cell"], facts=facts)
            whole.body["cells"][renamed["cell"]] = facts
            whole.records[renamed["cell"]] = whole.records[name]
    return whole


def reading(words: Sequence[str], goal: float, fails: bool, where: Callable[[], dict[str, Path]]) -> Bench:
    """Time a command in new processes; ``goal``: seconds that the median may take."""

    def act(name: str, settings: Settings) -> Iterator[Row]:
        places = where()
        for place, copies in COPIES.items():
            if place in words and not places[place].exists():
                stored(copied(copies), places[place])
        line = [words[0], *(_path(word, places) for word in words[1:])]
        taken, torch = [], False
        for _ in range(min(settings.pairs, TIMES)):
            shutil.rmtree(places["SITE"], ignore_errors=True)
            begin = time.perf_counter()
            command = [sys.executable, "-c", TORCH + ENTRY, *line]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            taken.append(time.perf_counter() - begin)
            torch |= "torch: True" in done.stderr
            if bool(done.returncode) != fails:
                raise RuntimeError(f"stride {' '.join(line)} ended with {done.returncode}: {done.stderr[-200:]}")
        own = median(taken)
        verdict = "fail" if own > goal or torch else "pass" if len(taken) == TIMES else "inconclusive"
        note = f"stride {' '.join(words)}; {'torch was loaded' if torch else 'no torch'}"
        asked = f"<= {goal:g} s, no torch"
        yield Row(name, own, unit="s", goal=asked, verdict=verdict, pairs=len(taken), note=note)

    return act


def _path(word: str, places: dict[str, Path]) -> str:
    place, slash, rest = word.partition("/")
    return f"{places[place]}{slash}{rest}" if place in places else word


_KEPT: list[tempfile.TemporaryDirectory[str]] = []
"""The folder of the runs, which is removed when the process ends."""


@cache
def made_places() -> dict[str, Path]:
    """Return where the runs and pages of all rows lie."""
    _KEPT.append(tempfile.TemporaryDirectory(prefix="stride-reading-"))
    return {name: Path(_KEPT[0].name) / name for name in (*COPIES, "SITE")}


BENCHMARKS: dict[str, Bench] = {f"reading {name}": reading(*given, made_places) for name, given in COMMANDS.items()}
