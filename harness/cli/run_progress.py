"""The progress of `stride run`: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from harness.core.task import Prompt
from harness.errors import printable
from harness.plan.cells import Cell
from harness.run.options import Progress


class RunProgress(Progress):
    """A progress bar with an ETA on a terminal, a line a stage elsewhere."""

    def __init__(self, console: Console, quiet: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Bar(
            *columns, TextColumn("ETA"), TimeRemainingColumn(), console=console, disable=quiet, transient=True
        )
        self._plain = not console.is_terminal and not quiet
        self._task = self._bar.add_task("decoding", total=0)
        self._total = self._count = 0

    def __enter__(self) -> RunProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a stage."""
        if not self._bar.disable:
            self._bar.console.print(escape(printable(text)))

    def expect(self, decodes: int) -> None:
        """Lengthen the bar."""
        self._total += decodes
        self._bar.update(self._task, total=self._total)

    def done(self, cell: Cell, prompt: Prompt) -> None:
        """Move the bar."""
        self._count += 1
        self._bar.update(self._task, advance=1, description=escape(f"{prompt.id} {cell.label}"[:60]))
        if self._plain and self._count % max(1, self._total // 10) == 0:
            self._bar.console.print(f"{self._count}/{self._total} decodes")
