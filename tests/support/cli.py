"""The `stride` command, run in the process of a test: without shape checks, as its users run it.

Its plots are files of words and the commit is looked up once, since both take longer than most runs of the tests.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import pandas as pd

from stridebench.harness.cli.main import main
from stridebench.harness.record import provenance
from stridebench.reports import pareto
from stridebench.reports.forest import FILES
from stridebench.reports.ranked import groups
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
        path.write_text("<svg/>")
    return paths


def undrawn_forest(frame: pd.DataFrame, outdir: Path, title: str, names: Sequence[str] = FILES) -> list[Path]:
    """Do as ``forest.write``, but draw nothing."""
    if not any(groups(frame)):
        return []
    outdir.mkdir(parents=True, exist_ok=True)
    for name in names:
        (outdir / name).write_text("<svg/>")
    return [outdir / name for name in names]


@cache
def git_commit() -> dict[str, Any] | None:
    """As `provenance.git_commit`, which asks git each time."""
    return provenance.git_commit()


GIVEN = {
    "stridebench.reports.pareto.write": undrawn,
    "stridebench.reports.forest.write": undrawn_forest,
    "stridebench.harness.record.provenance.git_commit": git_commit,
}
"""What stands in for a part of the package while a command runs."""


def not_json(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def stride(*words: object, columns: int = 160) -> Outcome:
    """The command in this process, as from a shell: what it lets through as a traceback fails the test."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    git_commit()  # before it is replaced
    with contextlib.ExitStack() as stack:
        for name, stand_in in GIVEN.items():
            stack.enter_context(mock.patch(name, stand_in))
        stack.enter_context(mock.patch.object(sys, "argv", ["stride", *map(str, words)]))
        stack.enter_context(mock.patch.dict(os.environ, {"COLUMNS": str(columns)}))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(without_shape_checks())
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
