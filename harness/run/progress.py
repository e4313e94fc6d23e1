"""Show the progress of a run: a live table on a terminal, a line every half minute elsewhere.

Nothing is drawn while a decode is timed: no thread refreshes the table, and every line is written after a decode was
stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import printable, printable_line
from stridebench.harness.plan.cells import Cell
from stridebench.harness.plan.estimate import Workload
from stridebench.harness.run.loading import Progress

LINE_S = 30.0
"""Seconds between two lines of a log."""
REDRAW_S = 0.25
"""Seconds between two drawings of the table."""
LEAST_DONE = 0.05
"""The share of a run after which its pace is taken from its clock."""
SHOWN = 12
"""Cells in the table; unfinished cells come first."""


class RunProgress(Progress):
    """Shows cells done, the time left, and the speed-up of each cell so far.

    Args:
        console: a terminal gets the table, anything else lines.
    """

    def __init__(self, console: Console, quiet: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        drawn = console.is_terminal and not quiet
        self._live = Live(console=console, auto_refresh=False, transient=True) if drawn else None
        self._plain = not quiet and self._live is None
        self._quiet = quiet
        self._total = self._count = 0
        self._expected: dict[Cell, int] = {}
        self._finished: dict[Cell, int] = {}
        self._milliseconds: dict[Cell, dict[tuple[str, int], float]] = {}
        self._last: Cell | None = None
        self._begin = self._shown = self._started = clock()
        self._work: Workload | None = None
        self._whole = 0.0
        self._ahead: dict[str, int] = {}  # decodes of each cell that is not finished
        self._loading: set[tuple[str, str]] = set()
        self._said = ""

    def __enter__(self) -> RunProgress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        if self._plain and self._count and self._said != self.line():
            self._print(self.line())

    def say(self, text: str) -> None:
        """Print a stage."""
        if not self._quiet:
            self._print(text)

    def expect(self, decodes: int) -> None:
        """Expect so many more decodes."""
        if not self._total:
            self._begin = self._clock()  # loading does not count as decoding
        self._total += decodes

    def expect_of(self, cell: Cell, decodes: int) -> None:
        """Say how many of the expected decodes belong to a cell."""
        self._expected[cell] = self._expected.get(cell, 0) + decodes
        if self._work is not None and cell.id in self._ahead:
            stored = self._ahead[cell.id] - decodes  # a resumed run repeats none of them
            self._whole -= stored * self._work.decodes[cell.id]
            self._ahead[cell.id] = decodes
            self._loading.discard(cell.group)

    def timed(self, cell: Cell, prompt: Prompt, repetition: int, ms_per_token: float) -> None:
        """Keep the time of a decode, for the speed-up."""
        self._milliseconds.setdefault(cell, {})[(prompt.id, repetition)] = ms_per_token

    def done(self, cell: Cell, prompt: Prompt) -> None:
        """Count a decode; draw the table or write a line if the last one is old enough."""
        self._count += 1
        self._finished[cell] = self._finished.get(cell, 0) + 1
        if cell.id in self._ahead:
            self._ahead[cell.id] -= 1
        self._last = cell
        since = self._clock() - self._shown
        if self._live is not None and since >= REDRAW_S:
            self._live.update(self._table(), refresh=True)
            self._shown = self._clock()
        if self._plain and since >= LINE_S:
            self._print(self.line())
            self._shown = self._clock()

    def expect_work(self, work: Workload | None) -> None:
        """Take the parts of the run, of which the time left is made."""
        self._work, self._started = work, self._clock()
        if work is not None:
            self._ahead, self._loading, self._whole = dict(work.counts), set(work.loads), work.seconds

    def sealed(self, cell: Cell) -> None:
        """Count the proof of a cell."""
        self._ahead.pop(cell.id, None)

    def left(self) -> float | None:
        """Return the seconds that the run will still take, or None if nothing tells them.

        The forecast of what is left is stretched as that of what is done has been.
        """
        if self._work is None:
            if not 0 < self._count < self._total:
                return None
            return (self._clock() - self._begin) / self._count * (self._total - self._count)
        ahead = self._work.report + sum(self._work.loads[group] for group in self._loading)
        for cell, decodes in self._ahead.items():
            ahead += decodes * self._work.decodes[cell] + self._work.rests[cell]
        done = self._whole - ahead
        sure = done > self._whole * LEAST_DONE
        return ahead * (self._clock() - self._started) / done if sure else ahead

    def speedup(self, cell: Cell) -> float | None:
        """Return the median over prompts of the baseline's time a token over this cell's, or None if unknown."""
        times = self._milliseconds.get(cell, {})
        baseline = next((self._milliseconds[one] for one in self._milliseconds if _is_baseline_of(one, cell)), {})
        ratios = [baseline[key] / times[key] for key in times if key in baseline and times[key]]
        return median(ratios) if ratios else None

    def line(self) -> str:
        """Return decodes, cells, time left, and the last cell with its speed-up so far, in one line."""
        parts = [f"{self._count}/{self._total} decodes"]
        if self._expected:
            whole = sum(self._finished.get(cell, 0) >= decodes for cell, decodes in self._expected.items())
            parts.append(f"{whole}/{len(self._expected)} cells")
        if (left := self.left()) is not None:
            parts.append(f"about {_duration(left)} left")
        text = ", ".join(parts)
        return f"{text}; last: {self._named(self._last)}" if self._last is not None else text

    def _named(self, cell: Cell) -> str:
        speedup = None if _is_baseline_of(cell, cell) else self.speedup(cell)
        label = f"{cell.label} T={cell.sampling.temperature:g}"
        return printable_line(label + ("" if speedup is None else f", {speedup:.2f}x so far"))

    def _table(self) -> Any:
        table = Table("cell", "T", "decodes", "speed-up so far", box=None, header_style="bold")
        unfinished = sorted(self._expected, key=lambda cell: self._finished.get(cell, 0) >= self._expected[cell])
        for cell in unfinished[:SHOWN]:
            speedup = self.speedup(cell)
            counts = f"{self._finished.get(cell, 0)}/{self._expected[cell]}"
            shown = "-" if speedup is None else f"{speedup:.2f}x"
            table.add_row(escape(printable_line(cell.label)), f"{cell.sampling.temperature:g}", counts, shown)
        bar = ProgressBar(total=max(1, self._total), completed=self._count, width=40)
        below = Table.grid()
        below.add_row(bar)  # a bar does not end its line
        below.add_row(Text(self.line()))
        return Group(table, below)

    def _print(self, text: str) -> None:
        self._said = text
        whole = not self._console.is_terminal  # a line of a log is not wrapped
        self._console.print(escape(printable(text)), highlight=False, soft_wrap=whole)


def _is_baseline_of(one: Cell, cell: Cell) -> bool:
    """Return whether a cell is the baseline of another: equal in everything but the method."""
    words = ("backbone", "dtype", "task", "sampling", "max_new_tokens", "batch", "seed")
    return one.role == "baseline" and all(getattr(one, word) == getattr(cell, word) for word in words)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
