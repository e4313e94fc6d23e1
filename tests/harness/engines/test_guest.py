"""Without the folder of the engines everything else works, and a suite with engines is one clear error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

SUITE = {"backbones": ["tabular"], "tasks": [{"name": "tabular", "limit": 1}], "max_new_tokens": 4, "prove": False}
WITHOUT_ENGINES = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "stridebench.harness.engines" or name.startswith("stridebench.harness.engines."):
            raise ModuleNotFoundError(f"No module named {name!r}", name="stridebench.harness.engines")

sys.meta_path.insert(0, Absent())
from stridebench.harness.cli.main import main
sys.argv = ["stride", *sys.argv[1:]]
main()
"""


def stride(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_ENGINES, *map(str, words)], capture_output=True, text=True, timeout=120
    )


def test_a_run_needs_no_engines_and_a_suite_with_engines_is_one_clear_error(tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(yaml.safe_dump({**SUITE, "methods": ["prompt_lookup"]}))
    done = stride("run", suite, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    suite.write_text(yaml.safe_dump({**SUITE, "engines": ["vllm"]}))
    refused = stride("run", suite, "--dry-run")
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert "the engine 'vllm' is not part of this installation" in refused.stderr
