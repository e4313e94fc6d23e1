"""What is noted of a decode beside its tokens."""

from __future__ import annotations

import pytest

from stridebench.harness.run.attempt import completion


@pytest.mark.parametrize(
    ("tokens", "length"),
    [((5, 6, 2, 9, 9), 3), ((2, 2, 2), 1), ((5, 6), 2), ((), 0), ((5, 3, 2), 2)],
)
def test_a_completion_ends_with_the_first_end_of_text(tokens: tuple[int, ...], length: int) -> None:
    """Ids 2 and 3 end a text; a masked model fills its canvas behind them."""
    assert completion(tokens, frozenset({2, 3})) == length
