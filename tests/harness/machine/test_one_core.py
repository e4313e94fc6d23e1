"""Threads that take turns stay on one core."""

from __future__ import annotations

import os
import threading

import pytest

from stridebench.harness.machine.one_core import be_number, on_one_core

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not tell its cores")


def test_this_thread_and_those_it_starts_have_one_core_and_then_all_again() -> None:
    before, inside = os.sched_getaffinity(0), []
    with on_one_core():
        thread = threading.Thread(target=lambda: inside.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
        assert os.sched_getaffinity(0) == inside[0] and len(inside[0]) == 1
    assert os.sched_getaffinity(0) == before


def test_processes_that_share_the_work_have_a_core_each() -> None:
    cores = sorted(os.sched_getaffinity(0))
    try:
        for number in range(len(cores) + 1):
            be_number(number)
            with on_one_core():
                assert os.sched_getaffinity(0) == {cores[number % len(cores)]}
    finally:
        be_number(None)


def test_an_error_inside_gives_the_cores_back() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(ValueError, match="inside"), on_one_core():
        raise ValueError("inside")
    assert os.sched_getaffinity(0) == before


def test_a_system_that_forbids_it_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: object) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    with on_one_core():
        pass
