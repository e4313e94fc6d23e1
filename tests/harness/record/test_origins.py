"""Where a token came from, and what each token adds to the text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from stridebench.harness.record.outputs import origins, pieces


def step(drafted: int, tested: int, accepted: int, emitted: int, forced: int = 0, rows: int = 1) -> Any:
    counts = {"drafted": drafted, "tested": tested, "accepted": accepted, "emitted": emitted, "forced": forced}
    return SimpleNamespace(**counts, rows=rows)


def test_the_last_token_of_a_step_corrects_closes_or_stands_alone() -> None:
    steps = [step(3, 2, 1, 2), step(2, 2, 2, 3), step(0, 0, 0, 1), step(2, 1, 0, 1, forced=1), step(1, 1, 1, 1)]
    expected = ["accepted", "corrected", "accepted", "accepted", "bonus", "decoded", "forced", "accepted"]
    assert origins(steps, 8) == expected
    assert origins(steps, 4) == expected[:4], "tokens past the budget are cut off"


def test_a_canvas_has_no_origin_by_position() -> None:
    assert origins([step(0, 0, 0, 4)], 4) is None
    assert origins([step(0, 0, 0, 1, rows=5)] * 3, 3) is None, "a masked model that fills one position a pass"
    assert origins([step(0, 0, 0, 1)] * 3, 3) == ["decoded"] * 3


BYTES = [b"a", b"\xc3", b"\xa9", b" b", b"\xff"]


def decode(tokens: Any) -> str:
    """Bytes of tokens; the space of a first token is left out, as some tokenizers do."""
    return b"".join(BYTES[token] for token in tokens).decode("utf-8", "replace").removeprefix(" ")


def test_the_pieces_are_the_text() -> None:
    assert pieces(decode, [0, 1, 2, 3]) == ("a", "", "é", " b")
    assert "".join(pieces(decode, [3, 3, 0])) == decode([3, 3, 0])


def test_there_are_no_pieces_without_a_tokenizer() -> None:
    assert pieces(lambda tokens: "", [1, 2]) == ()
    assert pieces(lambda tokens: object(), [1, 2]) == ()
