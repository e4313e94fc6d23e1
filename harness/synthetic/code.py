"""A world of short Python functions: a grammar writes head, docstring, body and a test that the body passes.

Everything follows from the generator it is given: the same seed writes the same programs. The values in docstrings
and tests come from running the functions, which hold nothing but arithmetic, lists, strings and loops.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.synthetic.code_rules import RULES, Sketch

HELD_OUT = 32
"""One program in so many is held out, chosen by its text."""


@dataclass(frozen=True)
class Program:
    """One function and its test.

    Args:
        name: of the function. head: its first line and docstring, where a completion starts. body: the lines after.
        test: a function without arguments that asserts what the docstring shows, and more.
    """

    name: str
    head: str
    body: str
    test: str

    @property
    def text(self) -> str:
        """The whole, as it is trained on."""
        return f"{self.head}{self.body}\n\n{self.test}\n"

    @property
    def held_out(self) -> bool:
        """Whether it is kept for evaluation, whichever seed writes it: told by its head."""
        return hashlib.sha256(self.head.encode()).digest()[0] % HELD_OUT == 0


def program(random: np.random.Generator) -> Program:
    """One program drawn from the grammar."""
    rule: Callable[[np.random.Generator], Sketch] = RULES[int(random.integers(len(RULES)))]
    sketch = rule(random)
    calls = [sketch.arguments(random) for _ in range(3)]
    body = "".join(f"    {line}\n" for line in sketch.lines)
    first = f"def {sketch.name}({', '.join(sketch.names)}):\n"
    values = [_run(first + body, sketch.name, arguments) for arguments in calls]
    shown = [f"{sketch.name}({', '.join(map(repr, arguments))})" for arguments in calls]
    head = f'{first}    """{sketch.summary}\n\n    >>> {shown[0]}\n    {values[0]!r}\n    """\n'
    asserts = "".join(f"    assert {call} == {value!r}\n" for call, value in zip(shown, values, strict=True))
    return Program(sketch.name, head, body, f"def test_{sketch.name}():\n{asserts}")


def programs(random: np.random.Generator, held_out: bool) -> Iterator[Program]:
    """Programs of one side of the split, without end."""
    while True:
        found = program(random)
        if found.held_out == held_out:
            yield found


def _run(source: str, name: str, arguments: tuple[Any, ...]) -> Any:
    """What a function of this grammar returns; no other code ever comes here."""
    scope: dict[str, Any] = {}
    exec(source, scope)
    return scope[name](*arguments)
