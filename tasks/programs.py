"""Complete a short Python function from its first line and docstring, which embedded-code was trained to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stridebench.harness.core.task import Prompt, Task
from stridebench.harness.errors import within
from stridebench.harness.record.outputs import Output, as_text
from stridebench.harness.registry import TASKS
from stridebench.harness.synthetic.code import programs

MOST = 500
"""Most functions that a task may have."""


@TASKS.register("programs")
@dataclass(frozen=True)
class Programs(Task):
    """Complete held-out functions: their heads were not trained on.

    ``body`` is 1 if the output begins with exactly the body that the grammar wrote. Nothing is executed: a correct
    body in other words counts as 0, so the figure is a lower bound.

    Args:
        limit: number of functions.
        seed: of the draw.
    """

    limit: int = 64
    seed: int = 0

    source = "short Python functions of this project (harness/synthetic/code.py)"
    metrics = ("body",)

    def __post_init__(self) -> None:
        within("the task programs", 1, MOST, limit=self.limit)
        within("the task programs", 0, seed=self.seed)

    def prompts(self) -> Sequence[Prompt]:
        """Return different heads; category and cluster are the function's name, and ``data["body"]`` is its body."""
        prompts: dict[str, Prompt] = {}
        for program in programs(np.random.default_rng(self.seed), held_out=True):
            if program.head not in prompts:
                name, data = f"programs/{len(prompts)}", {"body": program.body}
                prompts[program.head] = Prompt(
                    name, program.head, category=program.name, data=data, cluster=program.name
                )
            if len(prompts) == self.limit:
                return tuple(prompts.values())
        return ()

    def score(self, prompt: Prompt, output: Output, tokens: Sequence[int]) -> dict[str, float]:
        """Return 1 or 0."""
        return {"body": float(as_text(output).startswith(prompt.data["body"]))}
