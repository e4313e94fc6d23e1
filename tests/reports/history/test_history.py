"""Change points of synthetic nights, and how a history is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stridebench.harness.errors import UsageError
from stridebench.reports.history import report
from stridebench.reports.history.series import Change, Series, changes, read, series
from tests.power import history as power
from tests.support.nights import line, noisy, write


def one(values: list[float]) -> Series:
    (only,) = series([line(night, value) for night, value in enumerate(values)])
    return only


def found(values: list[float]) -> list[Change]:
    return changes(one(values))


@pytest.mark.parametrize("seed", range(4))
def test_a_step_of_four_percent_is_found_within_three_nights(seed: int) -> None:
    """60 nights with a deviation of 0.8 % and a step at the 40th: on the third night after it, and at the end."""
    values = noisy(60, seed, step=-0.04)
    for nights in (43, 60):
        (change,) = found(values[:nights])
        assert abs(int(change.first.run.removeprefix("runs/")) - 40) <= 3
        assert change.relative == pytest.approx(-0.04, abs=0.02)
    night = int(change.first.run.removeprefix("runs/"))
    assert change.commits == f"{f'{night - 1:040x}'[::-1][:12]}..{f'{night:040x}'[::-1][:12]}"


@pytest.mark.parametrize("seed", range(4))
def test_sixty_nights_without_a_step_have_no_change(seed: int) -> None:
    assert found(noisy(60, seed)) == []


@pytest.mark.audit
def test_false_alarms_and_finds_of_many_histories() -> None:
    """500 histories each: at most 1 in 100 without a step has a change, and 95 in 100 steps are found in 3 nights."""
    assert sum(bool(found(noisy(60, seed))) for seed in range(500)) <= 5
    assert sum(bool(found(noisy(43, seed, step=-0.04))) for seed in range(500)) >= 475


@pytest.mark.parametrize("nights", [12, 30])
@pytest.mark.parametrize("kind", ["odd", "ar"])
def test_odd_nights_and_correlated_noise_are_no_changes(nights: int, kind: str) -> None:
    """Forty series at a fixed seed; with false alarms of 5 % one reseeding in 200 has more than six."""
    rng = np.random.default_rng(nights)
    alarms = sum(bool(found(list(power.SERIES[kind](rng, nights)))) for _ in range(40))
    assert alarms <= 6


def test_one_odd_night_is_no_change_and_equal_nights_have_none() -> None:
    values = noisy(60, 1)
    values[30] *= 0.8
    assert found(values) == []
    assert found([0.6] * 60) == []
    assert found([0.6] * 5) == found([0.6, 0.6, 0.6, 0.3, 0.3]) == []


def test_a_step_of_figures_without_noise_is_exact() -> None:
    (change,) = found([0.6] * 10 + [0.57] * 3)
    assert (change.before, change.after) == pytest.approx((0.6, 0.57))
    assert (change.last.run, change.first.run) == ("runs/9", "runs/10")


@pytest.mark.parametrize(("half", "changed"), [(None, True), (0.02, True), (0.2, False)])
def test_a_step_far_within_the_interval_of_each_night_is_no_change(half: float | None, changed: bool) -> None:
    """A step of 0.01, beside standard errors of 0.01 and 0.1; a tenth of the latter could make it in 15 nights."""
    values = [0.6] * 15 + [0.61] * 15
    bounds = [{} if half is None else {"acceptance_low": x - half, "acceptance_high": x + half} for x in values]
    (only,) = series([line(night, x, **more) for night, (x, more) in enumerate(zip(values, bounds, strict=True))])
    assert only.error == pytest.approx(half / 1.96 if half else 0.0) and bool(changes(only)) == changed


def test_two_steps_are_two_changes() -> None:
    steps = found([0.6] * 10 + [0.5] * 10 + [0.6] * 10)
    assert [step.first.run for step in steps] == ["runs/10", "runs/20"]


def test_holes_are_counted_and_values_that_are_no_numbers_left_out() -> None:
    values: list[float | None] = [0.6] * 4 + [None, float("nan")] + [0.6] * 4
    (only,) = series([line(night, value) for night, value in enumerate(values)])
    assert (len(only.values), only.holes) == (8, 2)
    skipped = [line(0, 0.6), line(1, 0.6), line(2, 0.1, status="skipped"), line(3, 0.6)]
    assert series(skipped)[0].holes == 1


def test_nights_of_several_zones_are_in_the_order_of_time(tmp_path: Path) -> None:
    times = {2.0: "2026-01-01T23:00:00-05:00", 1.0: "2026-01-02T03:00:00+00:00", 3.0: "2026-01-02 05:00:00"}
    write(tmp_path / "a.jsonl", [line(0, value, created=time) for value, time in times.items()])
    (only,) = series(read(tmp_path))
    assert only.values == (1.0, 2.0, 3.0)


def test_other_machines_are_series_of_their_own() -> None:
    lines = [line(night, 0.6, speedup=1.5, scr=2.0, machine="a" if night < 3 else "b") for night in range(6)]
    names = [(one.metric, one.machine, len(one.values)) for one in series(lines)]
    assert ("acceptance", None, 6) in names and ("scr", None, 6) in names
    assert ("speedup", "b", 3) in names and ("speedup", "a", 3) in names


@pytest.mark.parametrize(
    "text", [b"{", b"[" * 100_000, b'{"cell": "c\xff"}', b'{"cell": "c0", "crea', b"[1]", b'{"cell": ""}']
)
def test_bytes_that_are_no_line_are_an_error_that_names_it(text: bytes, tmp_path: Path) -> None:
    path = write(tmp_path / "history.jsonl", [line(0, 0.6)])
    path.write_bytes(path.read_bytes() + text)
    with pytest.raises(UsageError, match=r"history\.jsonl, line 2: no (JSON|line of a history)"):
        read(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"cell": 1},
        {"created": "2026-13-45"},
        {"created": "0001-01-01T00:00:00+02:00"},
        {"temperature": "hot"},
        {"machine": {"cores": 2}},
        {"status": ["done"]},
        {"git": "abc"},
        {"acceptance": "0.6"},
        {"acceptance": True},
        {"acceptance": 10**400},
        {"acceptance": -1e308},
        {"score.right": {"mean": 1}, "score.right_low": 0.5},
    ],
    ids=range(12),
)
def test_a_wrong_value_is_an_error_that_names_its_line(change: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path / "history.jsonl", [line(0, 0.6), line(1, 0.6, **change)])
    with pytest.raises(UsageError, match=r"history\.jsonl, line 2"):
        read(tmp_path)


def test_a_folder_without_lines_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="stride gate nightly SUITE --history"):
        read(tmp_path)
    (tmp_path / "history.jsonl").write_bytes(b"\n")
    with pytest.raises(UsageError, match="no line is in it"):
        read(tmp_path)


def test_a_line_that_stands_twice_counts_once_and_two_that_differ_are_an_error(tmp_path: Path) -> None:
    """A folder that was copied into itself; a NaN equals itself."""
    lines = [line(night, value) for night, value in enumerate([0.5, float("nan"), 0.6])]
    write(tmp_path / "a.jsonl", lines)
    write(tmp_path / "b.jsonl", lines)
    assert len(read(tmp_path)) == 3
    write(tmp_path / "b.jsonl", [line(2, 0.7)])
    with pytest.raises(UsageError, match=r"b\.jsonl, line 1 and .*a\.jsonl, line 3 tell different things"):
        read(tmp_path)


def test_nights_of_another_suite_are_no_holes() -> None:
    own = [line(night, 0.6, suite="a") for night in (0, 2, 6, 8, 10, 12)]
    other = [line(night, 0.3, suite="b", cell="c1") for night in (1, 3, 5, 7, 9, 11)]
    assert [(one.holes, one.missing) for one in series([*own, *other])] == [(0, 0), (0, 0)]


@pytest.mark.parametrize(
    "lost", [{"acceptance": float("nan")}, {"acceptance": None}, {"acceptance": "inf"}, {"status": "failed"}], ids=str
)
def test_a_series_whose_latest_nights_have_no_value_is_inconclusive(lost: dict[str, object], tmp_path: Path) -> None:
    lines = [line(night, 0.6) for night in range(8)] + [line(night, 0.6, **lost) for night in range(8, 10)]
    results = report.findings(series(read(write(tmp_path / "history.jsonl", lines))))
    assert [finding.series.missing for finding in results] == [2]
    assert report.summary(results).startswith("Inconclusive: no change can be found yet in 1 series")
    assert "Inconclusive" in report.markdown(results)
    (row,) = report.document(results)
    assert (row["verdict"], row["reason"]) == ("inconclusive", "no value in the latest 2 nights")


def test_a_figure_that_one_machine_ended_and_another_goes_on_with_is_not_missing() -> None:
    lines = [line(night, 0.6, speedup=1.5, machine="a" if night < 7 else "b") for night in range(14)]
    assert {one.missing for one in series(lines)} == {0}


def test_the_verdict_of_a_series_says_whether_a_change_was_looked_for() -> None:
    words = [report.findings([one(values)])[0].verdict for values in ([0.6] * 7, [0.6] * 8, [0.6] * 4 + [0.5] * 4)]
    assert words == ["inconclusive", "no change", "changed"]


def test_the_table_names_the_commits_and_the_figure_is_drawn(tmp_path: Path) -> None:
    results = report.findings([one([0.6] * 10 + [0.57] * 5)])
    page = report.markdown(results)
    assert "-5.0%" in page and "900000000000..a00000000000" in page
    still = report.findings([one([0.6] * 10)])
    assert "No change was found in 1 series." in report.markdown(still)
    assert report.summary([*results, *still]).startswith("1 of 2 series changed, latest ")
    assert [len(table.rows) for table in report.tables([*results, *still])] == [1, 1]
    assert report.tables(still)[1].notes == ["1 more series have one value in all nights"]
    assert report.figure(results, tmp_path / "history.png") == tmp_path / "history.png"
    assert (tmp_path / "history.png").stat().st_size > 5000
    assert report.figure([], tmp_path / "none.png") is None
    (row,) = report.document(results)
    assert row["changes"][0]["commits"] == "900000000000..a00000000000"
