"""How a failed sample says what went wrong."""

from __future__ import annotations

import traceback

NO_OUTPUT = "output: "
"""Begins the error of a sample whose decode succeeded, and whose tokens stand for no output."""


def one_line(error: Exception, stage: str = "") -> str:
    """An error in one line, with the place that it came from; ``stage`` goes first."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{stage}{type(error).__name__}: {error} ({frame.name}, line {frame.lineno})"
