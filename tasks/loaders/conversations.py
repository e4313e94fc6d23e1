"""Data sets of conversations: first turns as prompts, without repeated texts, in two splits chosen by hash.

Drafters and adapters are trained on one split and measured on the other, so none is measured on its training data.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from stridebench.harness.core.task import Prompt, Task
from stridebench.harness.errors import UsageError, one_of
from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.files import Row, Where
from stridebench.tasks.loaders.texts import Published, key, questions_of, ranked

SPLITS = ("test", "train")
ONE_IN = 16
"""One text in so many belongs to the test split."""
USERS, MODELS = ("human", "user"), ("gpt", "chatgpt", "assistant", "bing", "bard")
TURNS = (("from", "value"), ("role", "content"))
"""Keys of the speaker and of the text, as the data sets name them."""


@dataclass(frozen=True)
class ConversationTask(Task, ABC):
    """First turns of conversations; only agreement and log-probability are measured.

    A conversation is left out where its first turn (after a system's) is not a user's: it is a piece of a longer one.
    A text that differs from an earlier one in case and white space alone is left out too.

    Args:
        file: the data: .json, JSON lines, .parquet or a folder of .parquet.
        hub: ``official`` where one is pinned, or ID@REVISION, instead of a file.
        split: test or train.
        n: number of prompts; 0 takes all.
        seed: chooses the prompts where not all are taken.
    """

    file: str = ""
    hub: str = ""
    split: str = "test"
    n: int = 0
    seed: int = 0

    name: ClassVar[str]
    data: ClassVar[Published]
    field: ClassVar[str] = "conversations"
    """Field of a row that holds the turns."""
    hub_split: ClassVar[str] = "train"

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UsageError: there is no such split, or the count is below 0.
        """
        one_of(f"the task {self.name}", "split", self.split, SPLITS)
        if self.n < 0:
            raise UsageError(f"the task {self.name} was given n={self.n}; take 0 for all, or more")

    @final
    def prompts(self) -> Sequence[Prompt]:
        """Return the prompts in the order of the data. Ids are hashes; ``data["reference"]`` is the data set's answer.

        Raises:
            UsageError: the data is missing or malformed, or has no prompt of this split.
        """
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
            raise UsageError(f"{rows[0][0].path} has no conversation of the {self.split} side that a user begins")
        chosen = {prompt.id for prompt in ranked(tuple(prompts.values()), self.seed)[: self.n or None]}
        return tuple(prompt for prompt in prompts.values() if prompt.id in chosen)


def side_of(text: str) -> str:
    """Return the split of a text; it depends on the text alone."""
    return "test" if int(key(text)[-8:], 16) % ONE_IN == 0 else "train"


def marks(names: Sequence[str]) -> set[str]:
    """Return the keys of all questions of the tasks with their default parameters.

    Raises:
        UsageError: data is missing; the message names every task that lacks it.
    """
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
    """Return the user's first turn and its answer; nothing where a user does not begin, or the turn is blank."""
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
