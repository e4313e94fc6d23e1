"""Prompts of token ids for the random full-prefix model, whose output distributions are computed exactly."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from stridebench.harness.core.task import Prompt, Task
from stridebench.harness.errors import within
from stridebench.harness.registry import TASKS


@TASKS.register("tabular")
@dataclass(frozen=True)
class TabularTask(Task):
    """Pseudo-random token ids that are the same on every machine: a hash of prompt number and position.

    Args:
        prompts_count: number of prompts; the first n do not depend on it.
        length: number of ids in each prompt.
        vocabulary: ids are below it; the model's may be larger.
    """

    prompts_count: int = 8
    length: int = 3
    vocabulary: int = 3

    source = "hashed token ids"
    modality = "tabular"

    def __post_init__(self) -> None:
        counts = {"prompts_count": self.prompts_count, "length": self.length, "vocabulary": self.vocabulary}
        within("the task tabular", 1, **counts)

    def prompts(self) -> Sequence[Prompt]:
        """Return ``prompts_count`` prompts of ``length`` ids, tabular/0 first."""
        return tuple(
            Prompt(f"tabular/{index}", tokens=tuple(self._token(index, at) for at in range(self.length)))
            for index in range(self.prompts_count)
        )

    def _token(self, index: int, position: int) -> int:
        digest = hashlib.blake2b(f"tabular {index} {position}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.vocabulary
