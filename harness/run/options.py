"""How to run a plan, and who is told of its progress."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.core.task import Prompt
from harness.plan.cells import Cell


class Progress:
    """Told of a run's stages and decodes; the default says nothing."""

    def say(self, text: str) -> None:
        """A stage begins."""

    def expect(self, decodes: int) -> None:
        """So many decodes remain."""

    def done(self, cell: Cell, prompt: Prompt) -> None:
        """One decode is written."""


@dataclass(frozen=True)
class Options:
    """How to run, as against what.

    Args:
        allow_code: let tasks execute model output (in a sandboxed child process).
        device: of the backbones.
        fetch: download pinned weights that are missing.
        progress: whom to tell.
    """

    allow_code: bool = False
    device: str = "cpu"
    fetch: bool = True
    progress: Progress = field(default_factory=Progress)
