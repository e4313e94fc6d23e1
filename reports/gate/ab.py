"""Two versions that ran the same suite in turns: for each cell what differs, and which one is faster.

Round k runs the suite with one seed on both sides, so counts are paired by prompt and seed, with intervals over
prompts. Seconds are paired by round: a round gives one ratio of milliseconds a token, and the interval is Student's t
over the logarithms of these ratios. What differs between two processes of one version is therefore in the interval.
Rounds alternate which side goes first, so a machine that gets slower at a steady pace hits both alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from stridebench.harness.errors import UsageError
from stridebench.harness.record import paired_tests, stats
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.metrics import METRICS, totals, value
from stridebench.harness.record.store import Store
from stridebench.reports.finished_cell import WAITING_STEPS, disturbed_share
from stridebench.reports.gate.baseline import comparable, differences, unseeded
from stridebench.reports.gate.compare import TITLES
from stridebench.reports.text_table import Column, TextTable, number

ALPHA = 0.05
"""Level of all differences of one kind together, by Holm's adjustment."""
POWER = 0.9
COUNTS = ("tau_minus_1", "acceptance", "scr")
SECONDS = "ms_per_token"
FAR = 100_000
"""Repetitions of round k are numbered from k times this."""


@dataclass(frozen=True)
class Difference:
    """One figure of one cell on both sides.

    Args:
        setting: backbone, type, task and sampling in words.
        metric: a name of `metrics.METRICS`.
        change: b / a - 1; infinite if a is 0.
        low: lower bound of its 95 % interval; None where n is too small.
        p: two-sided p-value of "no difference", adjusted by Holm over the cells; None without an interval.
        visible: the relative difference that would have been seen in 9 of 10.
        n: prompts of a count, rounds of seconds.
        word: equal, lower, higher, faster, slower, no difference seen, too few, disturbed, only b has any.
    """

    cell: str
    label: str
    setting: str
    metric: str
    a: float
    b: float
    change: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    visible: float | None = None
    n: int = 0
    word: str = ""

    @property
    def verdict(self) -> str:
        """Return the word with its evidence; of seconds it names the faster side."""
        if self.word == "no difference seen" and self.visible is not None:
            return f"no difference seen; would have seen {self.visible:.1%}"
        of_seconds = {"faster": "b is faster", "slower": "a is faster"}
        few = f"{self.n} {'rounds' if self.metric == SECONDS else 'prompts'} are too few for an interval"
        return of_seconds.get(self.word, few if self.word == "too few" else self.word)


@dataclass(frozen=True)
class VersionComparison:
    """The difference of two versions: rows by cell, cells that one side alone has, and remarks."""

    rows: tuple[Difference, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    notes: tuple[str, ...]


def check_suites(a: Store, b: Store) -> list[str]:
    """What of the two suites is not known to be equal, in words.

    Methods may differ: the shared cells are compared.
    """
    keys = [comparable(store.manifest.key.stored()) for store in (a, b)]
    shared = keys[0].keys() & keys[1].keys() - {"methods"}
    there, here = ({name: key[name] for name in shared} for key in keys)
    unlike = list(differences(there, here))
    if unlike:
        raise UsageError(
            f"the two versions run different suites: {'; '.join(unlike)}. Write one suite to a file, and name the file"
        )
    alone = sorted(keys[0].keys() ^ keys[1].keys())
    return [f"only one version knows {', '.join(alone)}, which may differ"] if alone else []


def ab(rounds: Sequence[tuple[Store, Store]]) -> VersionComparison:
    """Compare the cells that both sides finished in every round.

    Args:
        rounds: the runs of both sides, one pair a round; a round has one seed.
    """
    notes = [note for pair in rounds[:1] for note in check_suites(*pair)]
    sides = [
        [{unseeded(cell): cell for cell in map(pair[side].cell, pair[side].cells())} for pair in rounds]
        for side in (0, 1)
    ]
    known = [set.intersection(*(set(cells) for cells in side)) for side in sides]
    names = [{key: cell.meta.label or cell.name for key, cell in side[0].items()} for side in sides]
    shared = [key for key in sides[0][0] if key in known[0] & known[1]]
    if not shared:
        raise UsageError("no cell was finished by both versions in every round; `stride report` shows why")
    rows: list[Difference] = []
    for key in shared:
        a, b = ([cells[key] for cells in side] for side in sides)
        rows += _cell(a, b)
    alone = [tuple(label for key, label in one.items() if key not in shared) for one in names]
    return VersionComparison(tuple(_adjusted(rows)), alone[0], alone[1], tuple(notes))


def table(comparison: VersionComparison) -> TextTable:
    """The rows as a table; a cell's name stands once."""
    titles = (("cell", 0), ("figure", 1), ("a", 3), ("b", 3), ("b / a - 1", 2), ("verdict", 1))
    rows, previous = [], ""
    for row in comparison.rows:
        bounds = "" if row.low is None or row.high is None else f" [{row.low:+.1%}, {row.high:+.1%}]"
        change = "0" if row.word == "equal" else "-" if math.isinf(row.change) else f"{row.change:+.1%}{bounds}"
        name = "" if row.cell == previous else f"{row.label}, {row.setting}"
        figure = TITLES.get(row.metric, row.metric)
        rows.append([name, figure, number(row.a, 3), number(row.b, 3), change, row.verdict])
        previous = row.cell
    notes = [
        f"tests at {ALPHA:.0%} over all cells (Holm), 95 % intervals: of counts over prompts, of seconds over rounds",
        *comparison.notes,
        *(f"only in a: {name}" for name in comparison.only_a),
        *(f"only in b: {name}" for name in comparison.only_b),
    ]
    return TextTable("A/B", tuple(Column(title, title, rank=rank) for title, rank in titles), rows, notes)


def _cell(a: Sequence[SealedCell], b: Sequence[SealedCell]) -> Iterator[Difference]:
    """Yield the figures of one cell, whose rounds are given for both sides."""
    pairs = [_shared(*(totals(cell.samples, cell.steps) for cell in both)) for both in zip(a, b, strict=True)]
    before, after = (pd.concat([_numbered(pair[side], k) for k, pair in enumerate(pairs)]) for side in (0, 1))
    if before.empty:
        return
    row = _row(a[0].name, a[0].meta)
    drafts = bool(before["drafted"].sum() or after["drafted"].sum())
    one_a_step = all((side["nfe"] == side["steps"]).all() for side in (before, after))  # SCR is tau then
    names = [*(COUNTS[:2] if drafts else ()), *(() if one_a_step else COUNTS[2:])]
    for name in names:
        if (count := _count(replace(row, metric=name), before, after)) is not None:
            yield count
    if a[0].meta.timed and b[0].meta.timed:
        quiet = [all(disturbed_share(cell.steps) <= WAITING_STEPS for cell in both) for both in zip(a, b, strict=True)]
        yield _seconds(replace(row, metric=SECONDS), pairs, quiet)


def _row(name: str, meta: CellMeta) -> Difference:
    setting = f"{meta.backbone} {meta.dtype} {meta.task} {meta.sampling.words}"
    return Difference(name, meta.label or name, setting, "", 0.0, 0.0, 0.0)


def _shared(a: pd.DataFrame, b: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    index = a.index.intersection(b.index)
    return a.loc[index], b.loc[index]


def _numbered(frame: pd.DataFrame, turn: int) -> pd.DataFrame:
    """The frame with repetitions that no other round has."""
    index = [(prompt, repetition + turn * FAR) for prompt, repetition in frame.index]
    return frame.set_axis(pd.MultiIndex.from_tuples(index, names=["prompt", "repetition"]))


def _count(row: Difference, a: pd.DataFrame, b: pd.DataFrame) -> Difference | None:
    """Return a count with an interval over prompts, or None if neither side has anything of it."""
    metric = METRICS[row.metric]
    before, after = (value(metric, side) or 0.0 for side in (a, b))
    if not before and not after:
        return None
    row = replace(row, a=before, b=after, n=a.index.get_level_values("prompt").nunique())
    if not before:
        return replace(row, change=math.inf, word="only b has any")
    row = replace(row, change=after / before - 1)
    columns = [metric.numerator, metric.denominator]
    if a[columns].equals(b[columns]):
        return replace(row, word="equal", change=0.0, low=0.0, high=0.0)
    change = stats.change(a, b, metric.numerator, metric.denominator, metric.minus)
    if change is None or change.error is None:
        return replace(row, word="too few")
    return _tested(row, change.estimate, change.error, change.n)


def _seconds(row: Difference, pairs: Sequence[tuple[pd.DataFrame, pd.DataFrame]], quiet: Sequence[bool]) -> Difference:
    """Milliseconds a token, with an interval over rounds; disturbed ones are left out where enough others are there."""
    metric = METRICS[SECONDS]
    kept = [pair for pair, one in zip(pairs, quiet, strict=True) if one]
    used = kept if len(kept) >= stats.FEWEST_TESTED else list(pairs)
    rates = np.array([[value(metric, side) or np.nan for side in pair] for pair in used])
    rates = rates[np.isfinite(rates).all(axis=1)]
    if not len(rates):
        return replace(row, word="too few")
    a, b = (float(np.exp(np.log(side).mean())) for side in rates.T)
    logs = np.log(rates[:, 1] / rates[:, 0])
    row = replace(row, a=a, b=b, change=b / a - 1, n=len(rates))
    if len(rates) >= stats.FEWEST_TESTED:
        error = float(logs.std(ddof=1) / np.sqrt(len(logs)))
        row = _tested(row, float(logs.mean()), error, len(logs), logarithm=True)
    else:
        row = replace(row, word="too few")
    disturbed = len(quiet) - sum(quiet)
    return replace(row, word="disturbed") if disturbed and used is not kept else row


def _tested(row: Difference, estimate: float, error: float, n: int, logarithm: bool = False) -> Difference:
    """The row with interval, p and what would have been seen; its word waits for Holm's adjustment."""
    half, more = (float(stdtrit(n - 1, q)) * error for q in (1 - ALPHA / 2, POWER))
    bounds = (estimate - half, estimate + half, half + more)
    low, high, visible = (float(np.expm1(x)) for x in bounds) if logarithm else bounds
    p = float(2 * stdtr(n - 1, -abs(estimate) / error)) if error else float(estimate == 0)
    return replace(row, low=low, high=high, p=p, visible=visible)


def _adjusted(rows: Sequence[Difference]) -> Iterator[Difference]:
    """The rows with their words; counts and seconds are adjusted apart."""
    done = list(rows)
    for seconds in (True, False):
        tested = [i for i, row in enumerate(done) if row.p is not None and not row.word]
        tested = [i for i in tested if (done[i].metric == SECONDS) == seconds]
        adjusted = paired_tests.holm([done[i].p or 0.0 for i in tested])
        words = ("faster", "slower") if seconds else ("lower", "higher")
        for i, p in zip(tested, adjusted, strict=True):
            word = words[done[i].change > 0] if p < ALPHA else "no difference seen"
            done[i] = replace(done[i], p=p, word=word)
    return iter(done)
