"""Verbs that list start without torch, and a decode imports what it uses."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from stridebench.harness.cli.main import only_lists
from tests import catalogue

VERBS = {
    "list": ("list", "--json"),
    "matrix": ("list", "matrix", "--json"),
    "dry run": ("run", "quick", "--dry-run", "--json"),
    "tiny": ("run", "quick", "--tiny", "--dry-run"),
    "papers": ("paper", "list", "--json"),
    "help": ("verify", "--help"),
}
SHOWN = """
import contextlib, io, json, sys
if "every module" in sys.argv:
    from stridebench.harness import discover
    discover.load_all()
    from tests import catalogue  # which imports all that registers something
    document = catalogue.written(catalogue.built())
else:
    document = None
from stridebench.harness.cli.main import main
shown = {"catalogue": document}
for name, words in json.loads(sys.argv[1]).items():
    sys.argv = ["stride", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            main()
        except SystemExit as end:
            assert not end.code, (words, end.code)
    heavy = [name for name in ("torch", "transformers", "jaxtyping", "pandas") if name in sys.modules]
    shown[name] = {"out": out.getvalue(), "heavy": heavy}
print(json.dumps(shown))
"""


def shown(environment: dict[str, str], *options: str) -> dict[str, Any]:
    """Return what every verb prints and the heavy libraries that are imported then, from one process."""
    command = [sys.executable, "-c", SHOWN, json.dumps(VERBS), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.slow
def test_verbs_that_list_import_no_heavy_library_and_show_what_the_registries_say(stride_env):
    """`python -m tests.catalogue --write` renews the catalogue that they read."""
    light, full = shown(stride_env), shown(stride_env, "every module")
    assert {name: light[name]["heavy"] for name in VERBS} == {key: [] for key in VERBS}
    assert "torch" in full["list"]["heavy"]
    assert {name: light[name]["out"] for name in VERBS} == {name: full[name]["out"] for name in VERBS}
    assert all(light[name]["out"] for name in VERBS)
    assert full["catalogue"] == catalogue.FILE.read_text(encoding="utf-8"), "see this test's docstring"


def test_command_lines_that_only_list_are_recognised():
    assert (
        only_lists(["list"])
        and only_lists(["paper", "list"])
        and only_lists(["run", "quick", "--dry-run"])
        and only_lists(["doctor", "-h"])
    )
    assert not only_lists([]) and not only_lists(["run", "quick"]) and not only_lists(["report", "list"])
