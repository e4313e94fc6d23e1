"""Verbs that list start without torch; with the libraries they print the same."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from stridebench.harness.cli.main import only_lists
from stridebench.harness.cli.run import EXECUTORS
from stridebench.harness.platform.stand_ins import LIBRARIES, OFF
from stridebench.harness.run import executors

STARTED = """
import json, sys
from stridebench.harness.cli.main import main
libraries = sys.argv.pop().split(",")
try:
    main()
finally:
    real = [name for name in libraries if getattr(sys.modules.get(name), "__file__", None)]
    print(json.dumps({"real": real}), file=sys.stderr)
"""
VERBS = {
    "list": ("list", "--json"),
    "matrix": ("list", "matrix", "--json"),
    "dry run": ("run", "quick", "--dry-run", "--json"),
    "help": ("verify", "--help"),
}


def started(words: tuple[str, ...], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A verb in a process of its own."""
    command = [sys.executable, "-c", "from stridebench.harness.cli.main import main; main()", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_lists_imports_no_heavy_library(verb, stride_env):
    command = [sys.executable, "-c", STARTED, *VERBS[verb], ",".join(sorted(LIBRARIES))]
    done = subprocess.run(command, env=stride_env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr.splitlines()[-1]) == {"real": []}


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["list", "matrix", "dry run"])
def test_lists_are_the_same_with_the_real_libraries(verb, stride_env):
    light, full = (started(VERBS[verb], environment) for environment in (stride_env, {**stride_env, OFF: "1"}))
    assert light.returncode == full.returncode == 0, light.stderr + full.stderr
    assert light.stdout == full.stdout


NEEDS_TORCH = """
import sys
from stridebench.harness.cli import list as verb
from stridebench.harness.cli.main import main

def rows():
    import torch
    return [{"name": "sum", "kind": "method", "value": torch.ones(3).sum().item()}]

verb.ROWS["methods"] = rows
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("installed_before", [False, True])
def test_a_verb_that_uses_a_stand_in_restarts_with_the_library(installed_before, stride_env):
    early = "from stridebench.harness.platform import stand_ins; stand_ins.install()\n" if installed_before else ""
    command = [sys.executable, "-c", early + NEEDS_TORCH, "list", "methods", "--json"]
    done = subprocess.run(command, env=stride_env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["value"] == 3.0


def test_command_lines_that_only_list_are_recognised():
    assert only_lists(["list"]) and only_lists(["run", "quick", "--dry-run"]) and only_lists(["doctor", "-h"])
    assert not only_lists([]) and not only_lists(["run", "quick"]) and not only_lists(["report", "list"])


def test_the_listed_executors_exist():
    assert tuple(executors.EXECUTORS) == EXECUTORS
