"""How to run a plan, and the interface of its progress display."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stridebench.harness.core.task import Prompt
from stridebench.harness.plan.cells import Cell


class Progress:
    """Receives a run's stages and decodes; the default ignores them."""

    def say(self, text: str) -> None:
        """A stage begins."""

    def expect(self, decodes: int) -> None:
        """``decodes`` more decodes follow."""

    def expect_of(self, cell: Cell, decodes: int) -> None:
        """So many of the expected decodes are a cell's."""

    def timed(self, cell: Cell, prompt: Prompt, repetition: int, ms_per_token: float) -> None:
        """A decode took so many milliseconds an output token; ``done`` follows."""

    def done(self, cell: Cell, prompt: Prompt) -> None:
        """One decode is written."""


@dataclass(frozen=True)
class Options:
    """How to run a plan.

    Args:
        allow_code: let tasks execute model output (in a sandboxed child process).
        device: of the backbones.
        fetch: download pinned weights that are missing.
        progress: receives stages and decodes.
        executor: options of the executor, checked (`stridebench.harness.run.pools.settings`); None: its defaults.
        interruptible: a KeyboardInterrupt is ^C and ends the run. In a worker process, which ^C does not reach, a
            plugin raised it, and it fails the sample.
    """

    allow_code: bool = False
    device: str = "cpu"
    fetch: bool = True
    progress: Progress = field(default_factory=Progress)
    executor: Any = None
    interruptible: bool = True
