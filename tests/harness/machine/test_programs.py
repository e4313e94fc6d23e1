"""What a message tells a user to type."""

from __future__ import annotations

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


def test_in_an_activated_environment_the_name_is_enough(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(programs))
    assert typed("stride") == "stride"


@pytest.mark.usefixtures("programs")
def test_in_one_that_is_not_activated_the_path_is_named() -> None:
    assert typed("stride") == ".venv/bin/stride"


def test_from_another_folder_the_path_is_absolute(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert typed("stride") == str(programs / "stride")


def test_a_program_of_another_environment_is_not_taken_for_ours(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "stride").write_text("#!/bin/sh\n")
    (other / "stride").chmod(0o755)
    monkeypatch.setenv("PATH", str(other))
    assert typed("stride") == ".venv/bin/stride"


@pytest.mark.usefixtures("programs")
def test_a_program_that_the_environment_lacks_keeps_its_name() -> None:
    assert typed("pytest") == "pytest"
