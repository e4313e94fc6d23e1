"""Documents that would never end, or end in a traceback, are refused with their line."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import yaml

from stridebench.harness.engines.serving.launch import declared
from stridebench.harness.errors import UsageError
from stridebench.harness.plan.yaml_lines import parse
from stridebench.harness.record.store import Store
from tests.support.cli import refused

LAUGHS = "\n".join(
    ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
)
DOCUMENTS = {
    "a list that holds itself": ("methods: &a [*a]", "an alias stands for a list or mapping that holds it"),
    "a mapping that holds itself": ("methods: &a {name: *a}", "an alias stands for a list or mapping that holds it"),
    "a billion laughs": (LAUGHS, "over 20,000 values with its aliases expanded"),
    "a huge number": ("seed: " + "9" * 5_000, "a number of 5,000 digits"),
    "a huge number in hexadecimal": ("seed: 0x" + "f" * 5_000, "a number of 5,002 digits"),
    "a long text": ("a: " + "b" * 4_000_000, "over 4,000,000 characters"),
    "a list as a key": ("? [a, b]\n: c", "a key that is a list or a mapping"),
    "a mapping as a key": ("{{a: b}: c}", "a key that is a list or a mapping"),
    "a day that is none": ("seed: 2020-13-45", "'2020-13-45' is not a value: month must be in 1..12"),
    "deep nesting": ("methods: " + "[" * 100_000, "nested deeper than 40 levels"),
}


@pytest.mark.parametrize(("text", "reason"), DOCUMENTS.values(), ids=DOCUMENTS)
def test_a_document_beyond_the_limits_is_refused_at_once(tmp_path: Path, text: str, reason: str) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(text)
    begin = time.process_time()
    assert reason in refused("run", suite, "--dry-run")
    assert time.process_time() - begin < 5
    with pytest.raises(yaml.YAMLError, match=reason):
        parse(text)


def test_an_alias_stands_for_what_it_names() -> None:
    assert parse("base: &b {n: 1}\nother: *b").data == {"base": {"n": 1}, "other": {"n": 1}}


BOMB = "\n".join(["a0: &a0 [1, 1]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))])


@pytest.mark.parametrize(
    "words",
    [
        ("exchange", "import", "FILE"),
        ("gate", "check", "RUN", "--golden", "FILE"),
        ("paper", "cost", "--cards", "FILE"),
        ("paper", "predict", "RUN", "--machine", "FILE"),
        ("run", "FILE", "--dry-run"),
        ("run", "--method", "sjd", "--backbone", "tabular:x=&a [*a]", "--task", "tabular", "--dry-run"),
    ],
)
def test_every_reader_of_yaml_refuses_nested_aliases(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "bomb.yaml").write_text(BOMB)
    Store.create(tmp_path / "run", {"key": {}, "cells": {}, "engines": {"a": {}}})
    places = {"FILE": tmp_path / "bomb.yaml", "RUN": tmp_path / "run"}
    begin = time.process_time()
    assert "alias" in refused(*(places.get(word, word) for word in words))
    assert time.process_time() - begin < 5


def test_a_declared_server_of_nested_aliases_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bomb.yaml").write_text(BOMB)
    with pytest.raises(UsageError, match="aliases expanded"):
        declared(str(tmp_path / "bomb.yaml"))


def test_yaml_is_read_by_the_bounded_reader_alone() -> None:
    root = Path(__file__).parents[3]
    files = [path for room in ("harness", "methods", "tasks", "reports") for path in (root / room).rglob("*.py")]
    loading = re.compile(r"yaml\.(safe_load|load|unsafe_load|full_load|SafeLoader)|safe_load\(")
    assert [path.name for path in files if loading.search(path.read_text("utf-8"))] == ["yaml_lines.py"]
