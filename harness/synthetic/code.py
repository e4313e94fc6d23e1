"""Synthetic short Python functions: a grammar writes head, docstring, body and a test that the body passes.

The same seed writes the same programs. The values in docstrings and tests come from running the functions, which use
arithmetic, lists, strings and loops alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from stridebench.harness.synthetic.code_rules import RULES, Sketch

HELD_OUT = 32
"""One program in this many is held out."""


@dataclass(frozen=True)
class Program:
    """One function and its test.

    Args:
        name: of the function.
        head: its first line and docstring, which a completion continues.
        body: the other lines.
        test: a function without arguments that asserts what the docstring shows, and more.
    """

    name: str
    head: str
    body: str
    test: str

    @property
    def text(self) -> str:
        """The whole program, for training."""
        return f"{self.head}{self.body}\n\n{self.test}\n"

    @property
    def held_out(self) -> bool:
        """Whether it is kept for evaluation. Its head alone decides, whatever the seed."""
        return hashlib.sha256(self.head.encode()).digest()[0] % HELD_OUT == 0


def program(random: np.random.Generator) -> Program:
    """One program drawn from the grammar."""
    rule: Callable[[np.random.Generator], Sketch] = RULES[int(random.integers(len(RULES)))]
    sketch = rule(random)
    calls = [sketch.arguments(random) for _ in range(3)]
    body = "".join(f"    {line}\n" for line in sketch.lines)
    first = f"def {sketch.name}({', '.join(sketch.names)}):\n"
    values = [_run(first + body, sketch.name, arguments) for arguments in calls]
    texts = [f"{sketch.name}({', '.join(map(repr, arguments))})" for arguments in calls]
    head = f'{first}    """{sketch.summary}\n\n    >>> {texts[0]}\n    {values[0]!r}\n    """\n'
    asserts = "".join(f"    assert {call} == {value!r}\n" for call, value in zip(texts, values, strict=True))
    return Program(sketch.name, head, body, f"def test_{sketch.name}():\n{asserts}")


def programs(random: np.random.Generator, held_out: bool) -> Iterator[Program]:
    """An endless stream of programs of one split."""
    while True:
        drawn = program(random)
        if drawn.held_out == held_out:
            yield drawn


def _run(source: str, name: str, arguments: tuple[Any, ...]) -> Any:
    """The result of a function of this grammar; no other code is run here."""
    scope: dict[str, Any] = {}
    exec(source, scope)
    return scope[name](*arguments)
