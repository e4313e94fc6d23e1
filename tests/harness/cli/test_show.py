"""Which cell `stride show` takes: an id, its beginning, or parts of it that no other cell has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.cli.show import match_cell
from harness.errors import UnknownNameError, UsageError

IDS = (
    "prompt_lookup.smollm2-135m.bf16.T0.humaneval-d77e43b4",
    "prompt_lookup.smollm2-135m.bf16.T1.humaneval-ea123c43",
    "sjd-window=8.smollm2-135m.bf16.T1.humaneval-b1a10185",
    "sjdpp-window=8.smollm2-135m.bf16.T1.humaneval-361cce7b",
    "sjdpp-window=8-reuse=M.smollm2-135m.bf16.T1.humaneval-3dd2765a",
)
STORE: Any = SimpleNamespace(cells=lambda: IDS)


@pytest.mark.parametrize(
    ("text", "index"),
    [(IDS[3], 3), ("prompt_lookup.T1", 1), ("sjd", 2), ("reuse=M", 4), ("d77e", 0), ("sjdpp-window=8", 3)],
)
def test_parts_that_one_cell_has_name_it(text: str, index: int) -> None:
    assert match_cell(STORE, text) == IDS[index]


def test_parts_of_several_cells_list_them() -> None:
    with pytest.raises(UsageError, match=r"'prompt_lookup' fits 2 cells; write more of one's id:\n  prompt_lookup.*T0"):
        match_cell(STORE, "prompt_lookup")


def test_an_unknown_cell_is_an_error_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="there is no cell 'medusa'"):
        match_cell(STORE, "medusa")
