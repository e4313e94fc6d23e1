"""Interrupted runs: kill -9, ^C, a full disk. No finished record is lost, and a resume ends as an uninterrupted run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.record.store import Store

LAUNCHER = """
import json, os, resource, signal, sys
import harness.cli.run, harness.backbones.text.hf_causal, reports.pareto, reports.summary, reports.tables
from harness.cli.main import main
from harness.plan import presets
presets.load("random-llama-1m", "fp32", fetch=False)  # transformers imports most of itself with the first model
for line in sys.stdin:
    ask = json.loads(line)
    child = os.fork()
    if not child:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(ask[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        if ask["file_bytes"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (ask["file_bytes"],) * 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["stride", *ask["words"]]
        main()
        os._exit(70)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Starts each command as a fork of a process that has imported everything: ten starts cost one."""

pytestmark = pytest.mark.slow
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

    def start(self, *words: object, file_bytes: int = 0) -> None:
        if self.child:  # of a test that failed half-way
            self.send(signal.SIGKILL)
            self.end()
        ask = {"words": [str(word) for word in words], "file_bytes": file_bytes}
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

    def run(self, *words: object, file_bytes: int = 0) -> int:
        self.start(*words, file_bytes=file_bytes)
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


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    root = str(Path(__file__).resolve().parents[3])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    started = Launcher(process, tmp_path_factory.mktemp("launcher"))
    yield started
    if started.child:
        started.send(signal.SIGKILL)
    assert process.stdin
    process.stdin.close()
    assert process.wait(60) == 0


@pytest.fixture(scope="module")
def uninterrupted(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    path = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert launcher.run("run", *SUITE, "--out", path) == 0, launcher.err
    return path


@pytest.fixture(scope="module")
def small(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted small run."""
    path = tmp_path_factory.mktemp("small") / "run"
    assert launcher.run("run", *SMALL, "--out", path) == 0, launcher.err
    return path


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


def counts(path: Path) -> dict[str, dict[str, Any]]:
    """Everything in a store's cells except the times."""
    store = Store.open(path)
    assert store.cells() == list(store.manifest["cells"])
    records = {}
    for name in store.cells():
        cell = store.cell(name)
        samples = cell.samples.drop(columns=["prefill_ns", "open_ns"])
        samples["tokens"], samples["logprobs"] = samples["tokens"].map(list), samples["logprobs"].map(list)
        steps = cell.steps[[column for column in cell.steps if not column.endswith("_ns") and column != "switches"]]
        records[name] = {"meta": cell.meta, "samples": samples, "steps": steps}
    return records


def assert_same_counts(run: Path, reference: Path) -> None:
    assert_same(counts(run), counts(reference))


def assert_same(counts_a: dict[str, dict[str, Any]], counts_b: dict[str, dict[str, Any]]) -> None:
    assert counts_a.keys() == counts_b.keys()
    for name, one in counts_a.items():
        assert one["meta"] == counts_b[name]["meta"], name
        for table in ("samples", "steps"):
            pd.testing.assert_frame_equal(one[table], counts_b[name][table], obj=f"{table} of {name}")


@pytest.mark.parametrize(("table", "column"), [("steps", "accepted"), ("steps", "nfe"), ("samples", "tokens")])
def test_the_comparison_notices_one_wrong_count(uninterrupted, table, column):
    wrong = counts(uninterrupted)
    frame = next(reversed(wrong.values()))[table]
    frame.at[len(frame) - 1, column] = [7] if column == "tokens" else frame[column].iloc[-1] + 1
    with pytest.raises(AssertionError):
        assert_same(wrong, counts(uninterrupted))
    assert_same(counts(uninterrupted), counts(uninterrupted))


def test_ten_kills_and_a_resume_end_as_the_uninterrupted_run(uninterrupted, launcher, tmp_path):
    path = tmp_path / "run"
    moments = random.Random(20)
    killed = 0
    for turn in range(10):
        launcher.start("run", *SUITE, "--out", path, *(["--resume"] if turn else []))
        code = launcher.signal_after(path, moments.randint(1, 14), moments.uniform(0, 0.02), signal.SIGKILL)
        assert code in (-signal.SIGKILL, 0), launcher.err
        killed += code == -signal.SIGKILL
        assert (path / "manifest.json").exists()
    assert killed >= 8  # the run is long enough for all ten, but for a slow poll
    assert launcher.run("run", *SUITE, "--out", path, "--resume") == 0, launcher.err
    counted = json.loads(launcher.out)
    assert counted == {"run": str(path), "cells": 18, "done": 18, "failed": 0, "malformed": 0, "skipped": 0}
    assert_same_counts(path, uninterrupted)
    assert not list(path.rglob("*~partial")) and not list((path / "records").glob("*/*"))


def test_a_kill_before_the_manifest_is_written_is_no_obstacle(launcher, tmp_path):
    for pause in (0.0, 0.02, 0.05):
        launcher.start("run", *SMALL, "--out", tmp_path / "run", "--resume")
        assert launcher.signal_after(tmp_path / "run", 0, pause, signal.SIGKILL) == -signal.SIGKILL
    assert launcher.run("run", *SMALL, "--out", tmp_path / "run", "--resume") == 0, launcher.err


def test_an_interrupt_is_one_message_and_exit_3_and_the_run_resumes(small, launcher, tmp_path):
    path = tmp_path / "run"
    launcher.start("run", *SMALL, "--out", path)
    assert launcher.signal_after(path, 7, 0.0, signal.SIGINT) == 3
    assert "--resume" in launcher.err and launcher.err.count("stride: ") == 1
    assert "Traceback" not in launcher.err and not launcher.out
    before = finished(path)
    assert len(before) >= 7
    assert launcher.run("run", *SMALL, "--out", path, "--resume") == 0, launcher.err
    assert_same_counts(path, small)


def test_an_interrupt_at_the_shell_does_the_same(stride_env, tmp_path):
    """Once as for a user: in a process of its own, by the terminal's signal."""
    command = [sys.executable, "-m", "harness.cli.main", "run", *SMALL, "--out", str(tmp_path / "run")]
    child = subprocess.Popen(
        command,
        env=stride_env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while progress(tmp_path / "run") < 3 and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 3 and "Traceback" not in err and "--resume" in err and not out


def test_two_processes_do_not_write_to_one_folder(launcher, stride_env, tmp_path):
    path = tmp_path / "run"
    launcher.start("run", *SUITE, "--out", path)
    while progress(path) < 1 and launcher.alive():
        time.sleep(0.003)
    launcher.send(signal.SIGSTOP)
    command = [sys.executable, "-m", "harness.cli.main", "run", *SUITE, "--out", str(path), "--resume"]
    second = subprocess.run(command, env=stride_env, capture_output=True, text=True, timeout=120)
    launcher.send(signal.SIGKILL)
    launcher.end()
    assert second.returncode == 2 and "another process" in second.stderr


def test_a_full_disk_is_one_message_and_exit_3_and_nothing_finished_is_lost(small, launcher, tmp_path):
    """A limit on file sizes replaces the full disk: first no record fits, then no sealed cell."""
    path = tmp_path / "run"
    launcher.start("run", *SMALL, "--out", path)
    assert launcher.signal_after(path, 5, 0.0, signal.SIGKILL) == -signal.SIGKILL
    largest = max(map(len, finished(path).values()))
    sealed = min(file.stat().st_size for file in (small / "cells").rglob("steps.parquet"))
    assert 2 * largest < sealed
    for limit in (largest // 8, (2 * largest + sealed) // 2):
        before = finished(path)
        assert launcher.run("run", *SMALL, "--out", path, "--resume", file_bytes=limit) == 3, launcher.err
        assert "--resume" in launcher.err and str(path) in launcher.err and "Traceback" not in launcher.err
        assert launcher.err.count("stride: ") == 1 and not launcher.out
        assert before.items() <= finished(path).items()
    assert len(finished(path)) > len(before), "the second limit was meant to let records through"
    assert launcher.run("run", *SMALL, "--out", path, "--resume") == 0, launcher.err
    assert_same_counts(path, small)


def test_a_full_disk_during_the_report_is_one_message(small, launcher, tmp_path):
    cells = max(file.stat().st_size for file in (small / "cells").rglob("*") if file.is_file())
    plots = max(file.stat().st_size for file in (small / "report").rglob("*"))
    assert cells < plots
    code = launcher.run("run", *SMALL, "--out", tmp_path / "full", file_bytes=(cells + plots) // 2)
    assert code in (2, 3) and launcher.err.count("stride: ") == 1 and "Traceback" not in launcher.err
    assert_same_counts(tmp_path / "full", small)


def test_a_truncated_record_is_set_aside_and_decoded_again(small, launcher, tmp_path):
    path = tmp_path / "run"
    launcher.start("run", *SMALL, "--out", path)
    assert launcher.signal_after(path, 9, 0.0, signal.SIGKILL) == -signal.SIGKILL
    victim = next(file for file in sorted((path / "records").glob("*/*.json")) if "warmup" not in file.name)
    victim.write_bytes(victim.read_bytes()[:-30])
    assert launcher.run("run", *SMALL, "--out", path, "--resume") == 0, launcher.err
    assert victim.name in launcher.err
    assert_same_counts(path, small)
