"""llama-bench beside our int4: a program in its place tells rates, dies, or tells none."""

from __future__ import annotations

from pathlib import Path

import pytest

from stridebench.harness.bench import llama
from stridebench.harness.bench.paired import Settings
from stridebench.harness.errors import UsageError


def program(folder: Path, body: str) -> str:
    path = folder / "llama-bench"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


RATE = 'echo "$@" >> "$0.calls"; echo \'[{"avg_ts": 123.5}]\''


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize(("what", "asked"), [("autoregressive", "-p 0 -n 4"), ("window", "-p 8 -n 0")])
def test_both_sides_are_timed_in_turn_on_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, asked: str
) -> None:
    path = program(tmp_path, f'case "$*" in *"--repack 0") ;; *) kill -SEGV $$ ;; esac; {RATE}')
    monkeypatch.setenv(llama.VARIABLE, path)
    result = llama.beside(what)(what, Settings(pairs=2, tokens=4, threads=1))
    assert result.peer == 123.5 and result.ours > 0 and result.pairs == 2
    assert "--repack 0" in result.note and "AMX" in result.note
    calls = Path(f"{path}.calls").read_text().splitlines()
    assert len(calls) == 3 and all(asked in call and call.endswith("--repack 0") for call in calls)


@pytest.mark.parametrize(("end", "options"), [("ILL", ["--repack", "0"]), ("SEGV", ["--repack", "0"]), ("TERM", [])])
def test_only_a_crash_turns_repacking_off(tmp_path: Path, end: str, options: list[str]) -> None:
    assert llama.without_amx([program(tmp_path, f"kill -{end} $$")]) == options


@pytest.mark.parametrize("body", ["echo no json", "echo '[]'", "echo '[{}]'", "echo lost >&2; exit 3"])
def test_a_program_without_a_rate_is_named(tmp_path: Path, body: str) -> None:
    with pytest.raises(UsageError, match="and no rate"):
        llama.rate_of([program(tmp_path, body)])


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(llama.VARIABLE, str(tmp_path / "none"))
    with pytest.raises(UsageError, match="STRIDE_LLAMA_BENCH"):
        llama.beside("window")("window", Settings())


def test_the_side_that_goes_first_alternates() -> None:
    calls: list[str] = []

    def side(name: str, rate: float) -> llama.Measured:
        return lambda: calls.append(name) or rate  # type: ignore[func-returns-value]

    rows = llama.rates_in_turn(side("own", 2.0), side("peer", 1.0), 3)
    assert calls == ["own", "peer", "own", "peer", "peer", "own", "own", "peer"]
    assert rows["rate0"].tolist() == [2.0] * 3 and rows["rate1"].tolist() == [1.0] * 3
