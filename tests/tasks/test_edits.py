"""Edits: the expected answer is the program with one name changed, and scores say how much of it was written."""

from __future__ import annotations

import ast
from itertools import pairwise
from typing import Any

import pytest

from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.tasks.edits import Edits
from stridebench.tasks.humaneval import problems

TASK = Edits()
PROMPTS = TASK.prompts()


def programs(prompt: Prompt) -> tuple[str, str]:
    """The code before the edit, and the expected code after it."""
    before, after = (part.split("\n```", 1)[0] for part in str(prompt.text).split("```python\n")[1:])
    return before, f"{after}\n{prompt.data['rest']}"


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.id)
def test_only_the_named_function_or_parameter_changes(prompt: Prompt) -> None:
    before, after = (ast.parse(code) for code in programs(prompt))
    function, edited = before.body[0], after.body[0]
    assert isinstance(function, ast.FunctionDef) and isinstance(edited, ast.FunctionDef)
    if prompt.category == "function":
        old, new = function.name, edited.name
    else:
        old, new = function.args.args[0].arg, edited.args.args[0].arg
    assert new == f"new_{old}" and f"`{old}` renamed to `{new}`" in str(prompt.text)
    for node in ast.walk(before):
        for field, value in ast.iter_fields(node):
            if value == old and field in ("id", "name", "arg"):
                setattr(node, field, new)
    assert ast.dump(before) == ast.dump(after)


def test_the_edits_are_many_have_both_kinds_and_run_as_the_solutions_do() -> None:
    assert len(PROMPTS) > 40 and {prompt.category for prompt in PROMPTS} == {"function", "parameter"}
    prompt = next(prompt for prompt in PROMPTS if prompt.category == "parameter")
    problem = next(one for one in problems() if one["task_id"] == prompt.id.replace("edits", "HumanEval"))
    space: dict[str, Any] = {}
    exec(f"from typing import *\n{programs(prompt)[1]}\n{problem['test']}", space)
    space["check"](space[problem["entry_point"]])


def test_the_turns_of_a_trace_edit_one_file_and_each_prompt_holds_the_answers_before_it() -> None:
    traces = Edits(turns=4).prompts()
    assert len(traces) == 4 * len(PROMPTS) and len({prompt.id for prompt in traces}) == len(traces)
    for begin in range(0, len(traces), 4):
        turns = traces[begin : begin + 4]
        assert [prompt.category for prompt in turns] == ["cold", "warm", "warm", "warm"]
        assert {prompt.cluster for prompt in turns} == {turns[0].id.removesuffix("/0")}
        for before, after in pairwise(turns):
            assert str(after.text).startswith(f"{before.text}\n{before.data['rest']}\n```\n\nThe same code")
        files = str(turns[3].text).split("```python\n")
        assert files[1].startswith(files[5])  # both names have their first value again
    with pytest.raises(UsageError, match="turns is 0; a trace has at least one edit"):
        Edits(turns=0)


def test_an_answer_is_scored_to_the_end_of_the_function() -> None:
    prompt = PROMPTS[0]
    rest = prompt.data["rest"]
    whole = {"edited": 1.0, "similarity": 1.0}
    for answer in (f"\n{rest}", f"\n\n{rest}\n```\nThat is all.", f"\n{rest}\n\n\ndef other():\n    return 1"):
        assert TASK.score(prompt, answer, ()) == whole
    cut = rest[: len(rest) // 2].rstrip()
    for answer in (f"\n{cut}", f"\n{cut}\n```\n"):
        expected = {"edited": 0.0, "similarity": pytest.approx(2 * len(cut) / (len(cut) + len(rest)))}
        assert TASK.score(prompt, answer, ()) == expected
    assert TASK.score(prompt, "", ()) == {"edited": 0.0, "similarity": 0.0}
