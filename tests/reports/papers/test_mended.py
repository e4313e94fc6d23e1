"""Both counts of the columns whose definition changed, by hand."""

from __future__ import annotations

import pandas as pd
import pytest

from stridebench.reports.papers import mended
from tests.support.fake_store import FakeStore, empty, meta, record, step

TOTALS = pd.Series(
    {
        "levels": 11.0,
        "levels_built": 15.0,
        "steps": 3.0,
        "accepted": 7.0,
        "tested": 10.0,
        "free_accepted": 5.0,
        "free_tested": 8.0,
        "forced": 2.0,
        "logprob": -8.0,
        "output": 10.0,
        "free": 8.0,
        "completion": 6.0,
        "nfe": 4.0,
        "masked": 1.0,
        "exact_match": 0.0,
        "exact_match_flexible": 2.0,
        "clip_score": 61.72,
        "outputs": 2.0,
    }
)


@pytest.mark.parametrize(
    ("title", "before", "now"),
    [
        ("levels of a tree", 11 / 3, 5.0),
        ("accepted / tested", 0.7, 0.625),
        ("log p of a token", -0.8, -1.0),
        ("tokens a pass", 2.5, 1.5),
        ("GSM8K", 0.0, 1.0),
        ("CLIP score", 30.86, 0.3086),
    ],
)
def test_both_counts_by_hand(title: str, before: float, now: float) -> None:
    (figure,) = (one for one in mended.MENDED if one.title.startswith(title))
    assert figure.shown(TOTALS)
    assert figure.before(TOTALS) == pytest.approx(before) and figure.now(TOTALS) == pytest.approx(now)
    assert not figure.shown(pd.Series({"steps": 3.0, "masked": 0.0}))


def test_a_cell_without_a_difference_has_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    store = empty()
    store.add(meta("a", method="sjd", label="sjd"), [record("p", [step(2, 2), step(1, 2)])])
    assert isinstance(store, FakeStore)
    assert list(mended.rows([store])) == []  # type: ignore[list-item]  # a stored run in memory
    monkeypatch.setattr(mended, "sums", lambda store, name: TOTALS)
    lines = list(mended.rows([store]))  # type: ignore[list-item]  # the same
    assert len(lines) == len(mended.MENDED) and lines[0][-2:] == ("3.67", "5.00")
