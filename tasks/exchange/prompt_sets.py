"""Whether results are of the outputs at hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from stridebench.harness.core.task import Stored
from stridebench.harness.errors import UsageError


def refuse_others(path: Path, judged: Sequence[Hashable], expected: Sequence[Hashable]) -> None:
    """Refuse results of other prompts or outputs, or of some of them only.

    Raises:
        UsageError: they are; says how many of each.
    """
    given, asked = Counter(judged), Counter(expected)
    foreign, absent = given - asked, asked - given
    if foreign or absent:
        example = str(next(iter(foreign or absent)))[:120]
        raise UsageError(
            f"{path} has results of another prompt set or other outputs: {foreign.total()} of its {given.total()} are "
            f"not of this cell, and {absent.total()} of the cell's {asked.total()} outputs have none (such as "
            f"{example}). Judge what `stride export` wrote for this cell, all of it"
        )


def by_prompt(outputs: Sequence[Stored]) -> list[list[Stored]]:
    """The outputs of each prompt, by repetition; prompts in their order."""
    groups: dict[str, list[Stored]] = {}
    for output in outputs:
        groups.setdefault(output.prompt.id, []).append(output)
    return [sorted(group, key=lambda output: output.repetition) for group in groups.values()]


def field(output: Stored, name: str) -> Any:
    """A field of the prompt's data.

    Raises:
        UsageError: the benchmark's prompts have it and this one has not.
    """
    if name not in output.prompt.data:
        raise UsageError(f"{output.prompt.id} is no prompt of this benchmark: it has no {name}. Name another cell")
    return output.prompt.data[name]
