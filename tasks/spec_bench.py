"""Spec-Bench: 480 prompts of six tasks, 80 each, on which the speed of speculative decoding is compared.

Source: Xia et al. 2024, arXiv:2401.07851; ``data/spec_bench/question.jsonl`` of hemingkx/Spec-Bench.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stridebench.harness.core.task import Prompt, Task
from stridebench.harness.errors import UsageError, one_of
from stridebench.harness.registry import TASKS
from stridebench.tasks import mt_bench
from stridebench.tasks.loaders.conversations import Second, questions
from stridebench.tasks.loaders.texts import PublishedTexts

OTHERS = ("translation", "summarization", "qa", "math_reasoning", "rag")
GROUPS = {**dict.fromkeys(mt_bench.CATEGORIES, "mt_bench"), **{name: name for name in OTHERS}}
"""The six tasks, by the category in the file; the eight of MT-Bench are one."""
CATEGORIES = ("mt_bench", *OTHERS)
DATA = PublishedTexts(
    "Spec-Bench", "spec_bench/question.jsonl", "data/spec_bench of hemingkx/Spec-Bench (question.jsonl)"
)


@TASKS.register("spec_bench")
@dataclass(frozen=True)
class SpecBench(Task):
    """Answer the first turn of a question, the second turn after an answer from a file, or both.

    The six tasks are the categories, which every report shows separately. Only MT-Bench's questions have a second turn.
    The published figures cover both turns, the second after the model's answer.

    Args:
        file: ``question.jsonl``.
        category: one of the six; "" takes all.
        turn: see ``stridebench.tasks.loaders.conversations.Second``.
        answers: see there.
        conversation: see there.
    """

    file: str = ""
    category: str = ""
    turn: int = 1
    answers: str = ""
    conversation: str = ""

    source = "arXiv:2401.07851; hemingkx/Spec-Bench"

    def __post_init__(self) -> None:
        one_of("the task spec_bench", "category", self.category, ("", *CATEGORIES))
        self._second().check("spec_bench")

    def _second(self) -> Second:
        return Second(self.turn, self.answers, self.conversation)

    def prompts(self) -> Sequence[Prompt]:
        """Return the questions in the order of the file."""
        all_questions, path = questions(DATA, self.file, GROUPS)
        categories = (self.category,) if self.category else CATEGORIES
        if lacking := set(categories) - {GROUPS[question.category] for question in all_questions}:
            raise UsageError(f"{path} lacks questions of {', '.join(sorted(lacking))}. It should be {DATA.origin}")
        chosen = [question for question in all_questions if GROUPS[question.category] in categories]
        prompts = self._second().prompts("spec_bench", chosen, GROUPS, path)
        if not prompts:
            raise UsageError(
                f"no question of {', '.join(categories)} has a turn {self.turn}; only those of mt_bench do"
            )
        return prompts
