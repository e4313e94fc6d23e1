"""Pages are opened in Chromium where it is installed, and the result says so where it is not."""

from __future__ import annotations

import shutil
from importlib.util import find_spec

import pytest

from stridebench.harness.bench import openings, scale
from stridebench.harness.bench.paired import Settings


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openings, "find_spec", lambda name: None)
    assert openings.missing() == "playwright is not installed: pip install '.[browser]'"
    monkeypatch.setattr(openings, "find_spec", lambda name: name)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("STRIDE_CHROMIUM", raising=False)
    assert openings.missing() == "no Chromium: apt-get install chromium, or $STRIDE_CHROMIUM"
    monkeypatch.setenv("STRIDE_CHROMIUM", "/opt/chromium")
    assert openings.missing() is None


@pytest.mark.browser
@pytest.mark.skipif(find_spec("playwright") is None, reason="not installed: playwright")
def test_a_page_that_opens_slowly_fails_its_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    if lacking := openings.missing():
        pytest.skip(lacking)
    monkeypatch.setattr(scale, "PAGED_SAMPLES", 5)
    monkeypatch.setattr(scale, "OPENING", 0.001)
    result = scale.pages("scale pages", Settings())
    assert "opened in Chromium: index " in result.note and ", output " in result.note
    assert (result.verdict, result.ratio < 1) == ("fail", True)
