"""How the optional dependencies are installed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from harness.errors import UsageError

CHECKOUT = Path(__file__).resolve().parents[2]
"""The folder of the packages: a work tree, or the site-packages that a wheel was installed to."""


def install_command(extra: str) -> str:
    """The command that adds an extra: of this work tree where there is one, else of the package index."""
    if not (CHECKOUT / "pyproject.toml").is_file():
        return f"pip install 'stridebench[{extra}]'"
    place = "." if Path.cwd() == CHECKOUT else str(CHECKOUT)
    return f"pip install '{place}[{extra}]'"


def optional(module: str, user: str, extra: str) -> Any:
    """A module that an extra brings.

    Args:
        module: its name.
        user: who needs it, for the error.
        extra: of this package.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"{user} needs the extra: {install_command(extra)}") from error
