"""`stride query`: SQL over the cells, samples and steps of any number of runs."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stridebench.harness.cli.main import emit, json_option, say
from stridebench.harness.errors import UsageError, printable, printable_line
from stridebench.harness.record.outputs import json_values
from stridebench.reports.query.schema import VIEWS
from stridebench.stored_run import answer_of

if TYPE_CHECKING:
    from stridebench.reports.query.database import Answer

SHOWN_ROWS, SHOWN_CHARACTERS = 200, 80
"""How much of an answer a table shows."""


@click.command(name="query")
@click.argument("sql", required=False)
@click.argument("runs", nargs=-1, metavar="[RUN...]")
@click.option("--schema", "schema", is_flag=True, help="Print the views with their columns, types and meanings.")
@click.option("--time-limit", type=click.FloatRange(0, min_open=True), help="Of the query, in seconds. Default: 60.")
@json_option("one object for each row")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values with a header.")
def command(
    sql: str | None, runs: tuple[str, ...], schema: bool, time_limit: float | None, as_json: bool, as_csv: bool
) -> None:
    """Answer one SQL query over the views runs, cells, cell_scores, samples, scores, steps and requests.

    RUN is a run folder, a URL, or a folder that holds runs; without any it is the folder `runs`. The query is DuckDB's
    SQL. It reads the views and nothing else: no file, no address, no extension. A table shows 200 rows; --csv and
    --json have all of them. Control characters of outputs are shown as escapes.

    \b
    stride query --schema
    stride query "select label, speedup, verdict from cells order by speedup desc" runs/mine
    stride query "select method, avg(accepted) from steps where not warmup group by method" runs
    stride query "select prompt, text from samples where status = 'failed'" runs/a runs/b --json
    """
    if as_json and as_csv:
        raise UsageError("--json and --csv are two forms of one answer; choose one")
    if schema:
        if sql is not None or as_csv or time_limit is not None:
            raise UsageError("--schema prints the views, as a table or with --json; ask the query without it")
        _print_schema(as_json)
        return
    if sql is None:
        raise UsageError("the query is missing; stride query --schema prints the views")
    answer = answer_of(sql, runs, time_limit)
    if as_json:
        emit([dict(zip(answer.names, row, strict=True)) for row in answer.rows])
    elif as_csv:
        click.echo(csv_of(answer), nl=False)
    else:
        _print_table(answer)


def csv_of(answer: Answer) -> str:
    """Return the answer as CSV; lists and mappings are JSON texts, and NULL is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(printable, answer.names))
    writer.writerows([_csv_text(value) for value in row] for row in answer.rows)
    return text.getvalue()


def _csv_text(value: Any) -> str:
    if value is None:
        return ""
    return printable(json.dumps(json_values(value)) if isinstance(value, list | dict | bool) else str(value))


def _print_table(answer: Answer) -> None:
    numeric = [kind.split("(")[0] in _NUMBERS for kind in answer.types]
    table = Table(box=None, header_style="bold")
    for name, right in zip(answer.names, numeric, strict=True):
        table.add_column(escape(printable_line(name)), justify="right" if right else "left")
    for row in answer.rows[:SHOWN_ROWS]:
        table.add_row(*(escape(_table_text(value)) for value in row))
    Console().print(table)
    rows = len(answer.rows)
    shown = f"; the table has the first {SHOWN_ROWS}, and --csv or --json all of them" if rows > SHOWN_ROWS else ""
    say(f"{rows} {'row' if rows == 1 else 'rows'}{shown}", err=True)


_NUMBERS = {"BIGINT", "HUGEINT", "INTEGER", "DOUBLE", "FLOAT", "DECIMAL", "SMALLINT", "TINYINT", "UBIGINT"}


def _table_text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = printable_line(json.dumps(json_values(value)) if isinstance(value, list | dict | bool) else str(value))
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def _print_schema(as_json: bool) -> None:
    if as_json:
        views = [
            {
                "view": view.name,
                "row": view.row,
                "columns": [{"name": c.name, "type": c.sql_type, "meaning": c.meaning} for c in view.columns],
            }
            for view in VIEWS.values()
        ]
        emit(views)
        return
    console = Console()
    for view in VIEWS.values():
        table = Table("column", "type", "meaning", box=None, header_style="bold", title=f"{view.name}: {view.row}")
        table.title_justify = "left"
        for column in view.columns:
            table.add_row(*map(escape, (column.name, column.sql_type, column.meaning)))
        console.print(table)
        console.print()
