"""Types of the entries of a baseline's file, checked when it is read.

A checksum shows that a file was not altered. These checks show that it holds a baseline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from stridebench.harness.record.entries import Count, Entries, Finite

SCORE = "score."
COUNTS = ["output", "steps", "accepted", "tested", "drafted"]
"""Columns of whole numbers, which every version has; ``nfe`` is one too."""
Number = int | Finite | None
Sample = list[str | int | Finite | None]
Score = Annotated[tuple[str, Count, Count, Finite], Field(strict=False)]
Text = Annotated[tuple[str, Count, list[Count]], Field(strict=False)]


class BaselineKey(Entries):
    """The setting that a run must share with the baseline's."""

    tasks: list[dict[str, Any]] | None = None


class CellEntry(Entries):
    """The figures of a cell: a row a sample."""

    label: str
    columns: list[str]
    samples: list[Sample]
    noise: dict[str, Annotated[Finite, Field(ge=0)]] | None = None


class ReplayedCell(Entries):
    """Texts of a cell and the scores of its drafts along them."""

    label: str
    texts: list[Text]
    scores: Annotated[list[Score], Field(min_length=1)]


class BaselineSuite(Entries):
    """The suite that made the texts, as dumped."""

    name: str


class ReplayEntry(Entries):
    """The entries that a replay reads."""

    suite: BaselineSuite
    cells: dict[str, ReplayedCell]
    skipped: dict[str, str]


class Document(Entries):
    """A baseline."""

    key: BaselineKey
    cells: Annotated[dict[str, CellEntry], Field(min_length=1)]
    machine: str | None = None
    reruns: Count = 0
    verdicts: dict[str, str | None]
    replay: ReplayEntry | None = None


def fault(baseline: Mapping[str, Any]) -> str | None:
    """Return the first problem of a baseline's content, or None if it is valid."""
    try:
        Document.read(dict(baseline))
    except ValueError as problem:
        return str(problem)
    for name, cell in baseline["cells"].items():
        columns = cell["columns"]
        if words := _fault_of_columns(columns) or _fault_of_rows(columns, cell["samples"]):
            return f"has a cell {name!r:.80} that {words}"
    for name, cell in baseline.get("replay", {}).get("cells", {}).items():
        texts, scores = ([tuple(row[:2]) for row in cell[part]] for part in ("texts", "scores"))
        if sorted(texts) != sorted(scores) or len(set(scores)) < len(scores):
            return f"has a replayed cell {name!r:.80} whose texts and scores are not of the same samples"
    return None


def _fault_of_columns(columns: list[str]) -> str | None:
    if not columns:
        return "names no columns"
    if missing := [name for name in ("prompt", "repetition", *COUNTS) if name not in columns]:
        return f"lacks the column {missing[0]}"
    return "names a column twice" if len(set(columns)) < len(columns) else None


def _fault_of_rows(columns: list[str], rows: list[list[Any]]) -> str | None:
    """Return the problem of the rows of a cell whose columns are right, or None."""
    if not rows:
        return "holds no sample"
    if wrong := [row for row in rows if len(row) != len(columns)]:
        return f"has a row of {len(wrong[0])} values for {len(columns)} columns"
    for name, values in zip(columns, zip(*rows, strict=True), strict=True):
        if name in ("prompt", "sha256", "cluster"):
            unfit = [value for value in values if not isinstance(value, str)]
        elif name in (*COUNTS, "repetition", "nfe"):
            unfit = [value for value in values if not isinstance(value, int) or value < 0]
        else:
            unfit = [value for value in values if isinstance(value, str)]
        if unfit:
            return f"has {name} {unfit[0]!r:.80}"
    keys = [(row[columns.index("prompt")], row[columns.index("repetition")]) for row in rows]
    return "has two rows of one prompt and repetition" if len(set(keys)) < len(keys) else None


def setting_of(cell: str, label: str) -> str:
    """Return the part of a cell's id behind the method: backbone, type, temperature and task."""
    return cell.removeprefix(label.replace(" ", "-")).strip(".").rpartition("-")[0]


def titled(cell: str, label: str) -> str:
    """Return the label of a cell with its setting, which tells it from other cells of this label."""
    setting = setting_of(cell, label)
    return f"{label} ({setting})" if setting else label
