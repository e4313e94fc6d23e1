"""Paths of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class LocalPath(click.Path):
    """A path on this machine; a URL is refused, since runs alone can lie at one."""

    def __init__(self, **how: Any) -> None:
        super().__init__(path_type=Path, **how)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and "://" in value:
            self.fail(f"{value} is a URL, and only runs can lie at one; name a path on this machine", param, ctx)
        return super().convert(value, param, ctx)
