"""What is shown of errors that others raise."""

from __future__ import annotations

from stridebench.harness.errors import LONGEST, number_of, said_by


class Unreadable(BaseException):
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_the_class_and_the_message() -> None:
    assert said_by(ValueError("a\nb")) == "ValueError: a\nb"


def test_a_message_that_raises_is_said_to() -> None:
    assert said_by(Unreadable()) == "Unreadable: (its message cannot be read: it raises RuntimeError)"


def test_a_huge_message_is_cut() -> None:
    text = said_by(ValueError("x" * 5_000_000))
    assert len(text) < LONGEST + 60 and text.endswith("x ... (5,000,000 characters)")


def test_one_of_a_noun_has_no_plural() -> None:
    assert [number_of(count, "prompt") for count in (0, 1, 1200)] == ["0 prompts", "1 prompt", "1,200 prompts"]
