"""The page of a history: changes with their commits, and figures whose texts are escaped."""

from __future__ import annotations

from pathlib import Path

import pytest

from stridebench.reports.history.report import findings
from stridebench.reports.history.series import series
from stridebench.reports.html import history
from tests.support.nights import line


@pytest.fixture(autouse=True)
def without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stridebench.reports.html.text.write", lambda folder: None)


def test_a_change_stands_with_its_commits_above_the_figures(tmp_path: Path) -> None:
    results = findings(series([line(n, 0.6 if n < 10 else 0.57, label="<b>sjd") for n in range(13)]))
    [change] = results[0].changes
    text = history.write(results, "nights", tmp_path / "site").read_text()
    assert change.commits in text and "\N{HYPHEN-MINUS}5.0 %" in text and "0.570" in text
    assert "<b>sjd" not in text and "&lt;b&gt;sjd" in text and 'id="figure-series-0"' in text


def test_a_history_without_a_change_says_so(tmp_path: Path) -> None:
    results = findings(series([line(n, 0.6) for n in range(13)]))
    assert "No change was found." in history.write(results, "nights", tmp_path / "site").read_text()
