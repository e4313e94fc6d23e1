"""Each reader of foreign files, fuzzed for a time with the guidance of coverage."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.guided_fuzz import TARGETS
from tests.support.fuzz import SECONDS


@pytest.mark.faults
@pytest.mark.parametrize("target", TARGETS)
def test_a_file_of_any_bytes_is_read_or_refused(target: str) -> None:
    pytest.importorskip("atheris", reason="atheris has wheels for Linux on x86-64 only: pip install atheris")
    words = ["-m", "tests.guided_fuzz", target, "--seconds", f"{SECONDS:.0f}"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stderr[-3000:]
