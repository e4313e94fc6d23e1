"""Synthetic short Python functions: a grammar writes head, docstring, body and a test that the body passes.

The same seed writes the same programs. The values in docstrings and tests come from running the functions, which use
arithmetic, lists, strings and loops alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

# The rules of the synthetic code: each draws a function of one kind.


Random = np.random.Generator
T = TypeVar("T")
LISTS = ("numbers", "values", "items", "xs", "scores")
WORDS = ("text", "word", "name", "line", "s")
PAIRS = (("a", "b"), ("x", "y"), ("width", "height"), ("first", "second"), ("m", "n"))
LETTERS = "abcdeilnorstu"
SYLLABLES = ("ba", "co", "de", "fi", "lo", "mu", "na", "ra", "se", "ti", "un", "or")


@dataclass(frozen=True)
class Sketch:
    """A function before it is written out."""

    name: str
    names: tuple[str, ...]
    summary: str
    lines: tuple[str, ...]
    arguments: Callable[[Random], tuple[Any, ...]]


def pick(random: Random, options: Sequence[T]) -> T:
    """One of them."""
    return options[int(random.integers(len(options)))]


def numbers(random: Random) -> list[int]:
    """Three to six small whole numbers."""
    return [int(n) for n in random.integers(-9, 21, int(random.integers(3, 7)))]


def word(random: Random) -> str:
    """Two or three syllables, sometimes two words."""
    parts = ["".join(pick(random, SYLLABLES) for _ in range(int(random.integers(2, 4)))) for _ in range(2)]
    return parts[0] if random.random() < 0.6 else " ".join(parts)


def condition(random: Random) -> tuple[str, str, str]:
    """A test of ``x``: in code, in words, and for names."""
    n = int(random.integers(2, 10))
    return pick(
        random,
        (
            ("x % 2 == 0", "even numbers", "even"),
            ("x % 2 == 1", "odd numbers", "odd"),
            ("x > 0", "positive numbers", "positive"),
            ("x < 0", "negative numbers", "negative"),
            (f"x > {n}", f"numbers above {n}", f"above_{n}"),
            (f"x % {n} == 0", f"multiples of {n}", f"multiples_of_{n}"),
        ),
    )


def change(random: Random) -> tuple[str, str, str]:
    """A function of ``x``: in code, in words, and for names."""
    n = int(random.integers(2, 10))
    return pick(
        random,
        (
            ("x * x", "the square", "squares"),
            (f"x + {n}", f"{n} more than each", f"plus_{n}"),
            (f"x * {n}", f"{n} times each", f"times_{n}"),
            (f"x - {n}", f"{n} less than each", f"minus_{n}"),
            ("abs(x)", "the absolute value", "magnitudes"),
            ("-x", "the opposite", "opposites"),
        ),
    )


def filtered(random: Random) -> Sketch:
    """A list comprehension with a test."""
    xs, (code, phrase, short) = pick(random, LISTS), condition(random)
    verb = pick(random, ("keep", "select", "only", "find"))
    lines = (f"return [x for x in {xs} if {code}]",)
    return Sketch(f"{verb}_{short}", (xs,), f"Return the {phrase} of {xs}.", lines, lambda r: (numbers(r),))


def mapped(random: Random) -> Sketch:
    """A list comprehension that changes each value."""
    xs, (code, phrase, short) = pick(random, LISTS), change(random)
    lines = (f"return [{code} for x in {xs}]",)
    return Sketch(f"list_{short}", (xs,), f"Return {phrase} of {xs}.", lines, lambda r: (numbers(r),))


def summed(random: Random) -> Sketch:
    """A loop that adds up or counts what passes a test."""
    xs, (code, phrase, short) = pick(random, LISTS), condition(random)
    counts = random.random() < 0.5
    total = pick(random, ("count", "found") if counts else ("total", "result"))
    lines = (f"{total} = 0", f"for x in {xs}:", f"    if {code}:", f"        {total} += {'1' if counts else 'x'}")
    verb, what = ("count", "How many") if counts else ("sum", "The sum of the")
    summary = f"{what} {phrase} {'there are ' if counts else ''}in {xs}."
    return Sketch(f"{verb}_{short}", (xs,), summary, (*lines, f"return {total}"), lambda r: (numbers(r),))


def extreme(random: Random) -> Sketch:
    """A loop that remembers the best value so far."""
    xs, largest = pick(random, LISTS), random.random() < 0.5
    best, (sign, phrase) = pick(random, ("best", "found")), (">", "largest") if largest else ("<", "smallest")
    lines = (f"{best} = {xs}[0]", f"for x in {xs}[1:]:", f"    if x {sign} {best}:", f"        {best} = x")
    names = (f"{phrase}_of", f"find_{phrase}", f"get_{phrase}")
    summary = f"Return the {phrase} number in {xs}."
    return Sketch(pick(random, names), (xs,), summary, (*lines, f"return {best}"), lambda r: (numbers(r),))


def formula(random: Random) -> Sketch:
    """One expression of two numbers."""
    (a, b), n = pick(random, PAIRS), int(random.integers(2, 10))
    code, phrase, short = pick(
        random,
        (
            (f"{a} + {b}", f"the sum of {a} and {b}", "add"),
            (f"{a} - {b}", f"{a} minus {b}", "subtract"),
            (f"{a} * {b}", f"the product of {a} and {b}", "multiply"),
            (f"{n} * ({a} + {b})", f"{n} times the sum of {a} and {b}", f"sum_times_{n}"),
            (f"{a} * {a} + {b} * {b}", f"the sum of the squares of {a} and {b}", "sum_of_squares"),
            (f"({a} + {b}) // 2", f"the mean of {a} and {b}, rounded down", "mean"),
            (f"({a} * {b}) % {n}", f"the product of {a} and {b} modulo {n}", f"product_mod_{n}"),
            (f"abs({a} - {b})", f"how far {a} and {b} are apart", "distance"),
        ),
    )
    lines = (f"return {code}",)
    return Sketch(short, (a, b), f"Return {phrase}.", lines, lambda r: tuple(int(v) for v in r.integers(1, 30, 2)))


def branching(random: Random) -> Sketch:
    """Two numbers compared."""
    (a, b), larger = pick(random, PAIRS), random.random() < 0.5
    sign, phrase = (">", "larger") if larger else ("<", "smaller")
    lines = (f"if {a} {sign} {b}:", f"    return {a}", f"return {b}")
    name = pick(random, (f"{phrase}_of_two", f"pick_{phrase}"))
    summary = f"Return the {phrase} one of {a} and {b}."
    return Sketch(name, (a, b), summary, lines, lambda r: tuple(int(v) for v in r.integers(-20, 30, 2)))


def spelled(random: Random) -> Sketch:
    """One expression of a string."""
    s, letter = pick(random, WORDS), pick(random, LETTERS)
    code, phrase, short = pick(
        random,
        (
            (f"{s}[::-1]", f"{s} backwards", "reverse"),
            (f"{s}.upper()", f"{s} in capital letters", "shout"),
            (f"len({s})", f"the number of characters in {s}", "length"),
            (f"{s}.count({letter!r})", f"how often {letter} is in {s}", f"count_{letter}"),
            (f"{s}.replace({letter!r}, '-')", f"{s} with a dash for every {letter}", f"hide_{letter}"),
            (f"{s} == {s}[::-1]", f"whether {s} reads the same backwards", "is_palindrome"),
            (f"[c for c in {s} if c in 'aeiou']", f"the vowels of {s} in order", "vowels"),
            (f"{s}.split()", f"the words of {s}", "split_words"),
            (f"{s}[:2]", f"the first two characters of {s}", "first_two"),
        ),
    )
    return Sketch(short, (s,), f"Return {phrase}.", (f"return {code}",), lambda r: (word(r),))


def counted(random: Random) -> Sketch:
    """A dictionary of how often each character occurs."""
    s, counts = pick(random, WORDS), pick(random, ("counts", "seen", "result"))
    lines = (f"{counts} = {{}}", f"for c in {s}:", f"    {counts}[c] = {counts}.get(c, 0) + 1", f"return {counts}")
    name = pick(random, ("letter_counts", "count_letters", "histogram"))
    return Sketch(name, (s,), f"Return how often each character is in {s}.", lines, lambda r: (word(r),))


def digits(random: Random) -> Sketch:
    """A loop over the digits of a number."""
    n, product = pick(random, ("n", "number", "value")), random.random() < 0.3
    total, (start, sign, phrase) = (
        pick(random, ("total", "result")),
        ("1", "*", "product") if product else ("0", "+", "sum"),
    )
    body = (f"    {total} {sign}= {n} % 10", f"    {n} //= 10")
    lines = (f"{total} = {start}", f"while {n} > 0:", *body, f"return {total}")
    summary = f"Return the {phrase} of the digits of {n}."
    return Sketch(f"digit_{phrase}", (n,), summary, lines, lambda r: (int(r.integers(10, 9999)),))


RULES = (filtered, mapped, summed, extreme, formula, branching, spelled, counted, digits)


HELD_OUT = 32
"""One program in this many is held out."""


@dataclass(frozen=True)
class Program:
    """One function and its test.

    Args:
        head: its first line and docstring, which a completion continues.
        test: a function without arguments that asserts the examples of the docstring, and more.
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
    scope: dict[str, Any] = {}
    exec(first + body, scope)  # of this grammar; no other code is run here
    values = [scope[sketch.name](*arguments) for arguments in calls]
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
