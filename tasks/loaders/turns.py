"""Questions of two turns in the format of FastChat's judge: MT-Bench, Spec-Bench.

A prompt is one turn of a user. The second turn follows an answer to the first. That answer is read from a file and not
decoded, because all methods must continue the same text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError, one_of
from stridebench.tasks.loaders.files import Where, json_lines
from stridebench.tasks.loaders.texts import Published, raw, texts, unique

CONVERSATIONS = {
    "vicuna": "{first} ASSISTANT: {answer}</s>USER: {second}",
    "llama2": "{first} [/INST] {answer} </s><s>[INST] {second}",
    "llama3": "{first}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n{answer}<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n{second}",
    "qwen": "{first}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n<|im_start|>user\n{second}",
}
"""How turns are joined, by chat template. A backbone with ``chat`` on adds the outer part of the template."""


@dataclass(frozen=True)
class Question:
    """A line of ``question.jsonl``; some questions have reference answers for a judge."""

    id: int
    category: str
    turns: tuple[str, ...]
    references: tuple[str, ...]


@dataclass(frozen=True)
class Second:
    """Which turn is asked.

    Args:
        turn: 1 or 2.
        answers: for turn 2, a file of FastChat's model_answer with the answers to turn 1.
        conversation: for turn 2, how the turns are joined; one of `CONVERSATIONS`.
    """

    turn: int
    answers: str
    conversation: str

    def check(self, task: str) -> None:
        """Check that the parameters fit together.

        Raises:
            UsageError: they do not fit.
        """
        if self.turn not in (1, 2):
            raise UsageError(f"the task {task} was given turn={self.turn}; questions have the turns 1 and 2")
        if self.turn == 2 and not self.answers:
            raise UsageError(
                f"turn 2 of {task} follows an answer to turn 1: give as answers a file of FastChat's model_answer"
            )
        if self.turn == 2:
            one_of(f"the task {task}", "conversation", self.conversation, CONVERSATIONS)

    def prompts(
        self, task: str, questions: Sequence[Question], groups: Mapping[str, str], path: str
    ) -> Sequence[Prompt]:
        """Return one prompt for each question that has this turn.

        Args:
            task: its registered name.
            questions: all questions.
            groups: the category of a prompt, by the category of its question.
            path: the file of the questions, for messages.

        Raises:
            UsageError: two questions have the same id, or an answer to turn 1 is missing.
        """
        answers = _answers(Path(self.answers).expanduser()) if self.turn == 2 else {}
        chosen = [question for question in questions if len(question.turns) >= self.turn]
        return unique([self._prompt(task, question, groups, answers) for question in chosen], path)

    def _prompt(self, task: str, question: Question, groups: Mapping[str, str], answers: Mapping[int, str]) -> Prompt:
        name, text = f"{task}/{question.id}", question.turns[0]
        if self.turn == 2:
            if question.id not in answers:
                raise UsageError(f"{self.answers} has no answer to question {question.id}; give one for every question")
            pattern, second = CONVERSATIONS[self.conversation], question.turns[1]
            name, text = f"{name}/2", pattern.format(first=text.strip(), answer=answers[question.id], second=second)
        data: dict[str, Any] = {"question": question.id, "turn": self.turn, "subcategory": question.category}
        data |= {"asked": question.turns, "references": question.references}
        return Prompt(name, text, category=groups[question.category], data=data)


def questions(published: Published, file: str, groups: Mapping[str, str]) -> tuple[list[Question], str]:
    """Read all questions in the order of the file, and return them with its path.

    Args:
        published: the data set.
        file: a path, or "".
        groups: the known categories.

    Raises:
        UsageError: the file is missing, malformed, or of another benchmark.
    """
    read = []
    for where, row in published.rows(file, "", ""):
        category = raw(row, "category", where)
        if category not in groups:
            raise where.fault(f"category is {category!r}; {published.what} has {', '.join(groups)}")
        turns = texts(row, "turns", where, least=1)
        reference = row.get("reference")
        references = tuple(map(str, reference)) if isinstance(reference, list) else ()
        read.append(Question(_id(row, where), category, turns, references))
    return read, str(where.path)


def _answers(path: Path) -> dict[int, str]:
    answers = {}
    for where, row in json_lines(path, "answers to the first turn", "model_answer of FastChat's llm_judge"):
        choices = row.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise where.fault("no choices, as an answer of FastChat has")
        answers[_id(row, where)] = texts(choices[0], "turns", where, least=1)[0].strip()
    return answers


def _id(row: Mapping[str, Any], where: Where) -> int:
    number = row.get("question_id")
    if not isinstance(number, int) or isinstance(number, bool):
        raise where.fault(f"question_id is {number!r}, not a number")
    return number
