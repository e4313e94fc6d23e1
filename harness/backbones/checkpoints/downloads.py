"""Progress of a download."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]
"""Takes a line about what a fetch does."""
