"""Contact sheets of outputs."""

import pandas as pd

from stridebench.reports.contact_sheets import row_name, spread


def test_a_sheet_shows_prompts_spread_over_the_set():
    assert spread([f"p{i}" for i in range(20)], 4) == ("p0", "p5", "p10", "p15")
    assert spread(["a", "b", "c"], 2) == ("a", "b") and spread(["a"], 8) == ("a",) and spread([], 8) == ()


def test_a_row_is_named_by_its_caption_where_that_is_short():
    assert row_name(pd.Series({"prompt_text": "a green fish"}), "single/0") == "a green fish"
    for sample in (pd.Series({"prompt_text": "def f(): " * 20}), pd.Series({"prompt_text": None}), pd.Series(), None):
        assert row_name(sample, "single/0") == "single/0"
