"""When a first token comes and what a run takes, on a model of random weights."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from stridebench.harness.bench import startup
from stridebench.harness.bench.paired import Settings
from stridebench.harness.errors import UsageError

SETTINGS = Settings(backbone="embedded-code", pairs=1, tokens=8)


@pytest.mark.slow
def test_a_first_token_comes_between_the_imports_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "DECODE", ("run", "--task", "{name: continuation, limit: 1}", "-t", "0"))
    result = startup.first_token(600.0)("startup first token", SETTINGS)
    assert 0 < result.ours < 600 and result.verdict == "inconclusive"  # one round is none
    with pytest.raises(UsageError, match="ended with 2"):
        startup.first_token(1.0)("startup first token", replace(SETTINGS, backbone="none"))


def test_memory_is_beside_imports_weights_and_their_copy_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {"import torch, transformers": 400.0, startup.ENTRY: 1500.0}
    monkeypatch.setattr(startup, "peak_mb", lambda code, *words: peaks[code])
    monkeypatch.setattr(startup.presets, "load", lambda name, dtype: SimpleNamespace(weights_bytes=500e6))
    result: Any = startup.peak_memory("startup peak memory", SETTINGS)
    assert result.peer == 400 + 250 + 500 + 300 and result.verdict == "fail"
    peaks[startup.ENTRY] = 1400.0
    assert startup.peak_memory("startup peak memory", SETTINGS).verdict == "pass"


def test_a_peak_is_of_the_process_alone() -> None:
    assert startup.peak_mb("x = bytearray(60_000_000)") > startup.peak_mb("pass") + 50
    with pytest.raises(UsageError, match="exit code 3"):
        startup.peak_mb("raise SystemExit(3)")
