"""How the optional dependencies are installed."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from stridebench.harness.errors import UsageError
from stridebench.harness.platform.programs import typed

CHECKOUT = Path(__file__).resolve().parents[2]
"""The folder of the packages: a work tree, or the site-packages that a wheel was installed to."""


def install_command(extra: str) -> str:
    """The command that adds an extra: of the work tree in use or installed from, else of the package index."""
    folder = CHECKOUT if (CHECKOUT / "pyproject.toml").is_file() else _installed_from()
    if folder is None:
        return f"{typed('pip')} install 'stridebench[{extra}]'"
    return f"{typed('pip')} install '{'.' if Path.cwd() == folder else folder}[{extra}]'"


def _installed_from() -> Path | None:
    """The work tree that pip installed this copy from, where it is still there (PEP 610)."""
    for record in CHECKOUT.glob("stridebench-*.dist-info/direct_url.json"):
        try:
            url = urlsplit(json.loads(record.read_text(encoding="utf-8"))["url"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        folder = Path(url2pathname(url.path))
        if url.scheme == "file" and (folder / "pyproject.toml").is_file():
            return folder
    return None


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
