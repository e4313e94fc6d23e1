"""Rows of a data set of the hub."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from stridebench.harness.errors import UsageError
from stridebench.tasks.laion_coco import LaionCoco
from stridebench.tasks.partiprompts import PartiPrompts


class TestHub:
    def test_rows_of_the_hub_are_read_as_those_of_a_file(self, monkeypatch):
        rows = [{"Prompt": "bond", "Category": "Abstract", "Challenge": "Basic", "Note": None}]
        calls = []
        fake = SimpleNamespace(load_dataset=lambda name, split: calls.append((name, split)) or rows)
        monkeypatch.setitem(sys.modules, "datasets", fake)
        (prompt,) = PartiPrompts(hub="someone/parti-prompts", split="test").prompts()
        assert calls == [("someone/parti-prompts", "test")]
        assert (prompt.text, prompt.data["note"]) == ("bond", "")
        rows[0] = {"prompt": "bond"}
        with pytest.raises(UsageError, match=r"someone/parti-prompts, row 1: Prompt is None"):
            PartiPrompts(hub="someone/parti-prompts").prompts()

    def test_without_the_library_or_the_network_the_error_says_so(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(UsageError, match="pip install datasets"):
            LaionCoco(hub="laion/laion-coco").prompts()

        def fail(name: str, split: str) -> None:
            raise ConnectionError("no network")

        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=fail))
        with pytest.raises(UsageError, match="'laion/laion-coco', split 'train', cannot be had: no network"):
            LaionCoco(hub="laion/laion-coco").prompts()
