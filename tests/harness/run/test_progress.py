"""What `stride run` shows of its progress, on a terminal and in a log."""

from __future__ import annotations

import io
import threading

from rich.console import Console

from stridebench.harness.core.task import Prompt
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
