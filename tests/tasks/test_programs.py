"""Held-out functions as a task: training saw none of them, and only the grammar's body is right."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from stridebench.harness.synthetic.code import programs
from stridebench.harness.train.passages import PassagePlan
from stridebench.harness.train.windows import prompts
from stridebench.tasks.programs import Programs


@pytest.mark.slow
def test_heads_are_different_held_out_and_the_same_for_a_seed() -> None:
    program_prompts = Programs(limit=80).prompts()
    heads = [prompt.text for prompt in program_prompts]
    assert len(set(heads)) == 80 and heads == [prompt.text for prompt in Programs(limit=80).prompts()]
    assert heads != [prompt.text for prompt in Programs(limit=80, seed=1).prompts()]
    trained = {program.head for program in islice(programs(np.random.default_rng(0), held_out=False), 2000)}
    assert not trained & set(heads)
    plan = PassagePlan("code", train=4, development=1)
    assert not set(heads) & {*prompts("code", 0, "train", plan.train * plan.rows)}


def test_only_the_body_of_the_grammar_is_right() -> None:
    task = Programs(limit=1)
    (prompt,) = task.prompts()
    body = prompt.data["body"]
    assert task.score(prompt, body + "\n\ndef test():\n", ()) == {"body": 1.0}
    assert task.score(prompt, body[:-2], ()) == task.score(prompt, " " + body, ()) == {"body": 0.0}
