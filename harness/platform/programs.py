"""How a user's shell reaches the programs of this environment."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def typed(program: str) -> str:
    """What to type for a program of this environment, such as ``stride``.

    Its name where the shell finds this environment's own; else, as in an environment that is not activated, its path:
    ``.venv/bin/stride``.
    """
    own = Path(sys.executable).parent / program
    if not own.is_file():
        return program
    first = shutil.which(program)
    if first is not None and Path(first).absolute() == own.absolute():
        return program
    folder = Path.cwd()
    return shlex.quote(os.fspath(own.relative_to(folder)) if own.is_relative_to(folder) else os.fspath(own))
