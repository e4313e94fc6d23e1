"""HumanEval problems behind many others: prompts of an exact length, to see what speculation keeps on a long one.

A prompt is a text of solved problems of the set, then the problem to be completed. The model reads its last tokens, as
many as are asked for, so each length asks the same questions. Outputs are scored by log-probability and agreement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stridebench.harness.core.task import Prompt, Task
from stridebench.harness.errors import within
from stridebench.harness.registry import TASKS
from stridebench.tasks import humaneval

MOST = 16_384
"""The longest prompt; in some tokenizer the set has too little text for more."""
CHARACTERS = 8
"""Characters of the text for each token that is asked for, more than any tokenizer needs on code."""


@TASKS.register("long_context")
@dataclass(frozen=True)
class LongContext(Task):
    """Complete a function at the end of a long text.

    Args:
        length: tokens of each prompt, in the tokenizer of the model.
        limit: prompts, evenly spread over the problems.
    """

    length: int = 1024
    limit: int = 8

    source = "arXiv:2107.03374, problems and solutions behind each other"

    def __post_init__(self) -> None:
        within("the task long_context", 16, MOST, length=self.length)
        within("the task long_context", 1, humaneval.PROBLEMS, limit=self.limit)

    def prompts(self) -> Sequence[Prompt]:
        """Return the prompts; ``last`` cuts each to its length."""
        problems, most = humaneval.problems(), CHARACTERS * self.length
        solved = [problem["prompt"] + problem["canonical_solution"] for problem in problems]
        chosen = [index * len(problems) // self.limit for index in range(self.limit)]
        return tuple(
            Prompt(
                f"long_context/{index}",
                "\n\n".join([*solved[index + 1 :], *solved[:index], problems[index]["prompt"].rstrip()])[-most:],
                last=self.length,
            )
            for index in chosen
        )
