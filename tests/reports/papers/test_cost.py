"""Costs of training: the published values by hand, rows that do not follow, cards that cannot be read."""

from __future__ import annotations

import csv
from decimal import Decimal
from pathlib import Path

import pytest

from stridebench.harness.errors import UsageError
from stridebench.reports.papers.cost import (
    CARDS,
    checks,
    cost,
    cost_table,
    follows,
    framework_table,
    markdown,
    read,
    rows,
)
from tests.support.cli import stride

BOOK = read()
MINE = "utilisation: 1e12\ncards:\n  a: {name: A, paradigm: p, source: s, trained: 1e9, tokens: 3e9, batch: 2e6}\n"


@pytest.mark.parametrize(
    ("key", "flop", "steps", "hours"),
    [
        ("baseline", 8.4e22, None, 114942.53),
        ("llada", 1.104e23, 442307.69, 151067.32),
        ("dream", 2.52e22, 150000, 34482.76),
        ("tidar", 7.2e21, 75000, 9852.22),
        ("sbd", 3.36e21, 35000, 4597.70),
        ("eagle3", 9.264e18, None, 12.6765),
        ("eagle", 1.0808e18, None, 1.478927),
        ("cross_regression", 4.14128e18, 17456.05, 5.66678),
    ],
)
def test_the_formula_gives_the_published_costs(key: str, flop: float, steps: float | None, hours: float) -> None:
    result = cost(BOOK.cards[key], BOOK.utilisation)
    assert result.flop == pytest.approx(flop, rel=1e-9) and result.hours == pytest.approx(hours, rel=1e-5)
    assert result.steps == (None if steps is None else pytest.approx(steps, rel=1e-6))


@pytest.mark.parametrize(
    ("printed", "value", "expected"),
    [
        ("9900", 9852.2, True),
        ("9900", 9849, False),
        ("18", 5.67, False),
        ("1.1e6", 1.0808e6, True),
        ("150000", 146000, True),
    ],
)
def test_a_value_follows_where_it_rounds_to_what_is_printed(printed: str, value: float, expected: bool) -> None:
    assert follows(Decimal(printed), value) is expected


def test_rows_that_do_not_follow_from_their_formula_are_flagged() -> None:
    marked = {row["key"]: row["follows"] for row in rows(BOOK, BOOK.utilisation)}
    assert [key for key, word in marked.items() if word == "no"] == ["eagle3", "eagle", "cross_regression"]
    assert list(checks(BOOK.cards["cross_regression"], BOOK.utilisation)) == [
        "Cross-Regression, Table 5: 18 h printed, 5.66678 by its formula (x 3.18)",
        "Cross-Regression, Table 1: 20 h printed, 5.66678 by its formula (x 3.53)",
    ]
    assert list(checks(BOOK.cards["eagle3"], BOOK.utilisation)) == [
        "EAGLE-3, Table 5: 900 h printed, 12.6765 by its formula (x 71)",
        "EAGLE-3, Table 5: 800000 steps printed; no batch to count them by",
        "EAGLE-3: its 10 epochs are not in its tokens; with them 9.3e+07 TFLOP, 127 h",
    ]
    assert not list(checks(BOOK.cards["llada"], BOOK.utilisation))


def test_the_frameworks_come_from_the_cards() -> None:
    sheet = framework_table(BOOK, {"speculative": "SAME_LAW", "absent": "APPROXIMATE"})
    rows_by_name = {row[0]: row[1:] for row in sheet.rows}
    assert len(rows_by_name) == 8 and [column.title for column in sheet.columns[1:]] == [
        framework.name for framework in BOOK.frameworks.values()
    ]
    assert rows_by_name["KV caching"] == ["yes", "yes", "no"] and rows_by_name["causality"][1] == "fully causal"
    assert rows_by_name["trained"] == ["Cross-Regression", "EAGLE-3, EAGLE", "LLaDA, Dream"]
    assert sheet.notes == ["Speculative decoding, claimed here: speculative SAME_LAW"]


def test_the_verb_prints_and_writes_both_tables(tmp_path: Path) -> None:
    page, table = tmp_path / "cost.md", tmp_path / "cost.csv"
    result = stride("paper", "cost", "--markdown", page, "--csv", table)
    assert result.code == 0 and "151,067" in result.out and "no: locked by schedule" in result.out
    assert "Cross-Regression, Table 1: 20 h printed" in result.out
    sheets = [cost_table(BOOK, BOOK.utilisation), framework_table(BOOK, {})]
    assert page.read_text().startswith(markdown(sheets[:1]).rstrip()) and sheets[1].title in page.read_text()
    written = list(csv.DictReader(table.open()))
    assert len(written) == 8 and float(written[-1]["hours"]) == pytest.approx(5.66678, rel=1e-5)
    assert "20 h printed" in written[-1]["flags"]
    document = stride("paper", "cost", "--utilisation", "406e12", "--json").document
    assert document["cost"][1]["hours"] == pytest.approx(151067.32 / 2, rel=1e-5) and len(document["frameworks"]) == 3


def test_a_user_can_give_cards(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(MINE)
    (row,) = stride("paper", "cost", "--cards", tmp_path / "mine.yaml", "--json").document["cost"]
    assert (row["tflop"], row["steps"], row["hours"], row["follows"]) == (1.8e7, 1500, pytest.approx(5000), "yes")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("trained: 1e9", "trained: none", "cards a trained: "),
        ("batch", "size", "cards a size: Extra inputs"),
        ("utilisation: 1e12", "", "utilisation: Field required"),
        ("batch: 2e6", "framework: f", "there is no framework 'f' below `frameworks`"),
        ("batch: 2e6", "printed: {Table 5: {hours: few}}", "cards a printed Table 5 hours: "),
        ("cards:", "frameworks: {f: {name: F}}\ncards:", "frameworks f methods: Field required"),
        ("cards:", "cards: [", "cannot read the cards"),
    ],
)
def test_cards_that_cannot_be_read_are_named_with_their_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = tmp_path / "cards.yaml"
    file.write_text(MINE.replace(old, new))
    with pytest.raises(UsageError) as raised:
        read(file)
    assert message in str(raised.value) and str(file) in str(raised.value)


def test_a_missing_file_is_named() -> None:
    result = stride("paper", "cost", "--cards", "nowhere.yaml")
    assert result.code == 2 and "cannot read the cards nowhere.yaml" in result.err and str(CARDS) in result.err
