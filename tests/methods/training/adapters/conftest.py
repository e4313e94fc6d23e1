"""A tiny Llama as preset."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_llama import TINY


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "tiny-llama.yaml").write_text(TINY)
    monkeypatch.setenv("STRIDE_PRESETS", str(tmp_path / "presets"))
