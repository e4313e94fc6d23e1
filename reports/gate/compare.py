"""Compares runs with a first one: cells of equal configuration, paired by prompt and seed, with intervals.

Cells of methods are compared by their samples, cells of engines by their requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase

import pandas as pd
from rich.console import Console
from rich.markup import escape

from stridebench.harness.errors import printable_line
from stridebench.harness.record import stats
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.metrics import METRICS
from stridebench.harness.record.requests import counted, timings
from stridebench.harness.record.store import Store
from stridebench.reports.finished_cell import FinishedCell
from stridebench.reports.gate.matching import Planned, digest_of, label_of, name_of, why_alone
from stridebench.reports.summary import CONSUMED
from stridebench.reports.text_table import CellRow, Column, TextTable, markdown_lines, number, print_table

COUNTS = ("tau_minus_1", "acceptance")
PASSES = "scr"
SECONDS = ("ms_per_token", "ttft_ms")
RATIOS_OF_ENGINES = {
    "tau_minus_1": ("accepted", "draft_steps", 0.0),
    "acceptance": ("accepted", "drafted", 0.0),
    "length_per_pass": ("output_tokens", "passes", 0.0),
    "ms_per_token": ("ms", "output_tokens", 0.0),
    "ttft_ms": ("ttft_ms", "one", 0.0),
}
"""Numerator, denominator and subtrahend of each metric of requests; one that an engine does not tell gives no row."""
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
        notes: cells and figures that were not compared, and why.
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
    left_out = set() if same_machine else set(SECONDS)
    left_out |= set() if consumption and same_machine else set(CONSUMED)
    rows: list[dict[str, object]] = []
    for key in (key for key in first.finished if key in other.finished):
        cells = first.finished[key], other.finished[key]
        compared = _compare_cells(*cells, left_out)
        rows += compared.rows(letter)
        notes += [f"{name_of(cells[0])}: {remark}" for remark in compared.remarks]
    lines_a, lines_b = _alone(first, other), _alone(other, first)
    only_a, only_b, notes = ([f"{prefix}{line}" for line in lines] for lines in (lines_a, lines_b, notes))
    return Comparison(pd.DataFrame(rows), only_a, only_b, notes, (letter,))


def _alone(run: Planned, other: Planned) -> list[str]:
    lines = []
    for key, cell in run.finished.items():
        if key not in other.finished:
            why = why_alone(key, cell, other)
            lines.append(f"{name_of(cell)}{f': {why}' if why else ''}")
    return lines


Ratio = tuple[str, str, float]


@dataclass(frozen=True)
class MetricDifference:
    """A metric of two runs, and how far it differs.

    Args:
        a: its value in run a, over the shared pairs.
        low: the lower bound of the difference, or None if there are too few prompts.
        evidence: standard errors between the difference and zero, or None without an interval.
    """

    metric: str
    a: float | None
    b: float | None
    difference: float
    low: float | None
    high: float | None
    prompts: int
    evidence: float | None


@dataclass(frozen=True)
class ComparedCells:
    """Two cells of equal configuration.

    Args:
        remarks: what was not compared, and why.
    """

    cell: SealedCell
    pairs: int
    equal: int
    differences: tuple[MetricDifference, ...]
    remarks: tuple[str, ...]

    def rows(self, run: str) -> Iterator[dict[str, object]]:
        """Yield the columns of ``Comparison.frame``, one row a metric."""
        meta = self.cell.meta
        common: dict[str, object] = {"run": run, "cell": self.cell.name, "label": label_of(self.cell)}
        common |= {word: getattr(meta, word) for word in ("backbone", "dtype", "task")}
        common |= {"temperature": meta.sampling.temperature, "pairs": self.pairs, "equal": self.equal}
        yield from ({**common, **vars(difference)} for difference in self.differences)


def _compare_cells(a: SealedCell, b: SealedCell, left_out: set[str]) -> ComparedCells:
    sides = _terms(a), _terms(b)
    shared = sides[0].index.intersection(sides[1].index)
    texts = [side.loc[shared, "asked"] for side in sides]
    changed = ((texts[0] != texts[1]) & (texts[0] != "") & (texts[1] != "")).to_numpy(dtype=bool)
    shared = shared[~changed]
    remarks = [f"{changed.sum()} pairs are left out: the prompt of that id has another text"] if changed.any() else []
    weights = [cell.meta.fingerprint for cell in (a, b)]
    if None not in weights and weights[0] != weights[1]:
        remarks.append("the weights differ")
    if not len(shared):
        return ComparedCells(a, 0, 0, (), (*remarks, "the runs share no finished prompt and seed"))
    before, after = (side.loc[shared] for side in sides)
    ratios = RATIOS_OF_ENGINES if a.meta.engine else _ratios(before, after)
    metrics = (difference_of(name, before, after, ratio) for name, ratio in ratios.items() if name not in left_out)
    equal = int((before["digest"] == after["digest"]).sum())
    return ComparedCells(a, len(shared), equal, tuple(filter(None, metrics)), tuple(remarks))


def _terms(cell: SealedCell) -> pd.DataFrame:
    """Return the terms of the metrics, the output's digest and the prompt's text, by (prompt, repetition)."""
    if not cell.meta.engine:
        finished = FinishedCell.of(cell)
        samples = finished.samples
        return finished.totals.assign(one=1.0, digest=samples["sha256"], asked=samples["prompt_text"].fillna(""))
    requests = counted(cell.requests)
    frame = requests[["output_tokens", "accepted", "drafted", "draft_steps", "target_passes"]].astype(float)
    passes = frame["target_passes"].fillna(frame["output_tokens"] - frame["accepted"])
    ms = (requests["ended_ns"] - requests["sent_ns"]) / 1e6
    frame = frame.assign(passes=passes, ms=ms, ttft_ms=timings(requests)["ttft_ms"], one=1.0, asked="")
    frame["digest"] = [
        digest_of(tokens, text) for tokens, text in zip(requests["tokens"], requests["text"], strict=True)
    ]
    return frame.set_index(pd.MultiIndex.from_frame(requests[["prompt", "repetition"]])).sort_index()


def _ratios(before: pd.DataFrame, after: pd.DataFrame) -> dict[str, Ratio]:
    """Return numerator, denominator and subtrahend of each metric that samples of two cells can differ in."""
    metrics = {name: METRICS[name] for name in (*COUNTS, PASSES, "ms_per_token", "logprob", *CONSUMED)}
    ratios = {name: (metric.numerator, metric.denominator, metric.minus) for name, metric in metrics.items()}
    ratios["agreement"] = ("agreement", "one", 0.0)
    untold = [name for name in CONSUMED if any(side[ratios[name][0]].isna().any() for side in (before, after))]
    idle = COUNTS if not before["drafted"].sum() and not after["drafted"].sum() else ()
    one_a_step = all((side["nfe"] == side["steps"]).all() for side in (before, after))  # SCR is tau then
    without = {*untold, *idle, *([PASSES] if one_a_step else [])}
    return {name: ratio for name, ratio in ratios.items() if name not in without}


def difference_of(metric: str, before: pd.DataFrame, after: pd.DataFrame, ratio: Ratio) -> MetricDifference | None:
    """Compare a metric in two runs; return None if they share no value.

    Args:
        before: the terms of run a, by (prompt, repetition).
        ratio: the columns of numerator and denominator, and the subtrahend.
    """
    above, below, minus = ratio
    one, two = (side[[above, below]].astype(float).dropna() for side in (before, after))
    if "cluster" in before:
        one, two = (side.assign(cluster=before["cluster"].reindex(side.index)) for side in (one, two))
    gap = stats.difference(one, two, above, below) if one[below].sum() and two[below].sum() else None
    if gap is None:
        return None
    levels = (stats.ratio(side, above, below, minus) for side in (one, two))
    a, b = (level.estimate if level else None for level in levels)
    return MetricDifference(metric, a, b, gap.estimate, gap.low, gap.high, gap.n, evidence(gap))


def evidence(gap: stats.Interval) -> float | None:
    """Return how many standard errors the difference is from zero, by its 95 % interval, or None if it lacks one.

    A difference that is the same for every prompt has standard error zero, and is infinitely far from zero.
    """
    if gap.low is None or gap.high is None:
        return None
    error = (gap.high - gap.low) / (2 * 1.96)
    if error == 0:
        return math.inf if gap.estimate else 0.0
    return abs(gap.estimate) / error


def _line(key: str) -> Callable[[CellRow], str]:
    """Return the formatter of a column of words."""
    return lambda row: printable_line(str(row[key]))


def _figure(key: str) -> Callable[[CellRow], str]:
    """Return the formatter of a metric's value, with the decimals of the metric."""
    return lambda row: number(row[key], DIGITS.get(row["metric"], 3))


def _difference(row: CellRow) -> str:
    gap, low, high = (_figure(key)(row) for key in ("difference", "low", "high"))
    bounds = f" [{low}, {high}]" if low != high else " (too few prompts, or too few that differ)" if low == "-" else ""
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
    """Return the comparison as a table; a difference whose interval excludes zero has a star."""
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
    """Return the comparison as Markdown."""
    text = table(comparison, names)
    lines = markdown_lines([column.title for column in text.columns], text.rows) if text.rows else [NOTHING]
    return "\n".join(["# Comparison", "", *lines, "", *(f"- {line}" for line in text.notes), ""])


NOTHING = "No cell of equal configuration is finished in the runs that are compared."


def terminal(comparison: Comparison, console: Console | None = None, names: Sequence[str] = ()) -> None:
    """Print the comparison, with the columns that fit the console."""
    text = table(comparison, names)
    if text.rows:
        print_table(text, console or Console())
        return
    for line in (NOTHING, *text.notes):
        (console or Console()).print(escape(line))
