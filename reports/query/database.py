"""A DuckDB database in memory that holds the views of some runs and can reach nothing else."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from stridebench.harness.errors import UsageError, printable_line
from stridebench.reports.query.schema import (
    CELL_NUMBER,
    FACTS,
    VIEWS,
    NamedRun,
    cell_facts,
    cell_scores_rows,
    cells_of,
    cells_rows,
    requests_rows,
    runs_rows,
    scores_rows,
    stored_rows,
)

SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",  # no file, no address
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # no variable of this process
    "temp_directory": "",  # nothing is written to the disk
}
READING = ("SELECT", "EXPLAIN")
"""Kinds of statements that a query may be; SHOW, DESCRIBE and SUMMARIZE are SELECTs to DuckDB."""
ZONED = "WITH TIME ZONE"
SECONDS = 60.0
"""Time limit of a query that is given no other."""
INDIRECT = re.compile(r"\b(query|query_table|summarize|show)\b", re.IGNORECASE)
"""Words that name views in other ways than by their names."""


@dataclass(frozen=True)
class Answer:
    """The rows of a query.

    Args:
        types: of the columns, as SQL writes them.
        rows: Python values, None where SQL has NULL.
    """

    names: list[str]
    types: list[str]
    rows: list[tuple[Any, ...]]


def ask(sql: str, runs: Sequence[NamedRun], seconds: float = SECONDS) -> Answer:
    """Answer one SELECT over the views of the runs. Tables that it does not name are not read from the disk."""
    with duckdb.connect(":memory:", config=SETTINGS) as connection:
        limit = threading.Timer(seconds, connection.interrupt)
        try:
            sql.encode()
            statements = connection.extract_statements(sql)
            kinds = [statement.type.name for statement in statements]
            if len(kinds) != 1 or kinds[0] not in READING:
                text = " and ".join(kinds) or "no statement"
                raise UsageError(f"a query is one SELECT (or DESCRIBE, SUMMARIZE, EXPLAIN); found {text}")
            _fill(connection, sql, runs)
            connection.execute("SET lock_configuration = true")
            limit.start()
            return _answer(connection, sql)
        except UnicodeError as error:
            raise UsageError("the query or its answer is not UTF-8 text; write other bytes as '\\xFF'::BLOB") from error
        except duckdb.InterruptException as error:
            raise UsageError(f"the query took over {seconds:g} s; narrow it, or raise --time-limit") from error
        except duckdb.Error as error:
            raise UsageError(_one_line(error)) from error
        finally:
            limit.cancel()


def _answer(connection: duckdb.DuckDBPyConnection, sql: str) -> Answer:
    """Return the rows of a query. Times with a zone are texts, since DuckDB makes Python values of them by pytz."""
    cursor = connection.execute(sql)
    names = [str(column[0]) for column in cursor.description or ()]
    types = [str(column[1]) for column in cursor.description or ()]
    if any(ZONED in kind for kind in types):
        columns = [f"c{index}" for index in range(len(types))]
        shown = ", ".join(f"{c}::VARCHAR" if ZONED in kind else c for c, kind in zip(columns, types, strict=True))
        inner = sql.strip().rstrip(";")
        cursor = connection.execute(f"SELECT {shown} FROM (\n{inner}\n) AS answer({', '.join(columns)})")
    return Answer(_distinct(names), types, cursor.fetchall())


def _fill(connection: duckdb.DuckDBPyConnection, sql: str, runs: Sequence[NamedRun]) -> None:
    """Register the tables, and create the views. A table that the query does not name stays empty."""
    every = INDIRECT.search(sql) is not None
    named = {name for name in VIEWS if every or re.search(rf"\b{name}\b", sql, re.IGNORECASE)}
    own: dict[str, Callable[[Sequence[NamedRun]], pa.Table]] = {
        "runs": runs_rows,
        "cells": cells_rows,
        "cell_scores": cell_scores_rows,
        "requests": requests_rows,
    }
    for name, rows_of in own.items():
        connection.register(f"_{name}", rows_of(runs if name in named else ()))
        connection.execute(f'CREATE VIEW "{name}" AS SELECT * FROM "_{name}"')
    cells = cells_of(runs)
    connection.register("_facts", cell_facts(cells))
    for name in ("samples", "steps"):
        columns = VIEWS[name].columns[len(FACTS) :]
        table = stored_rows(cells if name in named else (), f"{name}.parquet", columns)
        _join(connection, name, table)
    columns = VIEWS["samples"].columns[len(FACTS) :]
    scored = stored_rows(cells if "scores" in named else (), "samples.parquet", columns)
    _join(connection, "scores", scores_rows(scored))


def _join(connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    """Create a view whose rows have the facts of their cell in front."""
    connection.register(f"_{name}", table)
    facts = ", ".join(f'facts."{column.name}"' for column in FACTS)
    connection.execute(
        f'CREATE VIEW "{name}" AS SELECT {facts}, rows.* EXCLUDE ({CELL_NUMBER}) '
        f'FROM "_{name}" AS rows JOIN "_facts" AS facts USING ({CELL_NUMBER})'
    )


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names, a repeated one with a number."""
    result: list[str] = []
    for name in names:
        number, unique = 2, name
        while unique in result:
            number, unique = number + 1, f"{name}_{number}"
        result.append(unique)
    return result


def _one_line(error: Exception) -> str:
    """Return DuckDB's message without the repeated query."""
    text = str(error).partition("\n\nLINE ")[0].partition("\nTraceback")[0]
    hint = (
        "" if "Permission Error" not in text else ". A query reads the views of the runs only (stride query --schema)"
    )
    return printable_line(" ".join(text.split()))[:500] + hint
