"""Interrupted runs: kill -9, ^C, a full disk. No finished record is lost, and a resume ends as an uninterrupted run."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.launcher import (
    SMALL,
    SUITE,
    Launcher,
    assert_same,
    assert_same_counts,
    counts,
    finished,
    progress,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def uninterrupted(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    path = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert launcher.run("run", *SUITE, "--out", path) == 0, launcher.err
    return path


@pytest.mark.parametrize(("table", "column"), [("steps", "accepted"), ("steps", "nfe"), ("samples", "tokens")])
def test_the_comparison_notices_one_wrong_count(small, table, column):
    wrong = counts(small)
    frame = next(reversed(wrong.values()))[table]
    frame.at[len(frame) - 1, column] = [7] if column == "tokens" else frame[column].iloc[-1] + 1
    with pytest.raises(AssertionError):
        assert_same(wrong, counts(small))
    assert_same(counts(small), counts(small))


def test_a_kill_and_a_resume_end_as_the_uninterrupted_run(small, launcher, tmp_path):
    path = tmp_path / "run"
    launcher.start("run", *SMALL, "--out", path)
    assert launcher.signal_after(path, 4, 0.0, signal.SIGKILL) == -signal.SIGKILL
    before = finished(path)
    assert launcher.run("run", *SMALL, "--out", path, "--resume") == 0, launcher.err
    assert len(before) >= 4
    assert_same_counts(path, small)


@pytest.mark.faults
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


@pytest.mark.faults
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


@pytest.mark.faults
def test_an_interrupt_at_the_shell_does_the_same(stride_env, tmp_path):
    """Once as for a user: in a process of its own, by the terminal's signal."""
    command = [sys.executable, "-m", "stridebench.harness.cli.main", "run", *SMALL, "--out", str(tmp_path / "run")]
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


@pytest.mark.faults
def test_two_processes_do_not_write_to_one_folder(launcher, stride_env, tmp_path):
    path = tmp_path / "run"
    launcher.start("run", *SUITE, "--out", path)
    while progress(path) < 1 and launcher.alive():
        time.sleep(0.003)
    launcher.send(signal.SIGSTOP)
    command = [sys.executable, "-m", "stridebench.harness.cli.main", "run", *SUITE, "--out", str(path), "--resume"]
    second = subprocess.run(command, env=stride_env, capture_output=True, text=True, timeout=120)
    launcher.send(signal.SIGKILL)
    launcher.end()
    assert second.returncode == 2 and "another process" in second.stderr


@pytest.mark.faults
def test_a_full_disk_is_one_message_and_exit_3_and_nothing_finished_is_lost(small, launcher, tmp_path):
    """A limit on file sizes replaces the full disk: first no record fits, then no sealed cell."""
    path = tmp_path / "run"
    launcher.start("run", *SMALL, "--out", path)
    assert launcher.signal_after(path, 5, 0.0, signal.SIGKILL) == -signal.SIGKILL
    largest = max(map(len, finished(path).values()))
    sealed = min(file.stat().st_size for file in (small / "cells").rglob("samples.parquet"))
    assert 2 * largest < sealed
    for limit in (largest // 8, (2 * largest + sealed) // 2):
        before = finished(path)
        assert launcher.run("run", *SMALL, "--out", path, "--resume", FSIZE=limit) == 3, launcher.err
        assert "--resume" in launcher.err and str(path) in launcher.err and "Traceback" not in launcher.err
        assert launcher.err.count("stride: ") == 1 and not launcher.out
        assert before.items() <= finished(path).items()
    assert len(finished(path)) > len(before), "the second limit was meant to let records through"
    assert launcher.run("run", *SMALL, "--out", path, "--resume") == 0, launcher.err
    assert_same_counts(path, small)


@pytest.mark.faults
def test_a_full_disk_during_the_report_is_one_message(small, launcher, tmp_path):
    cells = max(file.stat().st_size for file in (small / "cells").rglob("*") if file.is_file())
    plots = max(file.stat().st_size for file in (small / "report").rglob("*"))
    assert cells < plots
    code = launcher.run("run", *SMALL, "--out", tmp_path / "full", FSIZE=(cells + plots) // 2)
    assert code in (2, 3) and launcher.err.count("stride: ") == 1 and "Traceback" not in launcher.err
    assert_same_counts(tmp_path / "full", small)


@pytest.mark.faults
def test_a_truncated_record_is_set_aside_and_decoded_again(small, launcher, tmp_path):
    path = tmp_path / "run"
    launcher.start("run", *SMALL, "--out", path)
    assert launcher.signal_after(path, 9, 0.0, signal.SIGKILL) == -signal.SIGKILL
    victim = next(file for file in sorted((path / "records").glob("*/*.json")) if "warmup" not in file.name)
    victim.write_bytes(victim.read_bytes()[:-30])
    assert launcher.run("run", *SMALL, "--out", path, "--resume") == 0, launcher.err
    assert victim.name in launcher.err
    assert_same_counts(path, small)
