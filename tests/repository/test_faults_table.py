"""Every row of docs/faults.md names tests that exist, and the star says which run on request."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [line for line in (ROOT / "docs" / "faults.md").read_text(encoding="utf-8").splitlines() if line[:2] == "| "][1:]
NAMED = re.compile(r"(\* )?`(tests/\S+\.py)::(test_\w+)`")


def marked(path: Path, name: str) -> bool:
    """Whether a test carries the mark ``faults``, itself or by its file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (test,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    own = [ast.unparse(decorator) for decorator in test.decorator_list]
    of_file = [
        ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    return any(mark.startswith("pytest.mark.faults") for mark in own) or any("pytest.mark.faults" in m for m in of_file)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_a_row_has_four_entries_and_its_tests_exist(row: str) -> None:
    fault, happens, lost, tests = (entry.strip() for entry in row.strip("|").split("|"))
    assert fault and happens and lost
    named = NAMED.findall(tests)
    assert named and NAMED.sub("", tests).strip(", ") == ""
    for star, path, name in named:
        assert marked(ROOT / path, name) == bool(star), f"{path}::{name}"


def test_a_row_with_an_unknown_test_would_fail() -> None:
    with pytest.raises(ValueError, match="not enough values"):
        marked(ROOT / "tests" / "repository" / "test_faults_table.py", "test_that_is_not_there")
