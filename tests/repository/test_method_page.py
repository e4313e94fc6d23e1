"""docs/method.md names what exists, and `stride new method` writes what works."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from stridebench.harness.core import Draft, Run
from tests.support.cli import refused, stride

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`(stridebench\.(?:harness|methods)[\w.]*:[\w.]+)`", PAGE)))
OF_RUN = sorted(set(re.findall(r"`run\.(\w+)`", PAGE)))


def resolved(name: str) -> object:
    module, _, path = name.partition(":")
    item: object = importlib.import_module(module)
    for part in path.split("."):
        item = getattr(item, part)
    return item


def test_the_names_of_the_page_are_public_and_one_that_is_gone_is_noticed():
    for name in NAMES:
        resolved(name)
        assert not any(part.startswith("_") for part in re.split("[.:]", name)), name
    with pytest.raises(AttributeError):
        resolved("stridebench.harness.core:Verdict.nothing")


def test_the_page_names_what_a_step_needs():
    assert {"stridebench.harness.core:Draft", "stridebench.harness.core:Acceptance"} <= set(NAMES)
    assert {"probs", "target", "draws"} <= set(OF_RUN)
    assert set(OF_RUN) <= {*dir(Run), *Run.__dataclass_fields__}
    assert {"probs", "parents"} <= set(Draft.__dataclass_fields__)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new") / "package"
    outcome = stride("new", "method", "echo_last", "--out", folder)
    assert outcome.code == 0, outcome
    assert f"pip install -e {folder}" in outcome.out
    return folder


def test_the_package_has_an_entry_point_a_method_and_a_test(package):
    files = sorted(path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file())
    assert files == ["pyproject.toml", "stride_echo_last.py", "tests/test_echo_last.py"]
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["stridebench.methods"] == {"echo_last": "stride_echo_last:EchoLast"}
    placeholders = re.compile(r"@(?!METHODS|dataclass|classmethod)")
    assert not any(placeholders.search(path.read_text()) for path in package.rglob("*.py"))


PASS_AND_FAIL = """
import pytest, stride_echo_last
words = ["-q", "-p", "no:cacheprovider", "tests"]
assert pytest.main(words) == 0
right = stride_echo_last.verify_chain
stride_echo_last.verify_chain = lambda x, q, p, *others: right(x, q, p.roll(1, 1), *others)
assert pytest.main([*words, "-k", "exact"]) == 1
"""


@pytest.mark.slow
def test_the_tests_of_the_package_pass_and_fail_with_a_mistake(package):
    environment = {**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", PASS_AND_FAIL]
    done = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout and "1 failed" in done.stdout


def test_nothing_is_overwritten(package, tmp_path):
    before = (package / "stride_echo_last.py").read_bytes()
    assert "is there already and not empty" in refused("new", "method", "other_name", "--out", package)
    assert (package / "stride_echo_last.py").read_bytes() == before
    (tmp_path / "file").write_text("mine")
    assert "is there already" in refused("new", "method", "other_name", "--out", tmp_path / "file")


@pytest.mark.parametrize("name", ["draft", "acceptance", "method", "usage_error"])
def test_a_class_never_hides_what_its_file_imports(name, tmp_path):
    assert stride("new", "method", name, "--out", tmp_path).code == 0
    tree = ast.parse((tmp_path / f"stride_{name}.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert len(classes) == 1 and not classes & imported


def test_the_next_commands_quote_a_folder_with_a_space(tmp_path):
    outcome = stride("new", "method", "echo_last", "--out", tmp_path / "two words")
    assert f"pip install -e '{tmp_path}/two words' pytest" in outcome.out
    assert f"pytest '{tmp_path}/two words'" in outcome.out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("My-Method", "not lower_snake_case"),
        ("class", "a keyword of Python"),
        ("sjd", "there is a method 'sjd' already"),
    ],
)
def test_a_name_that_cannot_be_registered_is_refused(name, words, tmp_path):
    assert words in refused("new", "method", name, "--out", tmp_path / "p")
    assert not (tmp_path / "p").exists()
