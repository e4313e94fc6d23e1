"""The two measures of the tests themselves: which of them are long, and which mutants they kill."""

from __future__ import annotations

from tests import durations

SPINE = """
def f(x: int | None = None) -> int | None:
    if x + 1 > 2:
        raise ValueError(f"{x + 3}")
    return x - 1
"""


def test_a_test_is_long_only_where_it_is_long_in_every_run():
    runs = [{"a": 6.0, "b": 9.0, "c": 1.0}, {"a": 4.0, "b": 5.5, "c": 1.0}]
    assert durations.over_limit(runs) == [("b", 5.5)]


def test_annotations_and_messages_are_not_mutated():
    import tests.mutation.__main__ as mutation

    assert mutation.ignored_lines(SPINE) == {2, 4}


def test_a_sample_is_seeded_and_takes_each_place_once():
    import tests.mutation.__main__ as mutation

    population = [mutation.Mutant("a.py", f"op{k}", 0, line, 0) for line in range(20) for k in range(line + 1)]
    chosen = mutation.sample(population, 10, seed=3)
    assert chosen == mutation.sample(population, 10, seed=3) != mutation.sample(population, 10, seed=4)
    assert len({mutant.line for mutant in chosen}) == 10


def test_the_quickest_tests_come_first_within_the_budget():
    import tests.mutation.__main__ as mutation

    seconds = {"slow": 100.0, "quick": 0.1, "medium": 5.0}
    assert mutation.quickest(set(seconds), seconds) == ["quick", "medium"]
    assert mutation.quickest({"slow"}, seconds) == ["slow"]
