"""Spec-Bench: 480 prompts of six tasks, 80 each, on which the speed of speculative decoding is compared.

Source: Xia et al. 2024, arXiv:2401.07851; ``data/spec_bench/question.jsonl`` of hemingkx/Spec-Bench.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.core.task import Prompt, Task
from harness.errors import UsageError, one_of
from harness.registry import TASKS
from tasks import mt_bench
from tasks.loaders.texts import Published
from tasks.loaders.turns import Second, questions

OTHERS = ("translation", "summarization", "qa", "math_reasoning", "rag")
GROUPS = {**dict.fromkeys(mt_bench.CATEGORIES, "mt_bench"), **{name: name for name in OTHERS}}
"""The six tasks, by the category in the file; the eight of MT-Bench are one."""
CATEGORIES = ("mt_bench", *OTHERS)
DATA = Published("Spec-Bench", "spec_bench/question.jsonl", "data/spec_bench of hemingkx/Spec-Bench (question.jsonl)")


@TASKS.register("spec_bench")
@dataclass(frozen=True)
class SpecBench(Task):
    """Answer a question; the six tasks are the categories, which every report shows apart.

    The first turn unless the second, which MT-Bench's questions alone have, is asked for with given answers to the
    first. The published figures are over both turns, the second after the model's own answer.

    Args:
        file: ``question.jsonl``. category: one of the six alone; "" for all.
        turn, answers, conversation: see ``tasks.loaders.turns.Second``.
    """

    file: str = ""
    category: str = ""
    turn: int = 1
    answers: str = ""
    conversation: str = ""

    source = "arXiv:2401.07851; hemingkx/Spec-Bench"

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UsageError: no such category or turn, or a turn without what it needs.
        """
        one_of("the task spec_bench", "category", self.category, ("", *CATEGORIES))
        self._second().check("spec_bench")

    def _second(self) -> Second:
        return Second(self.turn, self.answers, self.conversation)

    def prompts(self) -> Sequence[Prompt]:
        """In the order of the file.

        Raises:
            UsageError: a file is missing or malformed, or one of the six tasks is not in it.
        """
        found, path = questions(DATA, self.file, GROUPS)
        wanted = (self.category,) if self.category else CATEGORIES
        if lacking := set(wanted) - {GROUPS[question.category] for question in found}:
            raise UsageError(f"{path} has no question of {', '.join(sorted(lacking))}. It should be {DATA.origin}")
        kept = [question for question in found if GROUPS[question.category] in wanted]
        made = self._second().prompts("spec_bench", kept, GROUPS, path)
        if not made:
            raise UsageError(f"no question of {', '.join(wanted)} has a turn {self.turn}; only those of mt_bench do")
        return made
