"""The table of all cells: a row a cell, with the estimate, its interval and a number to sort by in each column."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from stridebench.harness.record.entries import SAMPLING, sampling_words
from stridebench.reports.html.text import figure_of, signed
from stridebench.reports.pareto import is_quality, title_of
from stridebench.reports.tables import COLUMN
from stridebench.reports.text_table import Column, number

KEYS = ("speedup", "predicted", "scr", "tau", "drafter_c", "acceptance", "ms_per_token", "agreement", "logprob_diff")
COLUMNS = tuple(replace(COLUMN[key], title=COLUMN[key].page or COLUMN[key].title) for key in (*KEYS, "audit"))
SCORES = 3
"""Columns of scores that the table has at most; the page of a cell has all."""
FACETS = ("run", "modality", "backbone", "task", "temperature", "verdict")
"""Attributes that filter the rows."""


@dataclass(frozen=True)
class HeadlineEntry:
    """One cell of the table: the estimate, its interval, and its sort key ("" sorts last)."""

    text: str
    interval: str
    order: str


@dataclass(frozen=True)
class HeadlineRow:
    """One row of the table.

    Args:
        link: the address of the cell's page; "" if it has none.
        pick: names the cell to `stride view`: its run's folder and its id.
        label: the method.
        setting: backbone, type, sampling and task in words.
        role: method, baseline or floor.
        verdict: the word, and in ``variation`` the total variation if it is not exact.
        samples: finished, failed and skipped samples.
        flags: what makes the row doubtful.
        facets: the values of ``FACETS``.
        entries: one a column.
    """

    link: str
    pick: str
    label: str
    setting: str
    role: str
    verdict: str
    variation: str
    samples: str
    flags: tuple[str, ...]
    facets: dict[str, str]
    entries: tuple[HeadlineEntry, ...]


@dataclass(frozen=True)
class Headline:
    """The table: its columns, its rows, and the facets with at least two values."""

    columns: tuple[Column, ...]
    rows: tuple[HeadlineRow, ...]
    choices: dict[str, tuple[str, ...]]


def headline(frame: pd.DataFrame) -> Headline:
    """Build the table of the finished cells.

    Args:
        frame: of `stridebench.reports.summary.summarise`, with the columns run, modality and link.
    """
    done = frame[frame["status"] == "done"]
    scores = [str(key) for key in frame if is_quality(str(key)) and f"{key}_low" in frame][:SCORES]
    candidates = (*COLUMNS, *(Column(key, title_of(key)) for key in scores))
    entries = {column: [entry(row, column) for _, row in done.iterrows()] for column in candidates}
    columns = tuple(column for column in candidates if any(item.order for item in entries[column]))
    several = done["run"].nunique() > 1
    rows = tuple(
        _row(row, tuple(entries[column][index] for column in columns), f"{row['run']}: " if several else "")
        for index, (_, row) in enumerate(done.iterrows())
    )
    choices = {facet: tuple(dict.fromkeys(row.facets[facet] for row in rows)) for facet in FACETS}
    return Headline(columns, rows, {facet: values for facet, values in choices.items() if len(values) > 1})


def entry(row: pd.Series[Any], column: Column) -> HeadlineEntry:
    """Build one cell of the table."""
    if column.key == "audit":
        text, log_e = column.text(row), row.get("audit_log_e")
        e_value, _, rest = text.replace(" (-)", "").partition(" ")
        return HeadlineEntry(signed(e_value), rest, "" if text == "-" or log_e is None else f"{log_e:.6g}")
    value = row.get(column.key)
    low, high = (number(row.get(f"{column.key}_{end}"), column.digits) for end in ("low", "high"))
    n, order = number(row.get(f"{column.key}_n"), 0), number(value, 6)
    if order == "-":
        return HeadlineEntry(figure_of(None), "", "")
    between = f"[{signed(low)}, {signed(high)}]" if low != "-" else f"(n={n})" if n != "-" else ""
    return HeadlineEntry(figure_of(value, column.digits), between, order)


def verdict_of(row: pd.Series[Any]) -> tuple[str, str]:
    """The word of a verdict, and what stands in brackets behind it."""
    word, _, rest = COLUMN["verdict"].text(row).partition(" (")
    return word, rest.rstrip(")")


def setting_of(row: pd.Series[Any]) -> str:
    """The setting of a cell in words."""
    batch = f", batch {row['batch']:g}" if row["batch"] and row["batch"] > 1 else ""
    return f"{row['backbone']} {row['dtype']}, {sampling_words(*row[list(SAMPLING)])}, {row['task']}{batch}"


def _row(row: pd.Series[Any], entries: tuple[HeadlineEntry, ...], run: str) -> HeadlineRow:
    word, variation = verdict_of(row)
    facets = {facet: str(row[facet] or "-") for facet in FACETS} | {"temperature": f"{row['temperature']:g}"}
    return HeadlineRow(
        link=str(row["link"]),
        pick=str(row["pick"]),
        label=str(row["label"]),
        setting=run + setting_of(row),
        role=str(row["role"] or "method"),
        verdict=word,
        variation=variation,
        samples=COLUMN["samples"].text(row),
        flags=tuple(flag for flag in str(row["flags"]).split("; ") if flag),
        facets=facets | {"verdict": word},
        entries=entries,
    )
