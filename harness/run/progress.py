"""What a run tells whoever watches."""

from __future__ import annotations

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
