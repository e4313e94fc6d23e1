"""Real `stride` commands that a test kills, stops or lets run out of something, and what a run folder holds then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from stridebench.harness.record.store import Store

LAUNCHER = """
import json, os, resource, signal, sys
import stridebench.harness.cli.run, stridebench.harness.backbones.text.hf_causal
from stridebench.reports import pareto, summary, tables
from stridebench.harness.cli.main import main
from stridebench.harness.plan import presets
presets.load("random-llama-1m", "fp32", fetch=False)  # transformers imports most of itself with the first model
for line in sys.stdin:
    ask = json.loads(line)
    child = os.fork()
    if not child:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(ask[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        for name, limit in ask["limits"].items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
        exec(ask["fault"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["stride", *ask["words"]]
        main()
        os._exit(70)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Starts each command as a fork of a process that has imported everything: ten starts cost one."""


METHODS = ("sjd", "{name: sjdpp, reuse: M}", "speculative")
SUITE = [
    *(word for method in METHODS for word in ("--method", method)),
    *("--backbone", "tabular", "--backbone", "random-llama-1m", "--task", "{name: tabular, limit: 3}"),
    *("-t", "0", "-t", "1", "--max-new-tokens", "8", "--set", "prove=false", "--json"),
]
SMALL = [
    *("--method", "sjd", "--backbone", "random-llama-1m", "--task", "{name: tabular, limit: 4}"),
    *("-t", "1", "--max-new-tokens", "8", "--set", "prove=false", "--json"),
]


@dataclass
class Launcher:
    """A process that starts commands; one runs at a time."""

    process: subprocess.Popen[str]
    folder: Path
    child: int = 0

    def start(self, *words: object, fault: str = "", **limits: int) -> None:
        """Start a command under limits of its resources (FSIZE=...), after the Python code of a ``fault``."""
        if self.child:  # of a test that failed half-way
            self.send(signal.SIGKILL)
            self.end()
        ask: dict[str, Any] = {"words": [str(word) for word in words], "limits": limits, "fault": fault}
        ask |= {name: str(self.folder / name) for name in ("out", "err")}
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(ask) + "\n")
        self.process.stdin.flush()
        self.child = int(self.process.stdout.readline())

    def send(self, number: int) -> None:
        assert self.child > 1  # zero would be this process and all of its group
        os.kill(self.child, number)

    def end(self) -> int:
        """The exit code, or minus the signal."""
        assert self.process.stdout
        code = int(self.process.stdout.readline())
        self.child = 0
        return code

    def run(self, *words: object, fault: str = "", **limits: int) -> int:
        self.start(*words, fault=fault, **limits)
        return self.end()

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()

    def alive(self) -> bool:
        """Whether the command still runs; it stays a zombie until the launcher has waited for it."""
        try:
            return Path(f"/proc/{self.child}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def signal_after(self, path: Path, events: int, pause: float, number: int) -> int:
        """Send a signal once so many more records or cells are there, and a moment later; the exit code."""
        goal = progress(path) + events
        deadline = time.monotonic() + 120
        while progress(path) < goal and self.alive() and time.monotonic() < deadline:
            time.sleep(0.003)
        time.sleep(pause)
        if self.alive():
            self.send(number)
        return self.end()


@contextmanager
def launched(folder: Path) -> Iterator[Launcher]:
    """A launcher, whose commands write below a folder."""
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    started = Launcher(process, folder)
    yield started
    if started.child:
        started.send(signal.SIGKILL)
    assert process.stdin
    process.stdin.close()
    assert process.wait(60) == 0


def progress(path: Path) -> int:
    """Grows with each record, and with each cell that is sealed in place of its records."""
    cells = {name for name in _names(path / "cells") if "~" not in name}
    open_cells = [path / "records" / name for name in _names(path / "records") if name not in cells]
    return 6 * len(cells) + sum(name.endswith(".json") for folder in open_cells for name in _names(folder))


def _names(folder: Path) -> list[str]:
    """Names in a folder, which may be removed meanwhile."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def finished(path: Path) -> dict[tuple[str, str], bytes]:
    """Bytes of every stored decode that is not sealed yet."""
    return {(file.parent.name, file.name): file.read_bytes() for file in (path / "records").glob("*/*.json")}


MEASURED = ("threads", "window_costs")
"""Facts of a cell that its run chose or measured on the machine."""


def counts(path: Path) -> dict[str, dict[str, Any]]:
    """Everything in a store's cells except times, memory and energy, and what follows from them."""
    store = Store.open(path)
    assert store.cells() == list(store.manifest.cells)
    records = {}
    for name in store.cells():
        cell = store.cell(name)
        samples = cell.samples[
            [column for column in cell.samples if not column.endswith(("_ns", "_bytes", "_uj"))]
        ].copy()
        samples["tokens"], samples["logprobs"] = samples["tokens"].map(list), samples["logprobs"].map(list)
        steps = cell.steps[[column for column in cell.steps if not column.endswith("_ns") and column != "switches"]]
        meta = {key: value for key, value in cell.meta.stored().items() if key not in MEASURED}
        records[name] = {"meta": meta, "samples": samples, "steps": steps}
    return records


def assert_same_counts(run: Path, reference: Path) -> None:
    assert_same(counts(run), counts(reference))


def assert_same(counts_a: dict[str, dict[str, Any]], counts_b: dict[str, dict[str, Any]]) -> None:
    assert counts_a.keys() == counts_b.keys()
    for name, one in counts_a.items():
        assert one["meta"] == counts_b[name]["meta"], name
        for table in ("samples", "steps"):
            pd.testing.assert_frame_equal(one[table], counts_b[name][table], obj=f"{table} of {name}")
