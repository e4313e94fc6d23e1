"""Standard streams of a process that code of a plugin closes or redirects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PRELUDE = "import os, sys\nfrom stridebench.harness.machine.surroundings import restored\n"


@pytest.mark.parametrize(
    "harm", ["os.close(1); os.close(2)", "os.dup2(os.open(os.devnull, os.O_RDWR), 1)", "os.close(0)"]
)
def test_descriptors_are_put_back(tmp_path: Path, harm: str) -> None:
    program = (
        f"{PRELUDE}with restored():\n    {harm}\n"
        "with open(sys.argv[1], 'w') as file:\n    assert file.fileno() > 2\n    os.write(1, b'said')\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "record")]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout == "said"
    assert (tmp_path / "record").read_text() == ""
