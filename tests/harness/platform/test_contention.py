"""What is said of a busy machine and of threads, from given loads and times."""

from __future__ import annotations

import pytest
import torch

from harness.platform import contention


def test_a_busy_machine_is_said() -> None:
    assert contention.busy(0.9, 2) is None
    assert contention.busy(3.24, 2) == (
        "this machine is busy: a load of 3.2 on 2 cores before the run, which disturbs its times"
    )


@pytest.mark.parametrize(
    ("size", "number"), [("1.05 M, 2.1 MB", 1.05e6), ("8 B; 17 GB", 8e9), ("0.33 M", 0.33e6), ("", None), ("big", None)]
)
def test_the_size_of_a_preset_is_read(size: str, number: float | None) -> None:
    assert contention.parameters_of(size) == number


def test_threads_that_slow_a_small_model_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "product_ns", lambda threads: 1000.0 * threads)
    line = contention.too_many_threads("tiny", "1.05 M", 4)
    assert line is not None and "4.0 times as long here with 4 threads" in line and "--set threads=1" in line
    assert contention.too_many_threads("tiny", "1.05 M", 1) is None
    assert contention.too_many_threads("large", "135 M", 4) is None
    assert contention.too_many_threads("mine", "", 4) is None
    monkeypatch.setattr(contention, "product_ns", lambda threads: 1000.0)
    assert contention.too_many_threads("tiny", "1.05 M", 4) is None


def test_measuring_leaves_the_threads_as_they_were() -> None:
    before = torch.get_num_threads()
    assert contention.product_ns(before + 1, repeats=5) > 0
    assert torch.get_num_threads() == before
