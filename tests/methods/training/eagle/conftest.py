"""Passages that the tests of this folder make once."""

from __future__ import annotations

from pathlib import Path

import pytest

from stridebench.harness.train.teacher import Teacher


@pytest.fixture(scope="session")
def passages_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("passages")


@pytest.fixture()
def passages_of_the_session(passages_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Teachers keep their passages in a folder of this session."""
    monkeypatch.setattr(Teacher, "home", property(lambda self: passages_folder))
