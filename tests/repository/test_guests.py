"""The base works without its guests: trainings, papers and engines each are reached through registries alone."""

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stridebench.harness.run.checkouts import link_packages

ROOT = Path(__file__).resolve().parents[2]
GUESTS = {
    "trainings": ("harness/train", "methods/training", "tasks/training"),
    "papers": ("reports/papers", "reports/data/papers", "tasks/suites/papers"),
    "engines": ("harness/engines",),
}
REMOVED = [pytest.param((guest,), id=guest, marks=pytest.mark.release) for guest in GUESTS]
ENGINES_OF_A_SUITE = "{backbones: [tabular], tasks: [{name: tabular, limit: 1}], max_new_tokens: 4, engines: [vllm]}"
TOY = ("run", "--method", "prompt_lookup", "--backbone", "tabular", "--task", "tabular", "--limit", "1")


def copied(source: str, target: str) -> None:
    """Copy a module and link other files: a link changes the ctime, by which kept laws see that a module was edited."""
    (shutil.copy2 if source.endswith((".py", ".pyc")) else os.link)(source, target)


@pytest.mark.slow
@pytest.mark.parametrize("guests", [pytest.param(tuple(GUESTS), id="all"), *REMOVED])
def test_a_checkout_without_its_guests_lists_runs_and_verifies(guests, tmp_path):
    """One process for all verbs: importing torch takes longer than what they do."""
    checkout, packages = tmp_path / "checkout", tmp_path / "packages"
    for room in ("harness", "methods", "tasks", "reports"):
        skipped = shutil.ignore_patterns("weights.lock")
        shutil.copytree(ROOT / room, checkout / room, ignore=skipped, copy_function=copied)
    for folder in itertools.chain(*(GUESTS[guest] for guest in guests)):
        shutil.rmtree(checkout / folder)
    link_packages(checkout, packages)
    verbs = (["list"], [*TOY, "--max-new-tokens", "3", "--out", "run"], ["verify", "sjd", "--quick"])
    (tmp_path / "suite.yaml").write_text(ENGINES_OF_A_SUITE)
    script = f"""
import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
from stridebench.harness.errors import StrideError
from stridebench.harness.cli.main import stride
import stridebench.harness
assert stridebench.harness.__file__.startswith({str(packages)!r})
try:
    stride(["run", "suite.yaml", "--dry-run"], standalone_mode=False)
except StrideError as error:
    print("refused:", error)
for words in {verbs!r}:
    try:
        code = stride(words, standalone_mode=False)
    except SystemExit as end:
        code = end.code
    assert not code, (words, code)
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(packages), "STRIDE_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "jacobi" in done.stdout
    assert "the engine 'vllm' is not part of this installation" in done.stdout or "engines" not in guests
