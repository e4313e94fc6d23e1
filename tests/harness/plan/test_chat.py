"""`chat: true` of a task's entry."""

from __future__ import annotations

import pytest

from stridebench.harness.errors import UsageError
from tests.support.runs import plan_of

BASE = {"backbones": ["smollm2-135m"], "methods": ["prompt_lookup"]}


def test_prompts_of_a_task_become_a_user_s_turn_and_cells_differ() -> None:
    plain = plan_of(**BASE, tasks=[{"name": "humaneval", "limit": 1}])
    chat = plan_of(**BASE, tasks=[{"name": "humaneval", "limit": 1, "chat": True}])
    (prompt,), (turn,) = (next(iter(plan.prompts.values())) for plan in (plain, chat))
    assert prompt.messages == () and turn.messages == ({"role": "user", "content": prompt.text},)
    assert turn.text == prompt.text, "scorers read it"
    assert not {cell.id for cell in plain.cells} & {cell.id for cell in chat.cells}


def test_chat_is_true_or_false() -> None:
    with pytest.raises(UsageError, match="chat: Input should be a valid boolean"):
        plan_of(**BASE, tasks=[{"name": "humaneval", "chat": "perhaps"}])
