"""A table of text: its columns, rows and notes, printed on a terminal or written as Markdown, HTML or LaTeX."""

from __future__ import annotations

import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape as escape_html
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.cells import cell_len
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from stridebench.harness.errors import printable, printable_line
from stridebench.harness.plan.yaml_lines import load
from stridebench.harness.record.metrics import METRICS

if TYPE_CHECKING:
    import pandas as pd

    from stridebench.harness.record.stats import Interval

CellRow: TypeAlias = "pd.Series[Any] | Mapping[Any, Any]"

UNMEASURED = "not measured"
FULL = 10_000
"""Width of an output that is not a terminal, so that a log has every column."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        rank: columns of high rank are left out first on a narrow terminal.
        short: the heading if the terminal is narrow, or "" if it is the same.
        formatter: returns the text of a row; without one, the figure of ``key`` is shown with its interval.
        whole: the part of a cell in brackets stays if the terminal is narrow.
        help: its meaning, for pages and legends.
        page: the heading on a page, or "" if it is the same.
    """

    key: str
    title: str
    digits: int = 2
    rank: int = 9
    short: str = ""
    formatter: Callable[[CellRow], str] | None = None
    whole: bool = False
    help: str = ""
    page: str = ""

    def text(self, row: CellRow) -> str:
        """Return the text of a row's cell; "-" if it has no figure."""
        if self.formatter is not None:
            return self.formatter(row)
        return (
            interval(row, self.key, self.digits) if f"{self.key}_low" in row else number(row.get(self.key), self.digits)
        )


@cache
def column_texts() -> Mapping[str, Mapping[str, Any]]:
    """Return what `data/columns.yaml` says of columns, by the table or view that they belong to."""
    texts: Mapping[str, Mapping[str, Any]] = load((Path(__file__).parent / "data" / "columns.yaml").read_text("utf-8"))
    return texts


def described(table: str, *columns: Column) -> tuple[Column, ...]:
    """Return the columns of a table, each with its meaning: that of `columns.yaml`, or the formula of its metric."""
    meanings = {name: metric.formula for name, metric in METRICS.items()} | dict(column_texts()[table])
    return tuple(replace(column, help=meanings.get(column.key, "")) for column in columns)


@dataclass(frozen=True)
class TextTable:
    """A table whose cells are text."""

    title: str
    columns: tuple[Column, ...]
    rows: list[list[str]]
    notes: list[str]


def number(value: Any, digits: int = 2) -> str:
    """Format a number with fixed decimals; a dash if there is none."""
    if value is None or not isinstance(value, Real) or not math.isfinite(value):
        return "-"
    return f"{value:.{digits}f}"


def interval(row: pd.Series[Any] | Mapping[str, Any], key: str, digits: int = 2) -> str:
    """Format an estimate as ``1.42 [1.31, 1.55]``, or ``1.42 (n=3)`` if the prompts are too few for an interval."""
    value, low, high = (number(row.get(key + suffix), digits) for suffix in ("", "_low", "_high"))
    if value != "-" and low == "-" and number(row.get(f"{key}_n")) != "-":
        return f"{value} (n={row[f'{key}_n']:.0f})"
    return value if low == high else f"{value} [{low}, {high}]"


def e_value(row: CellRow) -> str:
    """Return the e-value of the bets against a cell, and the bias that they would have seen."""
    log_e: Any = row.get("audit_log_e")
    if number(log_e) == "-":
        return "-"
    small = abs(log_e) < math.log(1e4)
    shown = f"{math.exp(log_e):.2g}" if small else f"1e{log_e / math.log(10):+.0f}"
    return f"{shown} ({number(row.get('audit_visible_tv'), 3)})"


def word(key: str) -> Callable[[CellRow], str]:
    """Return the formatter of a column of words."""
    return lambda row: str(row.get(key) or "-")


def counts(row: CellRow, *words: str) -> str:
    """Return how many samples ended in each of these ways, such as 2/0/1."""
    return "/".join(number(row.get(f"n_{word}"), 0) for word in words)


def estimate_text(estimate: Interval | None, digits: int = 2) -> str:
    """Format an interval of the statistics as `interval` formats one of the summary."""
    if estimate is None:
        return UNMEASURED
    values = {"x": estimate.estimate, "x_low": estimate.low, "x_high": estimate.high, "x_n": estimate.n}
    return interval(values, "x", digits)


def measured_text(row: pd.Series[Any] | None, *keys: str, digits: int = 2) -> str:
    """Format the first of these figures that was measured, with its interval."""
    for key in keys:
        value = None if row is None else row.get(key)
        if row is not None and value is not None and value == value:  # NaN is unlike itself
            return interval(row, key, digits) if f"{key}_low" in row.index else f"{row[key]:.{digits}f}"
    return UNMEASURED


def fit_columns(table: TextTable, width: int) -> dict[int, list[str]]:
    """Choose the columns that fit into ``width``, in the order of their rank; ranks 0 and 1 are always shown.

    A column has three forms: brief (no intervals, a short heading, folded), folded (heading folded) and wide. Columns
    are added in brief form; where width is left, their cells and then their headings grow. The first column names the
    row; its cells may fold into a third of the width.

    Returns:
        The chosen columns by index: the heading, then the cells.
    """
    wide = [[column.title, *(row[i] for row in table.rows)] for i, column in enumerate(table.columns)]
    folded = [[_folded(title, cells), *cells] for title, *cells in wide]
    brief = [wide[0]]
    for (title, *cells), column in zip(wide[1:], table.columns[1:], strict=True):
        short = [_brief(cell, column) for cell in cells]
        brief.append([_folded(column.short or title, short), *short])
    order = sorted(range(len(wide)), key=lambda i: (table.columns[i].rank, i))
    narrowest_label = max(_longest_word(wide[0]), width // 3)
    chosen: dict[int, list[str]] = {}
    for form in (brief, folded, wide):
        for i in order:
            trial = {**chosen, i: form[i]}
            widths = {index: max(map(_line_width, cells)) for index, cells in trial.items()}
            widths[0] = min(widths.get(0, 0), narrowest_label)
            fits = sum(widths.values()) + 2 * (len(trial) - 1) <= width
            if (fits and (i in chosen or form is brief)) or (table.columns[i].rank <= 1 and i not in chosen):
                chosen = trial
    return dict(sorted(chosen.items()))


def _line_width(cell: str) -> int:
    """Width of the widest line."""
    return max(cell_len(line) for line in cell.split("\n"))


def _longest_word(cells: Sequence[str]) -> int:
    """Width below which text cannot fold."""
    return max((cell_len(word) for cell in cells for word in cell.split()), default=0)


def _folded(title: str, cells: Sequence[str]) -> str:
    """Fold a heading into lines no wider than its cells or its longest word."""
    width = max(_longest_word([title]), *map(cell_len, cells), 1)
    return "\n".join(textwrap.wrap(title, width, break_on_hyphens=False))


def _brief(cell: str, column: Column) -> str:
    if column.whole:
        return cell
    return "-" if cell == UNMEASURED else cell.split(" [")[0].split(" (")[0]


def print_table(table: TextTable, console: Console) -> None:
    """Print a table, with the columns that the terminal is wide enough for; elsewhere, with all of them."""
    if not console.is_terminal and "COLUMNS" not in os.environ and console.file is sys.stdout:
        console.width = FULL
    columns = fit_columns(table, console.width) if table.rows else {}
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i, (title, *_) in columns.items():
        grid.add_column(escape(title), justify="left" if i < 2 else "right", no_wrap=i > 0)
    for row in zip(*(cells[1:] for cells in columns.values()), strict=True):
        grid.add_row(*map(_coloured, row))
    left_out = [column.title for i, column in enumerate(table.columns) if columns and i not in columns]
    notes = [f"[yellow]{escape(printable(note))}[/yellow]" for note in table.notes]
    if left_out:
        notes.append(f"[dim]not shown at this width: {escape(', '.join(left_out))}[/dim]")
    body = [grid] if columns else []
    console.print(Group(f"[bold]{escape(printable(table.title))}[/bold]", *body, *notes), "")


def _coloured(cell: str) -> str:
    cell = printable(cell)
    colours = {"exact": "green", "approximate": "cyan", "broken": "bold red", "unverified": "yellow"}
    colour = colours.get(cell.removesuffix(" in batches").split(" (")[0])
    return f"[{colour}]{escape(cell)}[/{colour}]" if colour else escape(cell)


def markdown_lines(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    ruler = ["---", *("---:" for _ in titles[1:])]
    return ["| " + " | ".join(map(escape_markdown, row)) + " |" for row in (titles, ruler, *rows)]


def escape_markdown(cell: str) -> str:
    """Return the text as one line without open pipes."""
    return printable(cell).replace("|", "\\|").replace("\n", " ")


def markdown_section(table: TextTable) -> list[str]:
    """Return the lines of a table with its title and notes as Markdown."""
    lines = markdown_lines([column.title for column in table.columns], table.rows) if table.rows else []
    notes = [f"- {escape_markdown(note)}" for note in table.notes]
    return [
        f"## {escape_markdown(table.title)}",
        "",
        *lines,
        *([""] if lines else []),
        *notes,
        *([""] if notes else []),
    ]


def markdown_of(table: TextTable) -> str:
    """Return one table with its title and notes as Markdown."""
    return "\n".join(markdown_section(table)).rstrip("\n")


def html_tables(tables: Iterable[TextTable]) -> Iterator[str]:
    """Yield tables with their titles and notes, as HTML. Every text is escaped."""
    import pandas as pd

    for table in tables:
        yield f"<h4>{escape_html(printable(table.title))}</h4>"
        if table.rows:
            titles = [column.title for column in table.columns]
            rows = [[printable(cell) for cell in row] for row in table.rows]
            yield pd.DataFrame(rows, columns=titles).to_html(index=False, border=0)
        yield from (f"<p>{escape_html(printable(note))}</p>" for note in table.notes)


# Tables as LaTeX: each of a report by itself, or all of a run as one table of a paper.


LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{character: "\\" + character for character in "&%$#_{}"},
}
NEEDS = "% needs \\usepackage{booktabs}"


def latex_tables(tables: Iterable[TextTable], notes: bool = False) -> str:
    """Return a ``tabular`` for each table, with booktabs rules. Every special character is escaped.

    Args:
        notes: write the notes of each table above it, as comments.
    """
    parts = [NEEDS]
    for table in tables:
        parts += [f"% {printable_line(note)}" for note in table.notes if notes]
        head, *body = map(_latex_row, [[column.title for column in table.columns], *table.rows])
        parts += [
            r"\begin{table}",
            rf"\caption{{{_escape_latex(table.title)}}}",
            r"\begin{tabular}{l" + "r" * (len(table.columns) - 1) + "}",
        ]
        parts += [r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join([*parts, ""])


def _escape_latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in printable_line(text))


def paper_table(tables: Sequence[TextTable], caption: str, label: str = "") -> str:
    """Return one ``table`` with a block of rows for each table, under the columns that any of them has.

    Args:
        label: for ``\\ref``, or "" for none.
    """
    titles = list(dict.fromkeys(column.title for table in tables for column in table.columns))
    lines = [NEEDS, r"\begin{table}", r"\centering\small\setlength{\tabcolsep}{4pt}"]
    lines += [rf"\caption{{{_escape_latex(caption)}}}", *([rf"\label{{{label}}}"] if label else [])]
    lines += [r"\begin{tabular}{l" + "r" * (len(titles) - 1) + "}", r"\toprule", _latex_row(titles)]
    for table in tables:
        named = [dict(zip((column.title for column in table.columns), row, strict=True)) for row in table.rows]
        lines += [r"\midrule", rf"\multicolumn{{{len(titles)}}}{{l}}{{\emph{{{_escape_latex(table.title)}}}}} \\"]
        lines += [_latex_row([row.get(title, "-") for title in titles]) for row in named]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(map(_escape_latex, cells)) + r" \\"
