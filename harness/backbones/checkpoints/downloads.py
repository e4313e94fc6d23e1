"""Progress of a download."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]
"""Told what a fetch is doing, a line at a time."""
