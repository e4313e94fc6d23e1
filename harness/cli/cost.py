"""`stride cost`: operations and GPU hours of training a parallel decoder, a paper's table beside ours."""

from __future__ import annotations

import csv
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from stridebench.harness.cli.list import methods
from stridebench.harness.cli.main import emit
from stridebench.harness.discover import declare_all
from stridebench.reports import text_table
from stridebench.reports.papers import cost


@click.command(name="cost")
@click.option("--cards", type=click.Path(path_type=Path), help="Your own cards, in the form of the shipped ones.")
@click.option(
    "--utilisation",
    type=click.FloatRange(0, min_open=True),
    help="FLOP/s a GPU sustains. Default: the paper's.",
)
@click.option("--markdown", type=click.Path(path_type=Path), help="Also write both tables and the notes to this file.")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Also write the cost table to this file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: {cost: [...], frameworks: [...]}.")
def command(
    cards: Path | None, utilisation: float | None, markdown: Path | None, csv_file: Path | None, as_json: bool
) -> None:
    """Compute the training cost: C = 6 P D, or 2 P_base D + 6 P_aux D with a frozen base; GPU hours are C / (3600 U).

    P: parameters, D: tokens, U: FLOP/s of a GPU. Notes name printed values that differ from their own formula.

    \b
    stride cost                                   the tables of the paper on Cross-Regression
    stride cost --utilisation 400e12 --csv cost.csv
    stride cost --cards mine.yaml --markdown cost.md
    """
    book = cost.read(cards or cost.CARDS)
    rate = utilisation or book.utilisation
    rows, sheets = cost.rows(book, rate), [cost.cost_table(book, rate)]
    if book.frameworks:
        declare_all()
        sheets.append(cost.framework_table(book, {row["name"]: row["claim"] for row in methods()}))
    if markdown:
        markdown.write_text(cost.markdown(sheets), encoding="utf-8")
    if csv_file:
        with csv_file.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows({**row, "flags": "; ".join(row["flags"])} for row in rows)
    if as_json:
        emit({"cost": rows, "frameworks": [vars(framework) for framework in book.frameworks.values()]})
        return
    text_table.print_table(sheets[0], Console())
    for sheet in sheets[1:]:
        table = Table(*(column.title for column in sheet.columns), title=sheet.title, title_justify="left")
        for row in sheet.rows:
            table.add_row(*row)
        Console().print(table, *sheet.notes, sep="\n")
