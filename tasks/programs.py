"""Go on with a short Python function from its first line and docstring; what embedded-code was trained to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.core.task import Prompt, Task
from harness.errors import UsageError
from harness.record.outputs import Output, as_text
from harness.registry import TASKS
from harness.synthetic.code import programs

MOST = 500
"""Functions that can be asked for."""


@TASKS.register("programs")
@dataclass(frozen=True)
class Programs(Task):
    """Held-out functions: their heads never stood in training.

    ``body`` is 1 where the output begins with the body that the grammar wrote, to the letter; nothing is executed.
    A right body in other words counts as 0, so this is a floor.

    Args:
        n: functions. seed: another draw of them.
    """

    n: int = 64
    seed: int = 0

    source = "short Python functions of this project (harness/worlds/code.py)"
    metrics = ("body",)

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UsageError: a number of functions outside 1 to 500, or a seed below 0.
        """
        if not 1 <= self.n <= MOST or self.seed < 0:
            raise UsageError(
                f"the task programs was given n={self.n}, seed={self.seed}; n must be 1 to {MOST} and seed 0 or more"
            )

    def prompts(self) -> Sequence[Prompt]:
        """Different heads; the category is the function's name, ``data["body"]`` what the grammar wrote."""
        found: dict[str, Prompt] = {}
        for one in programs(np.random.default_rng(self.seed), held_out=True):
            if one.head not in found:
                data = {"body": one.body}
                found[one.head] = Prompt(f"programs/{len(found)}", one.head, category=one.name, data=data)
            if len(found) == self.n:
                return tuple(found.values())
        return ()

    def score(self, prompt: Prompt, output: Output, tokens: Sequence[int]) -> dict[str, float]:
        """1 or 0."""
        return {"body": float(as_text(output).startswith(prompt.data["body"]))}
