"""Draw captions that the entry of a suite, or the command line, writes out, such as those that a paper shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.pictures import PictureTask


@TASKS.register("captions")
@dataclass(frozen=True)
class Captions(PictureTask):
    """Draw your own captions; ids are their numbers, from 0.

    Args:
        texts: one caption, or a tuple of them. In a suite, a list of captions is a sweep with a cell for each, and a
            list in a list is one set: ``texts: [[a cat, a dog]]``.
    """

    texts: tuple[str, ...] | str = ()

    source = "texts of the suite"

    def every(self) -> Sequence[Prompt]:
        texts = (self.texts,) if isinstance(self.texts, str) else self.texts
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            raise UsageError(f"the task captions was given texts={self.texts!r}; give a caption, or several")
        return tuple(Prompt(f"captions/{number}", text.strip()) for number, text in enumerate(texts))
