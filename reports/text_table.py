"""A table of one report: columns, rows, and its forms for a terminal and for Markdown."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import pandas as pd
from rich.cells import cell_len
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

UNMEASURED = "not measured"


@dataclass(frozen=True)
class Column:
    """A column: its key in the summary, heading, decimals, and rank (low ranks survive a narrow terminal)."""

    key: str
    title: str
    digits: int = 2
    rank: int = 9


@dataclass(frozen=True)
class TextTable:
    """One group's table as text: headings, rows of cells, and a note for each cell that has no row."""

    title: str
    columns: tuple[Column, ...]
    rows: list[list[str]]
    notes: list[str]


def number(value: Any, digits: int = 2) -> str:
    """A number with fixed decimals, or a dash where there is none."""
    if value is None or not isinstance(value, Real) or not math.isfinite(value):
        return "-"
    return f"{value:.{digits}f}"


def interval(row: pd.Series[Any], key: str, digits: int = 2) -> str:
    """``1.42 [1.31, 1.55]``; with the prompts where they are too few for an interval."""
    value, low, high = (number(row.get(key + end), digits) for end in ("", "_low", "_high"))
    if value != "-" and low == "-" and number(row.get(f"{key}_n")) != "-":
        return f"{value} (n={row[f'{key}_n']:.0f})"
    return value if low == high else f"{value} [{low}, {high}]"


def fit_columns(sheet: TextTable, width: int) -> dict[int, list[str]]:
    """The columns that fit, by rank; those of rank 0 and 1 always. Intervals are cut before columns are.

    The first column names the row; it may fold into two fifths of the width. Headings fold before anything is cut.
    """
    forms = [([row[i] for row in sheet.rows], column) for i, column in enumerate(sheet.columns)]
    wide = [[column.title, *cells] for cells, column in forms]
    folded = [[_folded(title, cells), *cells] for title, *cells in wide]
    cut = [[_brief(cell, column) for cell in cells] for cells, column in forms[1:]]
    brief = [
        wide[0],
        *([_folded(column.title, cells), *cells] for cells, column in zip(cut, sheet.columns[1:], strict=True)),
    ]
    order = sorted(range(len(wide)), key=lambda i: (sheet.columns[i].rank, i))
    kept: dict[int, list[str]] = {}
    for form in (brief, folded, wide):
        for i in order:
            trial = {**kept, i: form[i]}
            widths = {
                at: max(cell_len(line) for cell in cells for line in cell.split("\n")) for at, cells in trial.items()
            }
            widths[0] = min(widths.get(0, 0), max(_longest_word(wide[0]), 2 * width // 5))
            fits = sum(widths.values()) + 2 * (len(trial) - 1) <= width
            if (fits and (i in kept or form is brief)) or (sheet.columns[i].rank <= 1 and i not in kept):
                kept = trial
    return dict(sorted(kept.items()))


def _longest_word(cells: Sequence[str]) -> int:
    """Width that text cannot fold below."""
    return max((cell_len(word) for cell in cells for word in cell.split()), default=0)


def _folded(title: str, cells: Sequence[str]) -> str:
    """A heading in lines no wider than its cells or its longest word."""
    width = max(_longest_word([title]), *map(cell_len, cells), 1)
    return "\n".join(textwrap.wrap(title, width, break_on_hyphens=False))


def _brief(cell: str, column: Column) -> str:
    if column.key in ("speedup", "test"):
        return cell
    return "-" if cell == UNMEASURED else cell.split(" [")[0].split(" (")[0]


def print_table(sheet: TextTable, console: Console) -> None:
    """Print one sheet, with the columns that the console is wide enough for."""
    kept = fit_columns(sheet, console.width) if sheet.rows else {}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i, (title, *_) in kept.items():
        table.add_column(escape(title), justify="left" if i < 2 else "right", no_wrap=i > 0)
    for row in zip(*(cells[1:] for cells in kept.values()), strict=True):
        table.add_row(*map(_coloured, row))
    left_out = [column.title for i, column in enumerate(sheet.columns) if kept and i not in kept]
    notes = [f"[yellow]{escape(note)}[/yellow]" for note in sheet.notes]
    if left_out:
        notes.append(f"[dim]not shown at this width: {escape(', '.join(left_out))}[/dim]")
    body = [table] if kept else []
    console.print(Group(f"[bold]{escape(sheet.title)}[/bold]", *body, *notes), "")


def _coloured(cell: str) -> str:
    colours = {"exact": "green", "approximate": "cyan", "broken": "bold red", "unverified": "yellow"}
    colour = colours.get(cell.split(" (")[0])
    return f"[{colour}]{escape(cell)}[/{colour}]" if colour else escape(cell)


def markdown_lines(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    ruler = ["---", *("---:" for _ in titles[1:])]
    return ["| " + " | ".join(map(_plain, row)) + " |" for row in (titles, ruler, *rows)]


def _plain(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
