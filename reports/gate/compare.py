"""Compares runs with a first one: cells of equal configuration, paired by prompt and seed, with intervals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console
from rich.markup import escape

from stridebench.harness.errors import printable_line
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.metrics import METRICS
from stridebench.reports.gate import engine_cells
from stridebench.reports.gate.engine_cells import evidence as evidence
from stridebench.reports.gate.engine_cells import row_of
from stridebench.reports.summary import CONSUMED, FinishedCell
from stridebench.reports.text_table import Column, TextTable, markdown_lines, number, print_table

if TYPE_CHECKING:
    from stridebench.harness.record.store import SealedCell, Store
    from stridebench.reports.text_table import CellRow


# Which cells of two runs have one configuration, and why the others have no partner.


SEEDING = ("seed", "stop_at_eos", "batch", "role")
MATCHED = ("method", "params", "backbone", "dtype", "task", "task_params", "sampling", "max_new_tokens", *SEEDING)
"""Entries of a cell's meta in which two cells that are compared agree."""
NEAR = ("method", "backbone", "role")
"""Entries in which the nearest cell agrees at least."""


@dataclass(frozen=True)
class Planned:
    """Every cell of a run by its configuration.

    Args:
        finished: the finished cells.
        missing: of the others, why each is not finished.
    """

    finished: Mapping[str, SealedCell]
    missing: Mapping[str, str]

    @staticmethod
    def of(store: Store) -> Planned:
        """Read a run."""
        finished: dict[str, SealedCell] = {}
        missing: dict[str, str] = {}
        sealed = set(store.cells())
        for name, planned in store.manifest.cells.items():
            cell = store.cell(name) if name in sealed else None
            meta = planned if cell is None else cell.meta
            if cell is not None and meta.status != "skipped":
                finished[configuration(meta)] = cell
            elif meta.status == "skipped":
                missing[configuration(meta)] = f"skipped: {meta.reason or 'no reason given'}"
            else:
                missing[configuration(meta)] = "not finished"
        return Planned(finished, missing)


def configuration(meta: CellMeta, words: Sequence[str] = MATCHED) -> str:
    """Return what two cells must share, as a key."""
    stored = meta.stored()
    return json.dumps([stored.get(word) for word in words], sort_keys=True)


def name_of(cell: SealedCell) -> str:
    """Return the label of a cell with its backbone and setting."""
    meta = cell.meta
    where = f"{meta.backbone} {meta.dtype}, {meta.sampling.words}"
    return f"{meta.label or cell.name} ({where})"


def why_alone(key: str, cell: SealedCell, other: Planned) -> str:
    """Return why the other run has no finished cell of this configuration, or "" if it has nothing like it."""
    if key in other.missing:
        return other.missing[key]
    here = configuration(cell.meta, NEAR)
    near = [one.meta for one in other.finished.values() if configuration(one.meta, NEAR) == here]
    differences: list[list[str]] = [[*_unlike(cell.meta.stored(), meta.stored())] for meta in near]
    return f"the nearest cell differs in {', '.join(sorted(differences, key=len)[0])}" if near else ""


def _unlike(here: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[str]:
    for word in MATCHED:
        one, other = here.get(word), there.get(word)
        if one == other:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            keys = [name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)]
            yield from (f"{name} ({one.get(name)} and {other.get(name)})" for name in keys)
        else:
            yield f"{word} ({one} and {other})"


COUNTS = ("tau_minus_1", "acceptance")
PASSES = "scr"
SECONDS = "ms_per_token"
TITLES = {
    "tau_minus_1": "tau - 1",
    "scr": "SCR",
    "ms_per_token": "ms/token",
    "logprob": "log-prob",
    "length_per_pass": "length a pass",
    "ttft_ms": "TTFT ms",
}
DIGITS = {"ms_per_token": 2, "ttft_ms": 1}
BY_CHANCE = 0.05
"""Share of rows without a true difference whose 95 % interval excludes zero."""


@dataclass(frozen=True)
class Comparison:
    """What differs between run a and each other run, which have the letters b, c, ...

    Args:
        frame: one row a matched cell and metric, the strongest evidence first. Columns: run (a letter), cell, label,
            backbone, dtype, temperature, task, metric, a, b (the other run's), difference (b - a), low, high,
            evidence (standard errors between the difference and zero; NaN without an interval), prompts, pairs,
            equal (pairs whose outputs are the same tokens).
        only_a: finished cells of a that no other run has, with the reason if one is known.
        only_b: the same of the other runs, which a lacks.
        notes: cells and figures that were not compared, and why.
        runs: the other runs.
    """

    frame: pd.DataFrame
    only_a: list[str]
    only_b: list[str]
    notes: list[str]
    runs: tuple[str, ...] = ("b",)

    @property
    def several(self) -> bool:
        """Whether a is compared with more than one run."""
        return len(self.runs) > 1


def compare(a: Store, *others: Store, consumption: bool = False) -> Comparison:
    """Match the finished cells by configuration, and compare each pair over shared prompts and seeds.

    Args:
        consumption: memory and energy too, of runs of one machine.
    """
    first = Planned.of(a)
    parts = [
        _compare_runs(
            (letter, f"{letter}: " if len(others) > 1 else ""), a, first, store, Planned.of(store), consumption
        )
        for letter, store in zip(_letters(), others, strict=False)
    ]
    frame = pd.concat([part.frame for part in parts], ignore_index=True)
    if len(frame):
        order = frame["evidence"].fillna(-1.0).sort_values(ascending=False, kind="stable").index
        frame = frame.loc[order].reset_index(drop=True)
    return Comparison(
        frame,
        only_a=[line for part in parts for line in part.only_a],
        only_b=[line for part in parts for line in part.only_b],
        notes=[line for part in parts for line in part.notes],
        runs=tuple(run for part in parts for run in part.runs),
    )


def _letters() -> Iterator[str]:
    """Yield b, c, ..., z, then run27, run28, ..."""
    yield from ascii_lowercase[1:]
    number = len(ascii_lowercase)
    while True:
        number += 1
        yield f"run{number}"


def _compare_runs(
    names: tuple[str, str], a: Store, first: Planned, b: Store, other: Planned, consumption: bool
) -> Comparison:
    letter, prefix = names
    machines = [store.manifest.provenance.fingerprint for store in (a, b)]
    same_machine = machines[0] is not None and machines[0] == machines[1]
    both = " and ".join(str(machine or "unknown") for machine in machines)
    notes = [] if same_machine else [f"seconds are not compared: the machines differ ({both})"]
    left_out = set() if same_machine else {SECONDS}
    left_out |= set() if consumption and same_machine else set(CONSUMED)
    rows: list[dict[str, Any]] = []
    for key in (key for key in first.finished if key in other.finished):
        cells = first.finished[key], other.finished[key]
        cell_rows, remarks = _compare_cells(*cells, left_out)
        rows += [{"run": letter, **row} for row in cell_rows]
        notes += [f"{name_of(cells[0])}: {remark}" for remark in remarks]
    here, there = engine_cells.finished(a), engine_cells.finished(b)
    for key in (key for key in here if key in there):
        engine_rows = engine_cells.rows(here[key], there[key], SECONDS not in left_out)
        rows += [{"run": letter, **row} for row in engine_rows]
    lines_a = _alone(first, other) + engine_cells.alone(here, there)
    lines_b = _alone(other, first) + engine_cells.alone(there, here)
    only_a, only_b, notes = ([f"{prefix}{line}" for line in lines] for lines in (lines_a, lines_b, notes))
    return Comparison(pd.DataFrame(rows), only_a, only_b, notes, (letter,))


def _alone(run: Planned, other: Planned) -> list[str]:
    lines = []
    for key, cell in run.finished.items():
        if key not in other.finished:
            why = why_alone(key, cell, other)
            lines.append(f"{name_of(cell)}{f': {why}' if why else ''}")
    return lines


def _compare_cells(a: SealedCell, b: SealedCell, left_out: set[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row a metric, and remarks on the pair."""
    sides = [FinishedCell.of(cell) for cell in (a, b)]
    shared = sides[0].totals.index.intersection(sides[1].totals.index)
    shared, changed = _of_equal_prompts(sides, shared)
    remarks = [f"{changed} pairs are left out: the prompt of that id has another text"] if changed else []
    weights = [cell.meta.fingerprint for cell in (a, b)]
    if None not in weights and weights[0] != weights[1]:
        remarks.append("the weights differ")
    if not len(shared):
        return [], [*remarks, "the runs share no finished prompt and seed"]
    before, after = (side.totals.loc[shared].assign(one=1.0) for side in sides)
    outputs = [side.samples.loc[shared, "sha256"] for side in sides]
    meta = a.meta
    common = {
        "cell": a.name,
        "label": meta.label or a.name,
        **{word: getattr(meta, word) for word in ("backbone", "dtype", "task")},
        "temperature": meta.sampling.temperature,
        "pairs": len(shared),
        "equal": int((outputs[0] == outputs[1]).sum()),
    }
    return [{**common, **row} for row in _differences(before, after, left_out)], remarks


def _of_equal_prompts(sides: Sequence[FinishedCell], shared: pd.Index[Any]) -> tuple[pd.Index[Any], int]:
    """Return the pairs whose prompts have one text, and how many have not."""
    texts = [side.samples.loc[shared]["prompt_text"].fillna("") for side in sides]
    unlike = ((texts[0] != texts[1]) & (texts[0] != "") & (texts[1] != "")).to_numpy(dtype=bool)
    return shared[~unlike], int(unlike.sum())


def _differences(before: pd.DataFrame, after: pd.DataFrame, left_out: set[str]) -> Iterator[dict[str, Any]]:
    columns = {
        name: (METRICS[name].numerator, METRICS[name].denominator)
        for name in (*COUNTS, PASSES, SECONDS, "logprob", *CONSUMED)
    }
    columns["agreement"] = ("agreement", "one")
    for name, (numerator, denominator) in columns.items():
        if name in CONSUMED and (before[numerator].isna().any() or after[numerator].isna().any()):
            continue  # one of the machines does not tell
        idle = name in COUNTS and not before["drafted"].sum() and not after["drafted"].sum()
        one_a_step = all((side["nfe"] == side["steps"]).all() for side in (before, after))  # SCR is tau then
        if idle or name in left_out or (name == PASSES and one_a_step):
            continue
        minus = METRICS[name].minus if name in METRICS else 0.0
        row = row_of(name, before, after, (numerator, denominator), minus)
        if row is not None:
            yield row


def _line(key: str) -> Callable[[CellRow], str]:
    """Return the formatter of a column of words."""
    return lambda row: printable_line(str(row[key]))


def _figure(key: str) -> Callable[[CellRow], str]:
    """Return the formatter of a metric's value, with the decimals of the metric."""
    return lambda row: number(row[key], DIGITS.get(row["metric"], 3))


def _difference(row: CellRow) -> str:
    gap, low, high = (_figure(key)(row) for key in ("difference", "low", "high"))
    bounds = f" [{low}, {high}]" if low != high else " (too few prompts)" if low == "-" else ""
    return gap + ("*" if significant(row) else "") + bounds


COLUMNS = (
    Column("label", "cell", rank=0, formatter=_line("label")),
    Column("run", "run", rank=0, formatter=_line("run")),
    Column("dtype", "dtype", rank=6, formatter=_line("dtype")),
    Column("temperature", "T", rank=3, formatter=lambda row: f"{row['temperature']:g}"),
    Column("metric", "metric", rank=1, formatter=lambda row: str(TITLES.get(row["metric"], row["metric"]))),
    Column("a", "a", rank=2, formatter=_figure("a")),
    Column("b", "b", rank=2, formatter=_figure("b")),
    Column("difference", "b - a", rank=1, formatter=_difference),
    Column("prompts", "prompts", rank=5, formatter=_line("prompts")),
    Column("equal", "equal outputs", rank=4, formatter=lambda row: f"{row['equal']}/{row['pairs']}"),
)


def table(comparison: Comparison, names: Sequence[str] = ()) -> TextTable:
    """Return the comparison as a table; a difference whose interval excludes zero has a star.

    Args:
        names: of the runs, a's first.
    """
    several = comparison.several
    titles = {"b": "other", "difference": "other - a"} if several else {}
    columns = [replace(column, title=titles.get(column.key, column.title)) for column in COLUMNS]
    columns = [column for column in columns if several or column.key != "run"]
    rows = [[column.text(row) for column in columns] for _, row in comparison.frame.iterrows()]
    return TextTable("Comparison", tuple(columns), rows, _remarks(comparison, names))


def _remarks(comparison: Comparison, names: Sequence[str] = ()) -> list[str]:
    lines = [
        *(f"{letter}: {name}" for letter, name in zip(("a", *comparison.runs), names, strict=False)),
        *_chance(comparison),
        *comparison.notes,
        *(f"only in a{f', not in {name}' if comparison.several else f': {name}'}" for name in comparison.only_a),
        *(f"only in {name if comparison.several else f'b: {name}'}" for name in comparison.only_b),
    ]
    return [printable_line(line) for line in lines]


def _chance(comparison: Comparison) -> list[str]:
    """Return how many rows exclude zero, and how many would by chance; nothing if no row has an interval."""
    if not len(comparison.frame):
        return []
    rows = comparison.frame[comparison.frame["low"].notna()]
    if rows.empty:
        return []
    beyond = sum(significant(row) for _, row in rows.iterrows())
    return [
        f"sorted by evidence: {beyond} of {len(rows)} intervals exclude zero (*); "
        f"{BY_CHANCE * len(rows):.1f} would where nothing differs"
    ]


def significant(row: CellRow) -> bool:
    """Return whether the interval of a row excludes zero."""
    return bool(pd.notna(row["low"]) and not row["low"] <= 0 <= row["high"])


def markdown(comparison: Comparison, names: Sequence[str] = ()) -> str:
    """Return the comparison as Markdown.

    Args:
        names: of the runs, a's first.
    """
    text = table(comparison, names)
    lines = markdown_lines([column.title for column in text.columns], text.rows) if text.rows else [NOTHING]
    return "\n".join(["# Comparison", "", *lines, "", *(f"- {line}" for line in text.notes), ""])


NOTHING = "No cell of equal configuration is finished in the runs that are compared."


def terminal(comparison: Comparison, console: Console | None = None, names: Sequence[str] = ()) -> None:
    """Print the comparison, with the columns that fit the console.

    Args:
        names: of the runs, a's first.
    """
    text = table(comparison, names)
    if text.rows:
        print_table(text, console or Console())
        return
    for line in (NOTHING, *text.notes):
        (console or Console()).print(escape(line))
