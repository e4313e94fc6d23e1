"""What is noted of a decode beside its tokens."""

from __future__ import annotations

import pytest

from stridebench.harness.run.attempt import completion, kept_tokens


@pytest.mark.parametrize(
    ("tokens", "length"),
    [((5, 6, 2, 9, 9), 3), ((2, 2, 2), 1), ((5, 6), 2), ((), 0), ((5, 3, 2), 2)],
)
def test_a_completion_ends_with_the_first_end_of_text(tokens: tuple[int, ...], length: int) -> None:
    """Ids 2 and 3 end a text; a masked model fills its canvas behind them."""
    assert completion(tokens, frozenset({2, 3})) == length


WORDS = {1: "The answer", 2: " is 4.", 3: "\nQues", 4: "tion: How", 5: " many"}


@pytest.mark.parametrize(
    ("before", "emitted", "kept"),
    [
        ((1, 2), (3, 4, 5), 2),
        ((1, 2, 3), (4,), 1),
        ((1, 2), (3,), None),
        ((), (1, 2), None),
        ((1, 2, 3), (5, 3, 4, 3, 4), 3),
    ],
)
def test_a_text_ends_at_the_token_that_completes_a_stop(
    before: tuple[int, ...], emitted: tuple[int, ...], kept: int | None
) -> None:
    assert kept_tokens(lambda ids: "".join(map(WORDS.__getitem__, ids)), ("Question:",), before, emitted) == kept
