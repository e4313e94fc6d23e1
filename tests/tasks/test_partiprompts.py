"""PartiPrompts."""

from __future__ import annotations

import pytest

from stridebench.harness.errors import UsageError
from stridebench.tasks.partiprompts import PartiPrompts
from tests.support.picture_benchmarks import PARTI, write_text


class TestPartiPrompts:
    def test_columns_and_quotes_are_read(self, picture_tasks):
        first, second = picture_tasks["partiprompts"].prompts()
        assert (first.id, first.text, first.category) == ("parti/0000", "bond", "Abstract")
        assert first.data == {"challenge": "Basic", "note": "Biology"}
        assert second.text == 'a "robot" sign'

    def test_malformed_data_is_refused(self, tmp_path):
        path = write_text(tmp_path / "p.tsv", PARTI + "no category\n")
        with pytest.raises(UsageError, match=r"p\.tsv:4: 1 field, and the header has 4"):
            PartiPrompts(file=str(path)).prompts()
        path = write_text(tmp_path / "p.tsv", "Text\tCategory\nx\ty\n")
        with pytest.raises(UsageError, match=r"p\.tsv:2: Prompt is None, not a text; found the fields Category, Text"):
            PartiPrompts(file=str(path)).prompts()
