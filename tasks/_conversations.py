"""Data sets of conversations: their first turns as prompts, each text once, in two sides told by its hash.

Drafters and adapters learn from one side and are timed on the other, so none is timed on what it has seen.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from harness.core.task import Prompt, Task
from harness.errors import UsageError, one_of
from harness.registry import TASKS
from tasks._prompt_files import Row, Where
from tasks._texts import Published, asked, key, ranked

SPLITS = ("test", "train")
ONE_IN = 16
"""One text in so many is of the test side."""
USERS, MODELS = ("human", "user"), ("gpt", "chatgpt", "assistant", "bing", "bard")
TURNS = (("from", "value"), ("role", "content"))
"""Who speaks and what is said, as the data sets call them."""


@dataclass(frozen=True)
class ConversationTask(Task, ABC):
    """First turns of conversations; only agreement and log-probability are measured.

    Left out are conversations that do not begin with a user's words (behind a system's, if there are any), as pieces of
    longer ones do, and texts that came before, whatever their case and white space.

    Args:
        file: the data, .json, JSON lines, .parquet or a folder of .parquet. hub: ``official`` where one is pinned, or
            ID@REVISION, instead of a file. split: test or train. n: how many; 0: all. seed: which ones, if not all.
    """

    file: str = ""
    hub: str = ""
    split: str = "test"
    n: int = 0
    seed: int = 0

    name: ClassVar[str]
    data: ClassVar[Published]
    field: ClassVar[str] = "conversations"
    """Of a row, that holds the turns."""
    hub_split: ClassVar[str] = "train"

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UsageError: no such split, or a count below 0.
        """
        one_of(f"the task {self.name}", "split", self.split, SPLITS)
        if self.n < 0:
            raise UsageError(f"the task {self.name} was given n={self.n}; take 0 for all, or more")

    @final
    def prompts(self) -> Sequence[Prompt]:
        """In the order of the data; ids are hashes of the texts, ``data["reference"]`` is the answer given there.

        Raises:
            UsageError: the data is missing or malformed, or gives no prompt of this side.
        """
        found: dict[str, Prompt] = {}
        rows = self.data.rows(self.file, self.hub, self.hub_split)
        for where, row in rows:
            turns = _turns(row, self.field, where)
            if not turns or side_of(turns[0]) != self.split:
                continue
            mark = key(turns[0])
            said = {"asked": turns[0], "reference": turns[1] if len(turns) > 1 else ""}
            found.setdefault(mark, Prompt(f"{self.name}/{mark[:16]}", turns[0], data=said))
        if not found:
            raise UsageError(f"{rows[0][0].path} has no conversation of the {self.split} side that a user begins")
        kept = {prompt.id for prompt in ranked(tuple(found.values()), self.seed)[: self.n or None]}
        return tuple(prompt for prompt in found.values() if prompt.id in kept)


def side_of(text: str) -> str:
    """Of the two sides, told by the text alone."""
    return "test" if int(key(text)[-8:], 16) % ONE_IN == 0 else "train"


def marks(names: Sequence[str]) -> set[str]:
    """Keys of all questions of the tasks, as they load by default.

    Raises:
        UsageError: the data of one is missing; says which, of all.
    """
    found: set[str] = set()
    lacking = []
    for name in names:
        task: Task = TASKS.get(name)()
        try:
            found.update(key(text) for prompt in task.prompts() for text in asked(prompt))
        except UsageError as error:
            lacking.append(f"{name}: {error}")
    if lacking:
        raise UsageError(
            "a training mixture leaves out what benchmarks ask, and these cannot be read; put them there, or take "
            f"their names out of the parameter without. {' | '.join(lacking)}"
        )
    return found


def _turns(row: Row, field: str, where: Where) -> tuple[str, ...]:
    """The user's first words and the answer to them; nothing where a user does not begin or says nothing."""
    held = row.get(field)
    if held is None:
        if field not in row:
            raise where.fault(f"no {field}; found the fields {', '.join(sorted(row)[:8]) or 'none'}")
        return ()
    if not isinstance(held, list):
        raise where.fault(f"{field} is a {type(held).__name__}, not a list of turns")
    said = [_turn(turn, where) for turn in held]
    said = said[1:] if said and said[0][0] == "system" else said
    if not said or said[0][0] not in USERS or not said[0][1].strip():
        return ()
    answered = len(said) > 1 and said[1][0] in MODELS
    return (said[0][1].strip(), said[1][1].strip()) if answered else (said[0][1].strip(),)


def _turn(turn: Any, where: Where) -> tuple[str, str]:
    if isinstance(turn, dict):
        for who, what in TURNS:
            if isinstance(turn.get(who), str) and isinstance(turn.get(what), str):
                return turn[who].lower(), turn[what]
    raise where.fault(f"a turn has from and value, or role and content; found {str(turn)[:60]!r}")
