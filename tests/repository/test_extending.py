"""Files of an addition: a method is one file and its test, a backbone one preset, a task one file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stridebench.harness.run.checkouts import link_packages

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("harness", "methods", "tasks", "reports")

METHOD = '''"""One token a pass."""

from __future__ import annotations

from dataclasses import dataclass

from stridebench.harness.core.draft import Acceptance, Path
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.registry import METHODS


@METHODS.register("added_method")
@dataclass(frozen=True)
class AddedMethod(Method[None]):
    """One token a pass."""

    claim = Claim.SAME_LAW
    source = "tests/repository"

    def start(self, run: Run) -> None:
        return None

    def step(self, run: Run, state: None) -> Acceptance:
        p = run.probs(run.target.forward())
        return Acceptance(Path.root(p), run.draws.categorical(p, "resid")[0])
'''
METHOD_TEST = '''"""The added method is exact."""

from stridebench.harness.proof.cases import cases_of
from stridebench.harness.proof.prove import prove
from stridebench.methods.added_method import AddedMethod


def test_the_added_method_is_exact():
    assert prove(AddedMethod(), cases_of(AddedMethod(), 8)).plain("added_method")["verdict"] == "exact"
'''
PRESET = "adapter: tabular\nvocabulary: 5\nlicence: Apache-2.0\nnote: five tokens\n"
TASK = '''"""Two prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stridebench.harness.core.task import Prompt, Task
from stridebench.harness.registry import TASKS


@TASKS.register("added_task")
@dataclass(frozen=True)
class AddedTask(Task):
    """Two prompts."""

    source = "tests/repository"
    modality = "tabular"

    def prompts(self) -> Sequence[Prompt]:
        return Prompt("added/0", tokens=(1, 2)), Prompt("added/1", tokens=(2, 0))
'''
FILES = {
    "methods/added_method.py": METHOD,
    "tests/methods/test_added_method.py": METHOD_TEST,
    "harness/backbones/presets/added-backbone.yaml": PRESET,
    "tasks/added_task.py": TASK,
}
"""All that the three additions write."""


@pytest.fixture()
def tree(tmp_path: Path) -> Path:
    """A copy of the four packages with the additions, which links to their weights."""
    root = tmp_path / "tree"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__", "weights"))
    (root / "harness/backbones/weights").symlink_to(ROOT / "harness/backbones/weights")
    link_packages(root, root)
    (root / "tests/methods").mkdir(parents=True)
    for name, text in FILES.items():
        (root / name).write_text(text)
    return root


def python(tree: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.release
def test_the_additions_are_listed_and_run_and_the_methods_test_passes(tree, tmp_path):
    """One process for all: importing torch takes longer than what they do."""
    words = ("--method", "added_method", "--backbone", "added-backbone", "--task", "added_task")
    run = ["run", *words, "--max-new-tokens", "3", "--json", "--out", str(tmp_path / "run")]
    script = f"""
import pytest
from stridebench.harness.cli.main import stride
for words in (["list", "--json"], {run!r}):
    assert not stride(words, standalone_mode=False)
    print(end="\\0")
print(int(pytest.main(["-q", "-p", "no:cacheprovider", "tests/methods/test_added_method.py"])))
"""
    listed, ran, tested = python(tree, "-c", script).split("\0")
    names = {(row["kind"], row["name"]) for row in json.loads(listed)}
    assert {("method", "added_method"), ("task", "added_task"), ("backbone", "added-backbone")} <= names
    counts = json.loads(ran)
    assert (counts["done"], counts["failed"], counts["skipped"]) == (2, 0, 0)
    assert "1 passed" in tested and tested.endswith("\n0\n")
