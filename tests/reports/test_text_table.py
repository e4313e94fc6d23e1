"""Tables of text: columns that fit, and how numbers are written."""

from __future__ import annotations

import pandas as pd

from stridebench.reports import text_table
from stridebench.reports.text_table import UNMEASURED, Column, TextTable


def test_a_narrow_terminal_folds_names_and_headings_and_keeps_what_was_measured() -> None:
    columns = (Column("row", "cell", rank=0), Column("p", "a figure, printed", rank=3))
    columns = (*columns, Column("m", "a figure, measured", rank=2))
    name = "multi_head heads=some-heads (levels=3) delta=0.7"
    rows = [[name, "2.02", "1.35 [1.05, 1.76]"], ["other", "-", UNMEASURED]]
    table = TextTable("t", columns, rows, [])
    assert [title for title, *_ in text_table.fit_columns(table, 100).values()] == [column.title for column in columns]
    assert text_table.fit_columns(table, 100)[2][1:] == ["1.35 [1.05, 1.76]", UNMEASURED]
    # 16 for the longest word of a name, 7 and 8 for those of headings, and gaps
    narrow = text_table.fit_columns(table, 35)
    assert list(narrow) == [0, 1, 2] and narrow[0][1] == name and narrow[2] == ["a\nfigure,\nmeasured", "1.35", "-"]
    assert list(text_table.fit_columns(table, 34)) == [0, 2]


def test_numbers_have_one_format() -> None:
    row = pd.Series({"x": 1.4249, "x_low": 1.31, "x_high": 1.551, "x_n": 9})
    assert text_table.interval(row, "x") == "1.42 [1.31, 1.55]"
    assert text_table.interval(row, "y") == "-"
    assert text_table.interval(pd.Series({"x": 1.4, "x_low": None, "x_n": 3}), "x") == "1.40 (n=3)"
