"""Measured results that the documentation quotes, with their command, commit and machine.

A page marks the place of a table with ``<!-- results: FILE/TABLE -->`` and ``<!-- end -->``.
`python -m stridebench.reports.results README.md` writes the tables between the marks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stridebench.harness.errors import UsageError
from stridebench.harness.plan.yaml_lines import load as load_yaml
from stridebench.reports.text_table import markdown_lines

FOLDER = Path(__file__).parent / "data" / "results"
FIELDS = ("title", "command", "commit", "date", "machine", "setting", "tables")
BLOCK = re.compile(r"(<!-- results: (\w+)/([^>]+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class ResultsTable:
    """A table of measured values as strings: a value with its interval, or empty where nothing was measured."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def markdown(self) -> str:
        """Return the table as Markdown."""
        return "\n".join(markdown_lines(list(self.columns), [list(row) for row in self.rows]))


@dataclass(frozen=True)
class Results:
    """The results of one command.

    Args:
        name: of the file.
        title: of the results.
        command: the command line.
        commit: the measured commit; with several, what each measured.
        date: of the measurement.
        machine: the machine, and other work on it.
        setting: prompts, sampling and statistics.
        tables: the values.
        notes: remarks.
    """

    name: str
    title: str
    command: str
    commit: str
    date: str
    machine: str
    setting: str
    tables: tuple[ResultsTable, ...]
    notes: tuple[str, ...] = ()

    def table(self, name: str) -> ResultsTable:
        """Return the table of that name.

        Raises:
            UsageError: the table is not known.
        """
        for table in self.tables:
            if table.name == name:
                return table
        names = ", ".join(table.name for table in self.tables)
        raise UsageError(f"results/{self.name}.yaml has no table {name!r}; it has {names}")


def read(name: str) -> Results:
    """Read the results of one file.

    Raises:
        UsageError: the file is missing, lacks a field, or a row is longer or shorter than the columns.
    """
    path = FOLDER / f"{name}.yaml"
    if not path.is_file():
        raise UsageError(f"there are no results {name!r}; {FOLDER} holds {', '.join(all_names())}")
    data = load_yaml(path.read_text(encoding="utf-8"))
    missing = [field for field in FIELDS if not data.get(field)]
    if missing:
        raise UsageError(f"{path}: {missing[0]} is missing; say what made the figures")
    tables = tuple(ResultsTable(item["name"], item["columns"], item["rows"]) for item in data["tables"])
    for table in tables:
        for row in table.rows:
            if len(row) != len(table.columns) or not all(isinstance(value, str) for value in row):
                raise UsageError(f"{path}: the row {row!r} of {table.name} is not {len(table.columns)} strings")
    texts = {field: str(data[field]).strip() for field in FIELDS[:-1]}
    return Results(name, **texts, tables=tables, notes=tuple(data.get("notes", ())))


def all_names() -> list[str]:
    """Return the names of all results."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def filled(page: str) -> str:
    """Return the page with every marked table replaced by its results.

    Raises:
        UsageError: a mark names results or a table that do not exist.
    """
    return BLOCK.sub(lambda block: block[1] + read(block[2]).table(block[3]).markdown + "\n" + block[5], page)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        target = Path(argument)
        target.write_text(filled(target.read_text(encoding="utf-8")), encoding="utf-8")
