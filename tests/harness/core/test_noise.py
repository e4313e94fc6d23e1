"""The noise meter on files made by hand, and on this process."""

from __future__ import annotations

import os
from pathlib import Path

from harness.core.noise import NoiseMeter


def threads(folder: Path, *waits: int) -> Path:
    for number, wait in enumerate(waits):
        (folder / str(number)).mkdir(parents=True, exist_ok=True)
        (folder / str(number) / "schedstat").write_text(f"12345 {wait} 7\n")
    return folder


def test_waits_are_added_up_over_threads_since_the_last_reading(tmp_path: Path) -> None:
    meter = NoiseMeter(threads(tmp_path, 100, 1000))
    threads(tmp_path, 150, 1000)
    assert meter.read().wait_ns == 50
    assert meter.read().wait_ns == 0
    threads(tmp_path, 151, 1020)
    assert meter.read().wait_ns == 21


def test_a_thread_that_ended_counts_no_more(tmp_path: Path) -> None:
    meter = NoiseMeter(threads(tmp_path, 100, 1000))
    (tmp_path / "1" / "schedstat").write_text("")
    threads(tmp_path, 130)
    assert meter.read().wait_ns == 0  # the sum fell by what the ended thread had waited
    threads(tmp_path, 140)
    assert meter.read().wait_ns == 10


def test_without_such_files_waits_are_zero(tmp_path: Path) -> None:
    reading = NoiseMeter(tmp_path / "absent").read()
    assert reading.wait_ns == 0 and reading.switches >= 0


def test_closing_leaves_no_file_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    meter = NoiseMeter(threads(tmp_path, 1, 2, 3))
    assert len(os.listdir("/proc/self/fd")) == before + 3
    meter.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert meter.read().wait_ns == 0
