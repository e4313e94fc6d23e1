"""What a run says at its end."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from stridebench.harness.cli.run_plan import next_steps, shortest_name

ROW = {"status": "done", "role": "method", "cell": "sjd.tabular.T1-1", "method": "sjd", "temperature": 1.0}


def test_the_next_commands_name_a_cell_and_a_method_of_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    lines = next_steps(pd.DataFrame([ROW]), str(tmp_path / "runs" / "a b"))
    commands = [line.split("    ")[0].strip() for line in lines]
    assert commands == [
        "next:",
        "stride show 'runs/a b' sjd",
        "stride report 'runs/a b'",
        "stride audit 'runs/a b'",
        "stride verify sjd",
    ]


def test_a_greedy_run_of_baselines_has_nothing_to_audit_or_verify() -> None:
    frame = pd.DataFrame([{**ROW, "role": "baseline", "temperature": 0.0}])
    assert [line.split()[1] for line in next_steps(frame, "/elsewhere/run")[1:]] == ["show", "report"]


def test_a_cell_is_named_by_as_few_words_as_no_other_cell_has() -> None:
    cells = ["sjd.image.T1-a", "sjd.image.T0-b", "sjdpp.image.T1-c"]
    assert [shortest_name(cell, cells) for cell in cells] == ["sjd.image.T1-a", "sjd.image.T0-b", "sjdpp"]
