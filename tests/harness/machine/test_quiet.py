"""Standard streams that the caller closed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = (
    "import sys\nfrom stridebench.harness.machine.quiet import open_closed_streams, stdout_on_stderr\n"
    "open_closed_streams()\n"
    "file = open(sys.argv[1], 'w')\nassert file.fileno() > 2\n"
    "with stdout_on_stderr():\n    print('lost')\nprint('lost')\nprint('lost', file=sys.stderr)\nsys.stdin.read()\n"
    "file.write('kept')\n"
)


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (1, 2), (0, 1, 2)], ids=str)
def test_closed_streams_take_nothing_of_a_file(tmp_path: Path, closed: tuple[int, ...]) -> None:
    def close() -> None:
        for number in closed:
            os.close(number)

    command = [sys.executable, "-c", CODE, str(tmp_path / "file")]
    subprocess.run(command, preexec_fn=close, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert (tmp_path / "file").read_text() == "kept"
