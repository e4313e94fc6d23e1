"""Tests that take over 2 s of CPU time and lack the mark ``slow``: `python -m tests.durations [--runs 3] [PATH...]`.

Each run is one process, so that the CPU time of a test is that of the process between its start and its end; a test is
listed when it is over the limit in every run.

`--record` runs every test and writes those over 0.2 s to ``tests/durations.json``; they carry the mark ``slow`` from
then on (see ``tests/conftest.py``), so that `-m "not slow"` is a quick look.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

LIMIT_S = 2.0
RECORDED_S = 0.2
ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests" / "durations.json"


class CpuTimes:
    """A pytest plugin: CPU seconds of each test, its children and fixtures included."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> object:
        """Time one test."""
        begin = os.times()
        result = yield
        end = os.times()
        self.seconds[item.nodeid] = sum(end[:4]) - sum(begin[:4])
        return result


def recorded() -> dict[str, float]:
    """CPU seconds of the tests over ``RECORDED_S`` when they were last recorded."""
    seconds: dict[str, float] = json.loads(RECORD.read_text(encoding="utf-8"))["seconds"]
    return seconds


def record(seconds: dict[str, float], command: str) -> None:
    """Write ``durations.json``."""
    long = {test: round(s, 1) for test, s in sorted(seconds.items()) if s > RECORDED_S}
    machine = f"{os.cpu_count()} cores, {platform.machine()}"
    body = {"command": command, "machine": machine, "limit_s": RECORDED_S, "seconds": long}
    RECORD.write_text(json.dumps(body, indent=0) + "\n", encoding="utf-8")


def measure(paths: list[str], target: str, marks: str = "not slow") -> None:
    """One run in this process; CPU seconds by test as JSON."""
    plugin = CpuTimes()
    pytest.main(["-q", "-m", marks, "-p", "no:cacheprovider", *paths], plugins=[plugin])
    Path(target).write_text(json.dumps(plugin.seconds), encoding="utf-8")


def over_limit(runs: list[dict[str, float]]) -> list[tuple[str, float]]:
    """Tests over the limit in every run, with their least time, longest first."""
    tests = set.intersection(*(set(run) for run in runs))
    least = {test: min(run[test] for run in runs) for test in tests}
    return sorted(((test, s) for test, s in least.items() if s > LIMIT_S), key=lambda pair: -pair[1])


def main() -> int:
    """List them; 1 where there is one."""
    parser = argparse.ArgumentParser(prog="python -m tests.durations", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--record", action="store_true", help="write tests/durations.json from one run of every test")
    parser.add_argument("paths", nargs="*", default=["tests"])
    arguments = parser.parse_args()
    if arguments.record:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            measure(arguments.paths, file.name, marks="")
            record(json.loads(Path(file.name).read_text(encoding="utf-8")), "python -m tests.durations --record")
        return 0
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.runs):
            target = str(Path(folder) / f"{number}.json")
            code = f"from tests.durations import measure; measure({arguments.paths!r}, {target!r})"
            subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
            runs.append(json.loads(Path(target).read_text(encoding="utf-8")))
    listed = over_limit(runs)
    for test, seconds in listed:
        print(f"{seconds:6.1f} s  {test}")
    print(f"{len(listed)} tests without the mark slow take over {LIMIT_S:g} s of CPU time in all of {len(runs)} runs")
    return 1 if listed else 0


if __name__ == "__main__":
    sys.exit(main())
