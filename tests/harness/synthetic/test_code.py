"""Synthetic code: programs are Python, pass their own tests, and fall on one side of the split."""

from __future__ import annotations

import doctest
from itertools import islice

import numpy as np

from stridebench.harness.synthetic import code
from stridebench.harness.synthetic.code import RULES


def written(count: int, seed: int = 0) -> list[code.Program]:
    random = np.random.default_rng(seed)
    return [code.program(random) for _ in range(count)]


def passes(program: code.Program, body: str) -> bool:
    scope: dict[str, object] = {}
    exec(f"{program.head}{body}\n\n{program.test}\ntest_{program.name}()", scope)
    return True


def test_programs_pass_their_own_tests_and_docstring_examples() -> None:
    for program in written(300):
        assert passes(program, program.body)
        scope: dict[str, object] = {}
        exec(program.head + program.body, scope)
        example = doctest.DocTestParser().get_examples(program.head.split('"""')[1])[0]
        assert repr(eval(example.source, scope)) == example.want.strip()


def test_a_body_that_does_nothing_fails() -> None:
    failed = 0
    for program in written(100):
        try:
            passes(program, "    return None\n")
        except AssertionError:
            failed += 1
    assert failed == 100


def test_every_rule_is_drawn_and_heads_rarely_repeat() -> None:
    programs = written(2000)
    assert len({program.head for program in programs}) > 1900
    bodies = {program.name: program.body for program in programs}
    starts = {body.split()[0] for body in bodies.values()}
    assert {"return", "for", "if"} <= {word for body in bodies.values() for word in body.split()}
    assert len(bodies) > 5 * len(RULES) and len(starts) >= 6


def test_programs_are_reproducible_by_seed() -> None:
    assert written(20) == written(20)
    assert written(20) != written(20, seed=1)


def test_the_head_decides_the_split_and_splits_share_no_program() -> None:
    sides = [list(islice(code.programs(np.random.default_rng(0), side), 40)) for side in (False, True)]
    assert [program.held_out for side in sides for program in side] == [False] * 40 + [True] * 40
    assert not {p.head for p in sides[0]} & {p.head for p in sides[1]}
