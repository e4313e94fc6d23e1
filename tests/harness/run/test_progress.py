"""What `stride run` shows of its progress, on a terminal and in a log."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from stridebench.harness.core.task import Prompt
from stridebench.harness.plan.estimate import Workload
from stridebench.harness.run.progress import LINE_S, RunProgress
from tests.support.runs import plan_of


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def progress_of(terminal: bool, quiet: bool = False) -> tuple[RunProgress, io.StringIO, Clock]:
    out, clock = io.StringIO(), Clock()
    console = Console(file=out, force_terminal=terminal, width=120, legacy_windows=False)
    return RunProgress(console, quiet, clock), out, clock


def decode(progress: RunProgress, clock: Clock, prompts: int = 20, seconds: float = 2.0) -> None:
    """Decode prompts of a baseline in 10 ms a token and of a method in 5; a decode takes so many seconds."""
    cells = plan_of(methods=["jacobi"]).cells
    progress.expect(prompts * len(cells))
    for cell in cells:
        progress.expect_of(cell, prompts)
    for number in range(prompts):
        prompt = Prompt(str(number), "")
        for cell in cells:
            clock.now += seconds
            progress.timed(cell, prompt, 0, 10.0 if cell.role == "baseline" else 5.0)
            progress.done(cell, prompt)


def test_a_log_has_a_line_every_half_minute_and_one_at_the_end():
    progress, out, clock = progress_of(terminal=False)
    with progress:
        decode(progress, clock)
    lines = out.getvalue().splitlines()
    assert len(lines) == 1 + int(80 // LINE_S) and clock.now == 80
    assert lines[0] == "15/40 decodes, 0/2 cells, about 50 s left; last: autoregressive T=0"
    assert lines[-1].startswith("40/40 decodes, 2/2 cells; last: jacobi") and "2.00x so far" in lines[-1]


def test_a_line_of_a_log_is_not_broken():
    out = io.StringIO()
    RunProgress(Console(file=out, force_terminal=False, width=20), quiet=False).say("word " * 30)
    assert len(out.getvalue().splitlines()) == 1


def test_the_time_left_leaves_loading_out():
    progress, out, clock = progress_of(terminal=False)
    clock.now = 1000.0
    with progress:
        decode(progress, clock, prompts=1)
    assert "2/2 decodes" in out.getvalue() and "1/2 decodes, 1/2 cells, about" in out.getvalue()


def test_a_terminal_has_a_table_and_no_thread_that_draws():
    before = threading.active_count()
    progress, out, clock = progress_of(terminal=True)
    with progress:
        decode(progress, clock, prompts=3)
        assert threading.active_count() == before
        progress.say("warming up [1/2] \x1b[31m")
    text = out.getvalue()
    assert "speed-up so far" in text and "3/3" in text and "2.00x" in text
    assert r"warming up [1/2] \x1b[31m" in text


def test_quiet_says_nothing():
    progress, out, clock = progress_of(terminal=True, quiet=True)
    with progress:
        progress.say("loading")
        decode(progress, clock)
    assert out.getvalue() == ""


def test_the_line_below_the_bar_is_whole_on_a_narrow_terminal():
    progress, _, clock = progress_of(terminal=True)
    decode(progress, clock, prompts=2)
    out = io.StringIO()
    Console(file=out, width=80).print(progress._table())
    lines = out.getvalue().splitlines()
    assert "decodes" not in next(line for line in lines if "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in line)
    assert " ".join(" ".join(lines).split()).endswith(progress.line())


def test_the_time_left_counts_proofs_the_report_and_groups_that_have_not_begun() -> None:
    """Two cells of 20 decodes that are forecast at 1 s each, proofs of 10 s, a load of 5 s and a report of 15 s."""
    progress, _, clock = progress_of(terminal=False)
    plan = plan_of(methods=["jacobi"])
    first, second = plan.cells
    ids = [cell.id for cell in plan.cells]
    later = ("another", "fp32")
    work = Workload(dict.fromkeys(ids, 1.0), dict.fromkeys(ids, 20), dict.fromkeys(ids, 10.0), {later: 5.0}, 15.0)
    progress.expect_work(work)
    assert progress.left() == work.seconds == 80
    progress.expect(40)
    for cell in plan.cells:
        progress.expect_of(cell, 20)
        for number in range(20):
            clock.now += 2.0
            progress.done(cell, Prompt(str(number), ""))
    assert progress.left() == 2 * (20 + 5 + 15)  # twice as slow as was forecast
    progress.sealed(first)
    progress.sealed(second)
    assert progress.left() == pytest.approx(20 * 80 / 60)


def test_decodes_that_a_resumed_run_does_not_repeat_take_no_time() -> None:
    progress, _, clock = progress_of(terminal=False)
    (cell, _) = plan_of(methods=["jacobi"]).cells
    progress.expect_work(Workload({cell.id: 1.0}, {cell.id: 20}, {cell.id: 0.0}, {}, 0.0))
    progress.expect_of(cell, 10)
    assert progress.left() == 10
    for number in range(5):
        clock.now += 3.0
        progress.done(cell, Prompt(str(number), ""))
    assert progress.left() == 5 * 3
