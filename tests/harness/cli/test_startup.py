"""Verbs that list start without torch, and a decode imports what it uses."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from stridebench.harness.cli.main import only_lists

STARTED = """
import json, sys
from stridebench.harness.cli.main import main
try:
    main()
finally:
    print(json.dumps([name for name in ("torch", "transformers", "jaxtyping", "pandas") if name in sys.modules]),
          file=sys.stderr)
"""
VERBS = {
    "list": ("list", "--json"),
    "matrix": ("list", "matrix", "--json"),
    "dry run": ("run", "quick", "--dry-run", "--json"),
    "tiny": ("run", "quick", "--tiny", "--dry-run"),
    "papers": ("paper", "list", "--json"),
    "help": ("verify", "--help"),
}


def started(program: str, words: tuple[str, ...], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program with the words of a command line."""
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_lists_imports_no_heavy_library(verb, stride_env):
    done = started(STARTED, VERBS[verb], stride_env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr.splitlines()[-1]) == []


UNCATALOGUED = """
from stridebench.harness import discover
discover.load_all()
from stridebench.harness.cli.main import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["list", "matrix", "dry run", "tiny"])
def test_lists_are_the_same_when_every_module_is_imported(verb, stride_env):
    light = started("from stridebench.harness.cli.main import main; main()", VERBS[verb], stride_env)
    full = started(UNCATALOGUED, VERBS[verb], stride_env)
    assert light.returncode == full.returncode == 0, light.stderr + full.stderr
    assert light.stdout == full.stdout


def test_command_lines_that_only_list_are_recognised():
    assert (
        only_lists(["list"])
        and only_lists(["paper", "list"])
        and only_lists(["run", "quick", "--dry-run"])
        and only_lists(["doctor", "-h"])
    )
    assert not only_lists([]) and not only_lists(["run", "quick"]) and not only_lists(["report", "list"])


@pytest.mark.slow
def test_the_catalogue_is_what_the_registries_say(stride_env):
    """`python -m tests.catalogue --write` makes it so."""
    done = subprocess.run([sys.executable, "-m", "tests.catalogue"], env=stride_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
