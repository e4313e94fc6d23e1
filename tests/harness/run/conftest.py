"""A process that starts commands, and an uninterrupted run of it, for the tests that kill and damage runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launcher import SMALL, Launcher, launched


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    with launched(tmp_path_factory.mktemp("launcher")) as started:
        yield started


@pytest.fixture(scope="module")
def small(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted small run."""
    path = tmp_path_factory.mktemp("small") / "run"
    assert launcher.run("run", *SMALL, "--out", path) == 0, launcher.err
    return path
