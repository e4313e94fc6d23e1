"""Every outcome of random draws, with its probability."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from stridebench.harness.proof.enumerate import EnumeratingDraws

Result = TypeVar("Result")


def enumerated(act: Callable[[EnumeratingDraws], Result]) -> Iterator[tuple[float, Result]]:
    """The probability and the result of ``act``, once for every outcome of its draws."""
    draws = EnumeratingDraws()
    stack: list[list[int]] = [[]]
    while stack:
        draws.replay(stack.pop(), stack, {})
        result = act(draws)
        yield draws.weight, result
