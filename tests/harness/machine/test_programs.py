"""What a message tells a user to type."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stridebench.harness.machine.extras import typed


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "stride").write_text("#!/bin/sh\n")
    (folder / "stride").chmod(0o755)
    monkeypatch.setattr("sys.executable", str(folder / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_program_is_typed_by_its_name_if_it_is_found_and_by_its_path_if_not(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert typed("stride") == ".venv/bin/stride", "the environment is not activated"
    assert typed("pytest") == "pytest", "the environment lacks it"
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(programs / "stride", other)
    monkeypatch.setenv("PATH", str(other))
    assert typed("stride") == ".venv/bin/stride", "another environment has one too"
    monkeypatch.chdir(other)
    assert typed("stride") == str(programs / "stride"), "from another folder"
    monkeypatch.setenv("PATH", str(programs))
    assert typed("stride") == "stride", "the environment is activated"
