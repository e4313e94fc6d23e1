"""Data sets of conversations: first turns as prompts, without repeated texts, in two splits chosen by hash.

Drafters and adapters are trained on one split and measured on the other, so none is measured on its training data.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, final

from stridebench.harness.core.task import Prompt, Task
from stridebench.harness.errors import UsageError, one_of, within
from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.files import Row, Where, json_lines
from stridebench.tasks.loaders.texts import PublishedTexts, key, questions_of, ranked, raw, texts, unique

SPLITS = ("test", "train")
ONE_IN = 16
"""One text in so many belongs to the test split."""
USERS, MODELS = ("human", "user"), ("gpt", "chatgpt", "assistant", "bing", "bard")
TURNS = (("from", "value"), ("role", "content"))
"""Keys of the speaker and of the text, as the data sets name them."""


@dataclass(frozen=True)
class ConversationTask(Task, ABC):
    """First turns of conversations; only agreement and log-probability are measured.

    A conversation whose first turn (after a system's) is not a user's is a piece of a longer one and is left out, as is
    a text that differs from an earlier one in case and white space alone.

    Args:
        file: the data: .json, JSON lines, .parquet or a folder of .parquet.
        hub: ``official`` if one is pinned, or ID@REVISION, instead of a file.
        split: test or train.
        limit: number of prompts; 0 takes all.
        seed: chooses the prompts if not all are taken.
    """

    file: str = ""
    hub: str = ""
    split: str = "test"
    limit: int = 0
    seed: int = 0

    name: ClassVar[str]
    data: ClassVar[PublishedTexts]
    field: ClassVar[str] = "conversations"
    """Field of a row that holds the turns."""
    hub_split: ClassVar[str] = "train"

    def __post_init__(self) -> None:
        one_of(f"the task {self.name}", "split", self.split, SPLITS)
        within(f"the task {self.name}", 0, limit=self.limit)

    @final
    def prompts(self) -> Sequence[Prompt]:
        """Return the prompts in the order of the data. Ids are hashes; ``data["reference"]`` is the answer."""
        prompts: dict[str, Prompt] = {}
        rows = self.data.rows(self.file, self.hub, self.hub_split)
        for where, row in rows:
            turns = _turns(row, self.field, where)
            if not turns or side_of(turns[0]) != self.split:
                continue
            mark = key(turns[0])
            data = {"asked": turns[0], "reference": turns[1] if len(turns) > 1 else ""}
            prompts.setdefault(mark, Prompt(f"{self.name}/{mark[:16]}", turns[0], data=data))
        if not prompts:
            raise UsageError(f"{rows[0][0].path} lacks conversations of the {self.split} side that a user begins")
        chosen = {prompt.id for prompt in ranked(tuple(prompts.values()), self.seed)[: self.limit or None]}
        return tuple(prompt for prompt in prompts.values() if prompt.id in chosen)


def side_of(text: str) -> str:
    """Return the split of a text; it depends on the text alone."""
    return "test" if int(key(text)[-8:], 16) % ONE_IN == 0 else "train"


def marks(names: Sequence[str]) -> set[str]:
    """Return the keys of all questions of the tasks with their default parameters."""
    keys: set[str] = set()
    lacking = []
    for name in names:
        task: Task = TASKS.get(name)()
        try:
            keys.update(key(text) for prompt in task.prompts() for text in questions_of(prompt))
        except UsageError as error:
            lacking.append(f"{name}: {error}")
    if lacking:
        raise UsageError(
            "a training mixture leaves out what benchmarks ask, and these cannot be read; put them there, or take "
            f"their names out of the parameter without. {' | '.join(lacking)}"
        )
    return keys


def _turns(row: Row, field: str, where: Where) -> tuple[str, ...]:
    """Return the user's first turn and its answer, or nothing if a user does not begin or the turn is blank."""
    entries = row.get(field)
    if entries is None:
        if field not in row:
            raise where.fault(f"no {field}; found the fields {', '.join(sorted(row)[:8]) or 'none'}")
        return ()
    if not isinstance(entries, list):
        raise where.fault(f"{field} is a {type(entries).__name__}, not a list of turns")
    turns = [_turn(entry, where) for entry in entries]
    turns = turns[1:] if turns and turns[0][0] == "system" else turns
    if not turns or turns[0][0] not in USERS or not turns[0][1].strip():
        return ()
    answered = len(turns) > 1 and turns[1][0] in MODELS
    return tuple(text.strip() for _, text in turns[: 2 if answered else 1])


def _turn(turn: Any, where: Where) -> tuple[str, str]:
    if isinstance(turn, dict):
        for who, what in TURNS:
            if isinstance(turn.get(who), str) and isinstance(turn.get(what), str):
                return turn[who].lower(), turn[what]
    raise where.fault(f"a turn has from and value, or role and content; found {str(turn)[:60]!r}")


# Draws training prompts from a data set, without questions of benchmarks.


def draw(name: str, prompts: Sequence[Prompt], count: int, seed: int, excluded: set[str]) -> list[Prompt]:
    """Draw ``count`` of the prompts in a random order, without those whose questions are excluded.

    Raises:
        UsageError: too few prompts are left.
    """
    free = [prompt for prompt in prompts if not any(key(text) in excluded for text in questions_of(prompt))]
    if not 0 < count <= len(free):
        raise UsageError(
            f"{count} prompts of {name} are asked for; of the {len(prompts)} that are for training, {len(free)} are "
            f"left without those of benchmarks and of other sources. Change limit"
        )
    return ranked(free, seed)[:count]


class Place(NamedTuple):
    """Either a file or a data set of the hub; the other is ""."""

    file: str
    hub: str


def place(value: str) -> Place:
    """Parse a parameter: a file, or hub:ID@REVISION."""
    return Place("", value.removeprefix("hub:")) if value.startswith("hub:") else Place(value, "")


def names(value: Sequence[str] | str) -> tuple[str, ...]:
    """Return the names of a list, or of a text that separates them by commas or spaces."""
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else tuple(value)


# Questions of two turns in the format of FastChat's judge: MT-Bench, Spec-Bench.
# A prompt is one turn of a user. The second turn follows an answer to the first. That answer is read from a file, so
# that all methods continue the same text. The file of a model's own answers is what
# `stride exchange export --layout mt-bench` writes of its autoregressive cell.


CONVERSATIONS = {
    "vicuna": "{first} ASSISTANT: {answer}</s>USER: {second}",
    "llama2": "{first} [/INST] {answer} </s><s>[INST] {second}",
    "llama3": "{first}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n{answer}<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n{second}",
    "qwen": "{first}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n<|im_start|>user\n{second}",
}
"""How turns are joined, by chat template. A backbone with ``chat`` on adds the outer part of the template."""
Answers = Mapping[str, tuple[str, ...]]
"""The answers to the turns of a question, by its id."""


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
        turn: 1 or 2, or 0 for both, of which intervals resample questions.
        answers: for turn 2, a file of FastChat's model_answer with the answers to turn 1.
        conversation: for turn 2, how the turns are joined; one of `CONVERSATIONS`, or "" for the tokenizer's chat
            template.
    """

    turn: int
    answers: str
    conversation: str

    def check(self, task: str) -> None:
        """Check that the parameters fit together."""
        if self.turn not in (0, 1, 2):
            raise UsageError(
                f"the task {task} was given turn={self.turn}; questions have the turns 1 and 2, and 0 takes both"
            )
        if self.turn != 1 and not self.answers:
            raise UsageError(
                f"turn 2 of {task} follows an answer to turn 1: give as answers a file of FastChat's model_answer. "
                f"Run turn 1, and `stride exchange export --layout mt-bench` writes it"
            )
        one_of(f"the task {task}", "conversation", self.conversation, ("", *CONVERSATIONS))

    def prompts(
        self, task: str, questions: Sequence[Question], groups: Mapping[str, str], path: str
    ) -> Sequence[Prompt]:
        """Return a prompt for each turn that is asked of each question that has it.

        Args:
            groups: the category of a prompt, by the category of its question.

        Raises:
            UsageError: two questions have the same id, or an answer to turn 1 is missing.
        """
        answers = answers_of(self.answers) if self.turn != 1 else {}
        turns = (1, 2) if self.turn == 0 else (self.turn,)
        asked = [(question, turn) for question in questions for turn in turns if len(question.turns) >= turn]
        return unique([self._prompt(task, question, turn, groups, answers) for question, turn in asked], path)

    def _prompt(self, task: str, question: Question, turn: int, groups: Mapping[str, str], answers: Answers) -> Prompt:
        data: dict[str, Any] = {"question": question.id, "turn": turn, "subcategory": question.category}
        data |= {"asked": question.turns, "references": question.references}
        text: str | None = question.turns[0]
        messages: tuple[dict[str, str], ...] = ()
        if turn == 2:
            if not answers.get(str(question.id)):
                raise UsageError(f"{self.answers} lacks an answer to question {question.id}; give one for each")
            answered, text = answers[str(question.id)][:1], None
            data["answered"] = answered
            if self.conversation:
                pattern, second = CONVERSATIONS[self.conversation], question.turns[1]
                text = pattern.format(first=question.turns[0].strip(), answer=answered[0], second=second)
            else:
                messages = messages_of(question.turns[:2], answered)
        return Prompt(
            f"{task}/{question.id}{'/2' if turn == 2 else ''}",
            text,
            category=groups[question.category],
            data=data,
            messages=messages,
            cluster="" if self.turn else f"{task}/{question.id}",
        )


def messages_of(turns: Sequence[str], answered: Sequence[str]) -> tuple[dict[str, str], ...]:
    """Return a user's turns with the answers to all but the last as messages of a conversation."""
    texts = [text for pair in zip(turns, (*answered, ""), strict=True) for text in pair][:-1]
    return tuple({"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts))


def questions(published: PublishedTexts, file: str, groups: Mapping[str, str]) -> tuple[list[Question], str]:
    """Read all questions in the order of the file, and return them with its path.

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


def answers_of(file: str) -> Answers:
    """Read the first choice of each line of FastChat's model_answer: the answers to the turns of a question."""
    answers = {}
    path = Path(file).expanduser()
    for where, row in json_lines(path, "answers to the first turn", "model_answer of FastChat's llm_judge"):
        choices = row.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise where.fault("no choices, as an answer of FastChat has")
        name = row.get("question_id")
        if not isinstance(name, str):
            name = str(_id(row, where))
        answers[name] = tuple(text.strip() for text in texts(choices[0], "turns", where, least=1))
    return answers


def _id(row: Mapping[str, Any], where: Where) -> int:
    number = row.get("question_id")
    if not isinstance(number, int) or isinstance(number, bool):
        raise where.fault(f"question_id is {number!r}, not a number")
    return number
