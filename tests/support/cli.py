"""The `stride` command, run in the process of a test: without shape checks, as its users run it.

Its Pareto plot is a file of words, since drawing one takes longer than most runs of the tests.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import pandas as pd

from stridebench.harness.cli.main import main
from stridebench.reports import pareto
from tests.support.shape_checks import without_shape_checks


@dataclass(frozen=True)
class Outcome:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output, which must be one strict JSON document."""
        return json.loads(self.out, parse_constant=not_json)


def undrawn(frame: pd.DataFrame, outdir: Path) -> list[Path]:
    """Do as ``pareto.write``, but draw nothing."""
    if not any(pareto.panels(frame)):
        return []
    outdir.mkdir(parents=True, exist_ok=True)
    paths = [outdir / "pareto.png", outdir / "pareto.svg"]
    for path in paths:
        path.write_text("no test draws it")
    return paths


def not_json(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def stride(*words: object) -> Outcome:
    """The command in this process, as from a shell: what it lets through as a traceback fails the test."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    argv = ["stride", *map(str, words)]
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.dict(os.environ, {"COLUMNS": "160"}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        without_shape_checks(),
        mock.patch.object(pareto, "write", undrawn),
    ):
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Outcome(code, out.getvalue(), err.getvalue())


def refused(*words: object, code: int = 2) -> str:
    """The one message of a command that must fail."""
    outcome = stride(*words)
    assert outcome.code == code and outcome.out == "", outcome
    assert outcome.err.startswith("stride: ") and "Traceback" not in outcome.err, outcome
    return outcome.err
