"""How the optional dependencies are installed."""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
"""The folder of the packages: a work tree, or the site-packages that a wheel was installed to."""


def install_command(extra: str) -> str:
    """The command that adds an extra: of this work tree where there is one, else of the package index."""
    if not (CHECKOUT / "pyproject.toml").is_file():
        return f"pip install 'stridebench[{extra}]'"
    place = "." if Path.cwd() == CHECKOUT else str(CHECKOUT)
    return f"pip install '{place}[{extra}]'"
