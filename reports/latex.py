"""Tables of text as LaTeX: each of a report by itself, or all of a run as one table of a paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stridebench.harness.errors import printable_line
from stridebench.reports.text_table import TextTable

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
        tables: of any report.
        notes: write the notes of each table above it, as comments.
    """
    parts = [NEEDS]
    for table in tables:
        parts += [f"% {printable_line(note)}" for note in table.notes if notes]
        lines = [[column.title for column in table.columns], *table.rows]
        head, *body = [" & ".join(map(_escape_latex, row)) + r" \\" for row in lines]
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
        tables: of one report.
        caption: below the table's name.
        label: for ``\\ref``, or "" for none.
    """
    titles = list(dict.fromkeys(column.title for table in tables for column in table.columns))
    lines = [NEEDS, r"\begin{table}", r"\centering\small\setlength{\tabcolsep}{4pt}"]
    lines += [rf"\caption{{{_escape_latex(caption)}}}", *([rf"\label{{{label}}}"] if label else [])]
    lines += [r"\begin{tabular}{l" + "r" * (len(titles) - 1) + "}", r"\toprule", _row(titles)]
    for table in tables:
        named = [dict(zip((column.title for column in table.columns), row, strict=True)) for row in table.rows]
        lines += [r"\midrule", rf"\multicolumn{{{len(titles)}}}{{l}}{{\emph{{{_escape_latex(table.title)}}}}} \\"]
        lines += [_row([row.get(title, "-") for title in titles]) for row in named]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _row(cells: Iterable[str]) -> str:
    return " & ".join(map(_escape_latex, cells)) + r" \\"
