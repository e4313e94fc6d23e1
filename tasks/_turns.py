"""Questions of two turns, in the format of FastChat's judge: MT-Bench, Spec-Bench.

A prompt is one user's turn. The second turn needs an answer to the first, which is read from a file, never decoded:
all methods must read the same text, or their outputs are not of one question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.task import Prompt
from harness.errors import UsageError, one_of
from tasks._prompt_files import Where, json_lines
from tasks._texts import Published, raw, texts, unique

CONVERSATIONS = {
    "vicuna": "{first} ASSISTANT: {answer}</s>USER: {second}",
    "llama2": "{first} [/INST] {answer} </s><s>[INST] {second}",
    "llama3": "{first}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n{answer}<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n{second}",
    "qwen": "{first}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n<|im_start|>user\n{second}",
}
"""What stands between the turns in the chat template of that name, which a backbone with ``chat`` on puts around it."""


@dataclass(frozen=True)
class Question:
    """A line of ``question.jsonl``. references: answers for a judge, of some questions."""

    id: int
    category: str
    turns: tuple[str, ...]
    references: tuple[str, ...]


@dataclass(frozen=True)
class Second:
    """Which turn is asked.

    Args:
        turn: 1 or 2. answers: for turn 2, a file of FastChat's model_answer with the answers to turn 1.
        conversation: for turn 2, how both are joined; one of `CONVERSATIONS`.
    """

    turn: int
    answers: str
    conversation: str

    def check(self, task: str) -> None:
        """Whether the parameters fit together.

        Raises:
            UsageError: they do not.
        """
        if self.turn not in (1, 2):
            raise UsageError(f"the task {task} was given turn={self.turn}; questions have the turns 1 and 2")
        if self.turn == 2 and not self.answers:
            raise UsageError(
                f"turn 2 of {task} follows an answer to turn 1: give as answers a file of FastChat's model_answer"
            )
        if self.turn == 2:
            one_of(f"the task {task}", "conversation", self.conversation, CONVERSATIONS)

    def prompts(self, task: str, found: Sequence[Question], groups: Mapping[str, str], path: str) -> Sequence[Prompt]:
        """One prompt a question that has this turn. groups: the category of a prompt, by that of its question.

        Raises:
            UsageError: two questions have one id, or a first answer is missing.
        """
        held = _answers(Path(self.answers).expanduser()) if self.turn == 2 else {}
        made = [self._prompt(task, each, groups, held) for each in found if len(each.turns) >= self.turn]
        return unique(made, path)

    def _prompt(self, task: str, question: Question, groups: Mapping[str, str], held: Mapping[int, str]) -> Prompt:
        name, text = f"{task}/{question.id}", question.turns[0]
        if self.turn == 2:
            if question.id not in held:
                raise UsageError(f"{self.answers} has no answer to question {question.id}; give one for every question")
            pattern, second = CONVERSATIONS[self.conversation], question.turns[1]
            name, text = f"{name}/2", pattern.format(first=text.strip(), answer=held[question.id], second=second)
        data: dict[str, Any] = {"question": question.id, "turn": self.turn, "subcategory": question.category}
        data |= {"asked": question.turns, "references": question.references}
        return Prompt(name, text, category=groups[question.category], data=data)


def questions(published: Published, file: str, groups: Mapping[str, str]) -> tuple[list[Question], str]:
    """All questions in the order of the file, and its path. groups: known categories.

    Raises:
        UsageError: it is missing, malformed, or of another benchmark.
    """
    found = []
    for where, row in published.rows(file, "", ""):
        category = raw(row, "category", where)
        if category not in groups:
            raise where.fault(f"category is {category!r}; {published.what} has {', '.join(groups)}")
        turns = texts(row, "turns", where, least=1)
        held = row.get("reference")
        references = tuple(map(str, held)) if isinstance(held, list) else ()
        found.append(Question(_id(row, where), category, turns, references))
    return found, str(where.path)


def _answers(path: Path) -> dict[int, str]:
    held = {}
    for where, row in json_lines(path, "answers to the first turn", "model_answer of FastChat's llm_judge"):
        choices = row.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise where.fault("no choices, as an answer of FastChat has")
        held[_id(row, where)] = texts(choices[0], "turns", where, least=1)[0].strip()
    return held


def _id(row: Mapping[str, Any], where: Where) -> int:
    number = row.get("question_id")
    if not isinstance(number, int) or isinstance(number, bool):
        raise where.fault(f"question_id is {number!r}, not a number")
    return number
