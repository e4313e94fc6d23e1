"""Threads and windows that a run measures, with times that are given."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stridebench.harness.backbones.masked_toy import MaskedTabular
from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.clock import CpuClock, Stamp
from stridebench.harness.core.costs import Passes
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import StoreError
from stridebench.harness.plan.cells import Plan
from stridebench.harness.record.store import Store
from stridebench.harness.run import passes
from stridebench.harness.run.executors import serial
from stridebench.harness.run.loading import Options, Progress
from tests.support.runs import Stop, by_label, finished, plan_of, start

DTYPE = "fp64"
SUITE: dict[str, Any] = {"methods": ["jacobi"], "tasks": [{"name": "tabular", "limit": 2}]}


class Said(Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def given(time: Callable[[int, int], float]) -> Callable[..., passes.TimedPass]:
    """In place of `timed_pass`: milliseconds by threads and rows."""
    return lambda *_: lambda rows: time(torch.get_num_threads(), rows)


@pytest.fixture
def two_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(passes.noise, "busy", lambda *_: None)
    monkeypatch.setattr(passes, "is_timed", lambda _: True)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def stopped_run(path: Path) -> tuple[Plan, Store]:
    """A run that stops after its first decode."""
    plan = plan_of(**SUITE)
    store = start(path, plan)
    with pytest.raises(StoreError, match="stop here"):
        serial(plan, store, Options(progress=Stop(1)))
    return plan, store


def measured_with(time: Callable[[int, int], float], monkeypatch: pytest.MonkeyPatch, path: Path) -> Passes:
    monkeypatch.setattr(passes, "timed_pass", given(time))
    finished(path, **SUITE)
    body = Store.open(path).notes.passes("tabular", DTYPE)
    assert body is not None
    return Passes.of(body)


@pytest.mark.parametrize(("limit", "counts"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))])
def test_threads_are_tried_in_powers_of_two(limit: int, counts: tuple[int, ...]) -> None:
    assert passes.candidates(limit) == counts


@pytest.mark.parametrize(
    ("by_threads", "chosen"),
    [(((1, 2.0), (2, 1.0)), 2), (((1, 1.04), (2, 1.0)), 1), (((1, 1.0), (2, 3.0), (4, 9.0)), 1)],
)
def test_the_fewest_threads_that_cost_nothing_are_taken(by_threads: Any, chosen: int) -> None:
    assert passes.fewest_threads(by_threads) == chosen


def test_disturbed_passes_of_few_rows_count_as_those_of_more() -> None:
    """Without it a line through 13 and 4 ms would make passes of ten rows cost less than nothing."""
    assert passes.rising([(1, 13.0), (2, 4.0), (4, 5.0)]) == ((1, 4.0), (2, 4.0), (4, 5.0))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("faster", "chosen"), [(1, 1), (2, 2)])
def test_a_run_takes_the_threads_that_were_measured(
    faster: int, chosen: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work: set[int] = set()
    threads_of = torch.set_num_threads

    def time(threads: int, rows: int) -> float:
        return 7.0 + rows if threads == faster else 40.0

    monkeypatch.setattr(passes.torch, "set_num_threads", lambda count: (at_work.add(count), threads_of(count))[1])
    result = measured_with(time, monkeypatch, tmp_path / "run")
    assert result.threads == chosen
    assert dict(result.rows)[16] == 23.0
    assert torch.get_num_threads() == 2, "the next backbone is measured anew"
    cells = by_label(Store.open(tmp_path / "run"))
    assert {cell.meta.threads for cell in cells.values()} == {chosen}
    assert cells["jacobi T=0"].meta.window_costs[0] == [1, 8.0]


@pytest.mark.usefixtures("two_threads")
def test_a_later_run_reads_what_was_measured_and_a_resumed_one_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(threads: int, rows: int) -> float:
        raise AssertionError("measured again")

    first = measured_with(lambda threads, rows: rows / threads, monkeypatch, tmp_path / "first")
    assert measured_with(never, monkeypatch, tmp_path / "second") == first

    plan, store = stopped_run(tmp_path / "stopped")
    for file in (tmp_path / "cache").rglob("*passes*.json"):
        file.unlink()
    serial(plan, store, Options())
    assert {cell.meta.threads for cell in by_label(store).values()} == {2}


@pytest.mark.usefixtures("two_threads")
def test_times_of_a_busy_machine_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes.noise, "busy", lambda *_: "busy")
    assert measured_with(lambda threads, rows: rows / threads, monkeypatch, tmp_path / "first").threads == 2
    monkeypatch.setattr(passes.noise, "busy", lambda *_: None)
    assert measured_with(lambda threads, rows: float(rows * threads), monkeypatch, tmp_path / "second").threads == 1


@pytest.mark.usefixtures("two_threads")
def test_what_a_window_costs_is_said_once_a_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "timed_pass", given(lambda threads, rows: (7.0 + rows) * threads))
    plan, progress = plan_of(**SUITE), Said()
    serial(plan, start(tmp_path / "run", plan), Options(progress=progress))
    assert [line for line in progress.lines if "window" in line] == [
        f"tabular in {DTYPE}: 1 thread, 8 ms a pass (2: 16 ms); "
        "on this machine a window of 16 costs 2.9 passes: SCR must exceed 2.9"
    ]


def test_toys_and_runs_without_clocks_measure_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "measure", None)
    for number, data in enumerate((SUITE, {**SUITE, "timing": False})):
        cells = finished(tmp_path / str(number), **data)
        assert not any(cell.meta.threads for cell in cells.values())
        assert not (tmp_path / str(number) / "passes").exists()


@pytest.mark.usefixtures("two_threads")
def test_a_run_of_a_version_that_chose_no_threads_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "timed_pass", given(lambda threads, rows: float(rows * threads)))
    plan, store = stopped_run(tmp_path / "run")
    (tmp_path / "run" / "passes" / f"tabular-{DTYPE}.json").unlink()
    serial(plan, store, Options())
    assert not any(cell.meta.threads for cell in by_label(store).values())


@pytest.mark.usefixtures("two_threads")
def test_crafted_times_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "timed_pass", given(lambda threads, rows: float(rows * threads)))
    plan = plan_of(**SUITE)
    store = start(tmp_path / "run", plan)
    store.notes.keep_passes("tabular", DTYPE, {"threads": 2, "by_threads": [], "rows": [], "drafters": {}})
    with pytest.raises(StoreError, match="no times of passes"):
        serial(plan, store, Options())


class Ticks(CpuClock):
    """A clock that goes a millisecond further at each stamp."""

    def __init__(self) -> None:
        self.now = 0

    def stamp(self) -> Stamp:
        self.now += 1_000_000
        return Stamp(self.now)


@pytest.mark.parametrize("masked", [False, True])
def test_a_pass_is_timed_by_the_clock_it_is_given_with_each_number_of_threads(two_threads: None, masked: bool) -> None:
    backbone = MaskedTabular("masked", {"vocabulary": 3}) if masked else Tabular("tabular", {"vocabulary": 3})
    with torch.inference_mode():
        one = passes.timed_pass(backbone, Prompt("", tokens=(1, 2)), Ticks())
        assert [one(1), one(8)] == [1.0, 1.0]
        assert passes.times_by_threads(one, (1, 2)) == ((1, 1.0), (2, 1.0))


def test_the_cached_file_is_json(tmp_path: Path) -> None:
    file = tmp_path / "a" / "passes.json"
    result = Passes(2, ((1, 2.0), (2, 1.0)), ((1, 1.0), (16, 1.5)), {"eagle1": ((1, 0.1), (4, 0.2))})
    passes.write_passes(file, result)
    assert passes.read_passes(file) == result
    file.write_text(json.dumps({"threads": 3}))
    assert passes.read_passes(file) is None


SLOWER = "fewer threads are faster for this model: leave threads out of the suite"


@pytest.mark.parametrize(
    ("threads", "by_threads", "rows", "line"),
    [
        (
            *(1, ((1, 3.0), (2, 2.9)), ((1, 4.0), (16, 8.0))),
            "1 thread, 3 ms a pass (2: 2.9 ms); on this machine a window of 16 costs 2.0 passes: SCR must exceed 2.0",
        ),
        (2, ((2, 2.9),), ((1, 4.0), (4, 8.0)), "2 threads, 2.9 ms a pass"),
        (8, ((1, 1.0), (8, 16.8)), (), f"8 threads, 16.8 ms a pass (1: 1 ms); {SLOWER}"),
    ],
)
def test_the_line_compares_threads_by_one_table_and_windows_by_another(
    threads: int, by_threads: Any, rows: Any, line: str
) -> None:
    assert passes.describe("model", Passes(threads, by_threads, rows, {}, False)) == f"model: {line}"


@pytest.mark.usefixtures("two_threads")
def test_threads_of_a_suite_are_compared_with_one_and_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "timed_pass", given(lambda threads, rows: 4.0 * threads))
    finished(tmp_path / "run", **SUITE, threads=2)
    body = Store.open(tmp_path / "run").notes.passes("tabular", DTYPE)
    assert body is not None
    measured = Passes.of(body)
    assert measured.threads == 2 and measured.by_threads == ((1, 4.0), (2, 8.0))
