"""`stride gate ab`: rounds of two versions, in one process where the test need not start them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from stridebench.harness.record.store import Store
from stridebench.harness.run.checkouts import Version
from tests.support.cli import refused, stride

RUNS = ("a-1", "b-1")
SUITE = """\
methods: [{name: speculative, drafter: "self:layers=1", gamma: 3}]
backbones: [tabular]
tasks: [{name: tabular, limit: 6}]
temperature: 1
max_new_tokens: 6
warmup: 0
"""


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Both versions are the code of the test, run in its process; the sides in the order of their runs."""
    order: list[str] = []

    @contextmanager
    def versions(names: Sequence[str]) -> Iterator[list[Version]]:
        yield [Version(name, Path("python"), commit=name) for name in names]

    def run_turn(version: Version, words: Sequence[str]) -> tuple[int, str]:
        if "--out" in words:
            order.append(version.name)
        if version.name == "breaks":
            return 2, "stride: there is no backbone 'tabular'\n"
        done = stride("run", *words)
        return done.code, done.err

    monkeypatch.setattr("stridebench.harness.run.checkouts.versions", versions)
    monkeypatch.setattr("stridebench.harness.cli.gate.run_turn", run_turn)
    monkeypatch.setattr("stridebench.reports.run_report.RunReport.write", lambda report, folder: [])  # tables and plots
    return order


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "toy.yaml").write_text(SUITE)
    return tmp_path / "toy.yaml"


@pytest.mark.slow
def test_equal_versions_take_turns_and_decode_the_same(turns: list[str], suite: Path, tmp_path: Path) -> None:
    result = stride("gate", "ab", "x", "y", suite, "--rounds", 2, "--out", tmp_path / "runs", "--json")
    assert result.code == 0 and turns == ["x", "y", "y", "x"], result
    counts = [row for row in result.document["rows"] if row["metric"] != "ms_per_token"]
    assert counts and {row["verdict"] for row in counts} == {"equal"}
    assert (result.document["a"], result.document["only_a"]) == ("x: commit x", [])
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["a-1", "a-2", "b-1", "b-2"]
    assert "is not empty" in refused("gate", "ab", "x", "y", suite, "--out", tmp_path / "runs")


def test_a_version_that_cannot_plan_the_suite_is_named(turns: list[str], suite: Path, tmp_path: Path) -> None:
    message = refused("gate", "ab", "breaks", "y", suite, "--out", tmp_path / "runs")
    assert "breaks cannot plan this suite: there is no backbone 'tabular'" in message and not turns
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("option", ["--append=x", "--dry-run", "--resume"])
def test_options_that_a_comparison_sets_are_refused(option: str, suite: Path) -> None:
    assert f"{option.split('=')[0]} is set by the comparison" in refused("gate", "ab", "x", "y", suite, option)


@pytest.mark.faults
def test_two_commits_of_this_code_run_in_worktrees(suite: Path, tmp_path: Path, monkeypatch) -> None:
    """The second commit sleeps in every step; the first runs without a change."""
    root, clone = Path(__file__).resolve().parents[3], tmp_path / "clone"
    for name in ("harness", "methods", "tasks", "reports"):
        shutil.copytree(root / name, clone / name, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    git = ("git", "-C", str(clone), "-c", "user.name=t", "-c", "user.email=t@example.org")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "one")):
        subprocess.run([*git, *words], check=True)
    loop = clone / "harness" / "core" / "loop.py"
    text = loop.read_text()
    slow = "committed = advance(method, run, state)"
    assert text.count(slow) == 1
    loop.write_text(text.replace(slow, f"{slow}; __import__('time').sleep(0.05)"))
    subprocess.run([*git, "commit", "-qam", "two"], check=True)
    monkeypatch.chdir(clone)
    out = tmp_path / "runs"
    result = stride("gate", "ab", "HEAD~1", "HEAD", suite, "--rounds", 1, "--out", out, "--set", "threads=1", "--json")
    assert result.code == 0, result
    rows = {row["metric"]: row for row in result.document["rows"] if row["label"].startswith("speculative")}
    assert rows["tau_minus_1"]["word"] == rows["acceptance"]["word"] == "equal"
    assert rows["ms_per_token"]["change"] > 1 and rows["ms_per_token"]["word"] in ("too few", "disturbed")
    commits = [Store.open(out / run).manifest.provenance.git for run in RUNS]
    assert len({commit["commit"] for commit in commits}) == 2 and not any(commit["dirty"] for commit in commits)
    worktrees = subprocess.run([*git, "worktree", "list"], check=True, capture_output=True, text=True).stdout
    assert len(worktrees.splitlines()) == 1
