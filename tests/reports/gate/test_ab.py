"""Two versions in turns, on runs whose seconds and counts are made by hand."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from stridebench.harness.errors import UsageError
from stridebench.reports.gate import ab
from stridebench.reports.text_table import print_table
from tests.support.fake_store import KEY, FakeStore, empty, meta, record, step

NOISE = (0.01, -0.02, 0.0, 0.02, -0.01, 0.015)


def run(seed: int, ms: float, accepted: int = 1, wait_ns: int = 0, **key: object) -> FakeStore:
    """Six prompts of five steps; in the odd prompts one draft more is accepted."""
    store = empty({**KEY, "seed": seed, **key})
    steps = [[step(accepted + i % 2, 4, ms=ms, wait_ns=wait_ns)] * 5 for i in range(6)]
    store.add(meta("m", label="method"), [record(f"p{i}", one) for i, one in enumerate(steps)])
    return store


def rounds(change: float, count: int = 6, **b: object) -> list[tuple[FakeStore, FakeStore]]:
    """Rounds on a machine that gets slower, in which side b takes ``1 + change`` of the time, up to noise."""
    milliseconds = [10.0 * (1 + 0.1 * k) for k in range(count)]
    factors = [(1 + change) * (1 + NOISE[k]) for k in range(count)]
    return [(run(k, ms), run(k, ms * f, **b)) for k, (ms, f) in enumerate(zip(milliseconds, factors, strict=True))]


def by_metric(pairs: Sequence[tuple[FakeStore, FakeStore]]) -> dict[str, ab.Difference]:
    return {row.metric: row for row in ab.ab(pairs).rows}


def test_a_version_that_takes_a_tenth_longer_is_slower_and_decodes_the_same() -> None:
    rows = by_metric(rounds(0.1))
    seconds = rows["ms_per_token"]
    assert seconds.verdict == "a is faster" and seconds.low < 0.1 < seconds.high and seconds.n == 6
    assert seconds.change == pytest.approx(0.1025, abs=1e-3)  # the noise has a mean of 0.0025
    assert {rows[name].verdict for name in ("tau_minus_1", "acceptance")} == {"equal"}
    assert by_metric(rounds(-0.1))["ms_per_token"].verdict == "b is faster"


def test_equal_versions_show_no_difference_and_what_would_have_been_seen() -> None:
    seconds = by_metric(rounds(0.0))["ms_per_token"]
    assert seconds.word == "no difference seen"
    # (t(0.975, 5) + t(0.9, 5)) * deviation of the logarithms 0.0158 / sqrt(6)
    assert seconds.visible == pytest.approx((2.571 + 1.476) * 0.01585 / 6**0.5, rel=0.04)
    assert seconds.verdict == f"no difference seen; would have seen {seconds.visible:.1%}"


def test_what_one_side_alone_has_is_a_row_without_a_ratio() -> None:
    alive, dead = ([run(k, 10.0, accepted=accepted) for k in range(4)] for accepted in (2, -1))
    for cell in (cell for store in dead for cell in store.sealed_cells.values()):
        cell.steps["accepted"] = 0
    row = by_metric(list(zip(dead, alive, strict=True)))["acceptance"]
    assert (row.a, row.verdict) == (0.0, "only b has any") and row.b > 0
    assert by_metric(list(zip(alive, dead, strict=True)))["acceptance"].change == -1


def test_counts_that_differ_are_tested_over_prompts() -> None:
    pairs = [(run(k, 10.0), run(k, 10.0, accepted=2)) for k in range(4)]
    rows = by_metric(pairs)
    assert rows["tau_minus_1"].word == "higher" and rows["tau_minus_1"].change == pytest.approx(2 / 3)
    assert rows["tau_minus_1"].n == 6


def test_three_rounds_give_no_interval_and_no_winner() -> None:
    seconds = by_metric(rounds(0.3, count=3))["ms_per_token"]
    assert seconds.verdict == "3 rounds are too few for an interval" and seconds.low is None


def test_disturbed_rounds_are_left_out_and_without_enough_others_the_word_is_disturbed() -> None:
    waited = {"wait_ns": 5_000_000}
    assert by_metric(rounds(0.1, **waited))["ms_per_token"].verdict == "disturbed"
    pairs = [*rounds(0.1, count=5), (run(5, 10.0), run(5, 40.0, **waited))]
    seconds = by_metric(pairs)["ms_per_token"]
    assert (seconds.n, seconds.verdict) == (5, "a is faster") and seconds.change < 0.2


def test_cells_of_one_side_are_listed_and_the_shared_ones_compared() -> None:
    pairs = rounds(0.0, count=4)
    for _, b in pairs:
        b.add(meta("new", label="a new method"), [record("p0", [step()] * 3)])
    comparison = ab.ab(pairs)
    assert comparison.only_b == ("a new method",) and not comparison.only_a
    assert {row.label for row in comparison.rows} == {"method"}


def test_different_suites_are_refused_and_other_methods_are_not() -> None:
    ab.check_suites(run(0, 1.0, methods=["x"]), run(0, 1.0, methods=["x", "y"]))
    assert "only one version knows later" in ab.check_suites(run(0, 1.0), run(0, 1.0, later=1))[0]
    with pytest.raises(UsageError, match=r"different suites: suite is 'toy' there and 'other' here"):
        ab.check_suites(run(0, 1.0), run(0, 1.0, suite="other"))


def test_runs_without_a_shared_cell_are_refused() -> None:
    with pytest.raises(UsageError, match="no cell was finished by both"):
        ab.ab([(run(0, 1.0), empty({**KEY, "seed": 0}))])


def test_the_table_names_a_cell_once_and_shows_intervals() -> None:
    out = io.StringIO()
    print_table(ab.table(ab.ab(rounds(0.1))), Console(file=out, width=140))
    text = out.getvalue()
    assert text.count("toy-135m bf16 toy T = 0") == 1 and "a is faster" in text and "+10." in text
