"""Contact sheets of outputs."""

from reports.contact_sheets import spread


def test_a_sheet_shows_prompts_spread_over_the_set():
    assert spread([f"p{i}" for i in range(20)], 4) == ("p0", "p5", "p10", "p15")
    assert spread(["a", "b", "c"], 2) == ("a", "b") and spread(["a"], 8) == ("a",) and spread([], 8) == ()
