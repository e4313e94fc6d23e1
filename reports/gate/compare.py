"""Compares two runs: cells of equal configuration, paired by prompt and seed, with intervals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.errors import printable_line
from harness.record import stats
from harness.record.counting import counting_difference
from harness.record.metrics import METRICS
from reports.summary import FinishedCell
from reports.text_table import markdown_lines, number

if TYPE_CHECKING:
    from harness.record.store import Cell, Store

SEEDING = ("seed", "stop_at_eos", "batch", "role")
MATCHED = ("method", "params", "backbone", "dtype", "task", "task_params", "sampling", "max_new_tokens", *SEEDING)
COUNTS = ("tau_minus_1", "acceptance")
PASSES = "scr"
SECONDS = "ms_per_token"
TITLES = {"tau_minus_1": "tau - 1", "scr": "SCR", "ms_per_token": "ms/token", "logprob": "log-prob"}
DIGITS = {"ms_per_token": 2}


@dataclass(frozen=True)
class Comparison:
    """What differs between run a and run b.

    Args:
        frame: one row a matched cell and metric. Columns: cell, label, backbone, dtype, temperature, task, metric,
            a, b, difference (b - a), low, high, prompts, pairs, equal (pairs whose outputs are the same tokens).
        only_a: labels of finished cells of a that b lacks.
        only_b: labels of finished cells of b that a lacks.
        notes: what was not compared, and why.
    """

    frame: pd.DataFrame
    only_a: list[str]
    only_b: list[str]
    notes: list[str]


def compare(a: Store, b: Store) -> Comparison:
    """Match the finished cells by configuration, and compare each pair over shared prompts and seeds."""
    cells_a, cells_b = _by_configuration(a), _by_configuration(b)
    machines = [dict(store.manifest.get("provenance") or {}).get("fingerprint") for store in (a, b)]
    same_machine = machines[0] is not None and machines[0] == machines[1]
    names = " and ".join(str(machine or "unknown") for machine in machines)
    notes = [] if same_machine else [f"seconds are not compared: the machines differ ({names})"]
    counting = counting_difference(a.manifest, b.manifest)
    notes += [f"passes and seconds are not compared: {counting}"] if counting else []
    left_out = {PASSES, SECONDS} if counting else set() if same_machine else {SECONDS}
    rows: list[dict[str, Any]] = []
    for key in (key for key in cells_a if key in cells_b):
        cell_rows = _compare_cells(cells_a[key], cells_b[key], left_out)
        rows += cell_rows
        if not cell_rows:
            notes.append(f"{_name(cells_a[key])}: the runs share no finished prompt and seed")
    only_a = [_name(cell) for key, cell in cells_a.items() if key not in cells_b]
    only_b = [_name(cell) for key, cell in cells_b.items() if key not in cells_a]
    return Comparison(pd.DataFrame(rows), only_a, only_b, notes)


def _by_configuration(store: Store) -> dict[str, Cell]:
    cells = (store.cell(name) for name in store.cells())
    return {json.dumps([cell.meta.get(word) for word in MATCHED], sort_keys=True): cell for cell in cells}


def _name(cell: Cell) -> str:
    meta = cell.meta
    where = f"{meta.get('backbone')} {meta.get('dtype')}, T = {_temperature(meta):g}"
    return f"{meta.get('label', cell.name)} ({where})"


def _temperature(meta: Mapping[str, Any]) -> float:
    return float((meta.get("sampling") or {}).get("temperature", 0.0))


def _compare_cells(a: Cell, b: Cell, left_out: set[str]) -> list[dict[str, Any]]:
    sides = [FinishedCell.of(cell) for cell in (a, b)]
    shared = sides[0].totals.index.intersection(sides[1].totals.index)
    if not len(shared):
        return []
    before, after = (side.totals.loc[shared].assign(one=1.0) for side in sides)
    outputs = [side.samples.loc[shared, "sha256"] for side in sides]
    meta = a.meta
    common = {
        "cell": a.name,
        "label": meta.get("label", a.name),
        **{word: meta.get(word) for word in ("backbone", "dtype", "task")},
        "temperature": _temperature(meta),
        "pairs": len(shared),
        "equal": int((outputs[0] == outputs[1]).sum()),
    }
    columns = {
        name: (METRICS[name].numerator, METRICS[name].denominator) for name in (*COUNTS, PASSES, SECONDS, "logprob")
    }
    columns["agreement"] = ("agreement", "one")
    rows = []
    for name, (numerator, denominator) in columns.items():
        gap = stats.difference(before, after, numerator, denominator)
        idle = name in COUNTS and not before["drafted"].sum() and not after["drafted"].sum()
        one_a_step = all((side["nfe"] == side["steps"]).all() for side in (before, after))  # SCR is tau then
        if gap is None or idle or name in left_out or (name == PASSES and one_a_step):
            continue
        minus = METRICS[name].minus if name in METRICS else 0.0
        ratios = {"a": stats.ratio(before, numerator, denominator, minus)}
        ratios["b"] = stats.ratio(after, numerator, denominator, minus)
        levels = {side: interval.estimate if interval else None for side, interval in ratios.items()}
        bounds = {"difference": gap.estimate, "low": gap.low, "high": gap.high, "prompts": gap.n}
        rows.append({**common, "metric": name, **levels, **bounds})
    return rows


def _table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    titles = ["cell", "dtype", "T", "metric", "a", "b", "b - a", "prompts", "equal outputs"]
    rows = []
    for _, row in comparison.frame.iterrows():
        digits = DIGITS.get(row["metric"], 3)
        a, b, gap, low, high = (number(row[key], digits) for key in ("a", "b", "difference", "low", "high"))
        bounds = f" [{low}, {high}]" if low != high else " (too few prompts)" if low == "-" else ""
        metric, equal = TITLES.get(row["metric"], row["metric"]), f"{row['equal']}/{row['pairs']}"
        cell = [printable_line(str(row["label"])), str(row["dtype"]), f"{row['temperature']:g}", metric]
        rows.append([*cell, a, b, gap + bounds, str(row["prompts"]), equal])
    return titles, rows


def _remarks(comparison: Comparison) -> list[str]:
    lines = [
        *comparison.notes,
        *(f"only in a: {name}" for name in comparison.only_a),
        *(f"only in b: {name}" for name in comparison.only_b),
    ]
    return [printable_line(line) for line in lines]


def markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown."""
    titles, rows = _table(comparison)
    table = markdown_lines(titles, rows) if rows else ["No cell of equal configuration is finished in both runs."]
    return "\n".join(["# Comparison", "", *table, "", *(f"- {line}" for line in _remarks(comparison)), ""])


def terminal(comparison: Comparison, console: Console | None = None) -> None:
    """Print the comparison; a row whose interval excludes zero is bold."""
    console = console or Console()
    titles, rows = _table(comparison)
    table = Table(box=None, pad_edge=False)
    for i, title in enumerate(titles):
        table.add_column(title, justify="left" if i in (0, 3) else "right", no_wrap=i > 0)
    previous = ""
    for row, (_, numbers) in zip(rows, comparison.frame.iterrows(), strict=True):
        label = "" if numbers["cell"] == previous else row[0]
        previous = numbers["cell"]
        significant = pd.notna(numbers["low"]) and not numbers["low"] <= 0 <= numbers["high"]
        table.add_row(*map(escape, (label, *row[1:])), style="bold" if significant else "")
    console.print(table if rows else "No cell of equal configuration is finished in both runs.")
    for line in _remarks(comparison):
        console.print(f"[yellow]{escape(line)}[/yellow]")
