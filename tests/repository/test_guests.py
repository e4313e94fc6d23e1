"""The base works without its guests: trainings, papers and engines each are reached through registries alone."""

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
TOY = ("run", "--method", "jacobi", "--backbone", "tabular", "--task", "tabular", "--limit", "1", "--max-new-tokens")


@pytest.mark.slow
@pytest.mark.parametrize("guest", GUESTS)
def test_a_checkout_without_a_guest_lists_runs_and_verifies(guest, tmp_path):
    """One process for all verbs: importing torch takes longer than what they do."""
    checkout, packages = tmp_path / "checkout", tmp_path / "packages"
    for room in ("harness", "methods", "tasks", "reports"):
        skipped = shutil.ignore_patterns("__pycache__", "weights.lock")
        shutil.copytree(ROOT / room, checkout / room, ignore=skipped, copy_function=os.link)
    for folder in GUESTS[guest]:
        shutil.rmtree(checkout / folder)
    link_packages(checkout, packages)
    verbs = (["list"], [*TOY, "3", "--out", "run"], ["verify", "sjd", "--quick"])
    script = f"""
from stridebench.harness.cli.main import stride
import stridebench.harness
assert stridebench.harness.__file__.startswith({str(packages)!r})
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
