"""Run a tool that reads files, such as mypy, over the packages under the names that an installation gives them.

`python -m tests.support.linked mypy` and `python -m tests.support.linked lint-imports` run in a folder of links.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from stridebench.harness.run.checkouts import link_packages

ROOT = Path(__file__).resolve().parents[2]


def main(words: list[str]) -> int:
    """Run the command ``words`` and return its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        link_packages(ROOT, Path(folder))
        environment = {**os.environ, "MYPYPATH": folder, "PYTHONPATH": folder}
        return subprocess.run(words, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
