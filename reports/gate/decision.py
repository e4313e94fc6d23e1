"""Did a change make decoding worse? Compares a run with a stored baseline, paired by prompt and seed.

Counts do not depend on hardware. Relative changes are tested in each cell: of tau - 1, acceptance and the drafts
expected to be accepted if it drafts, of SCR if that says more, of log-probability and scores, and of the speed-up
if the machines are equal and the baseline knows its noise. Raw tau is not tested, because every step emits one
token whatever it accepts.

- fail: a verdict got worse, an e-value refutes the claim, or a figure dropped significantly. The test is a one-sided
  bootstrap over prompts at 0.5 %, with Holm's adjustment over all rows. A drop within ``--margin`` never fails.
- pass: the records are identical, or the figure improved, or a loss of the stated size (the margin, 5 % if none is
  asked for) would have failed 95 times in 100 and the one-sided 95 % lower bound is above minus that size.
- inconclusive: neither, or too few prompts; the row says how many are needed. A speed-up, whose noise is the machine's,
  can fail the gate; where a loss of it would not be seen, its row is inconclusive, and a note of the gate says so.
- error: a cell, prompt or repetition of the baseline is missing or failed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from stridebench.harness.errors import number_of
from stridebench.harness.record import paired_tests, stats
from stridebench.harness.record.metrics import refuting_in
from stridebench.harness.record.store import Store
from stridebench.reports.finished_cell import WAITING_STEPS, disturbed_share
from stridebench.reports.gate.baseline import (
    TestedFigure,
    check,
    failed_samples,
    figures_of,
    frame_of,
    machine_of,
    tested,
    verdict_of,
)
from stridebench.reports.gate.document import COUNTS, SCORE, titled
from stridebench.reports.gate.matching import label_of

ALPHA = 0.05
"""One-sided level of the bounds."""
FAIL_ALPHA = 0.005
"""Level of a failure of the whole gate: half of 1 %, because a bootstrap over few prompts is overconfident."""
SECONDS = "speedup"
POWER = 0.95
"""How often a drop as large as the visible one fails."""
LOSS = 0.05
"""Loss that a pass has ruled out if the command names none."""
NEGLIGIBLE = 0.002
"""A drop below this never fails: rounding on another machine moves figures as much."""
EXIT = {"pass": 0, "fail": 1, "error": 2, "inconclusive": 4}
REPLAYABLE = ("tau_minus_1", "acceptance", "expected")
ORDER = ("exact", "approximate", "unverified", None, "broken")
"""Verdicts from the best to the worst; None if no sample succeeded."""


@dataclass(frozen=True)
class GateRow:
    """One test of one cell.

    Args:
        metric: a name of `baseline.tested`, "verdict" or "e-value".
        verdict: error, fail, inconclusive or pass.
        before: the metric of the baseline, over the pairs.
        after: the metric of the run, over the pairs.
        change: after / before - 1, with the sign turned where less is better.
        low: one-sided 95 % lower bound of the change.
        high: one-sided 95 % upper bound of the change.
        p: p-value of "no drop", adjusted by Holm.
        margin: the loss that a pass rules out.
        visible: the smallest true drop that fails 95 times in 100.
        noise: standard error of the change between equal runs, as A/A reruns show it.
    """

    cell: str
    label: str
    metric: str
    verdict: str
    why: str
    title: str = ""
    before: float | None = None
    after: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    error: float | None = None
    p: float | None = None
    margin: float | None = None
    visible: float | None = None
    noise: float | None = None
    pairs: int = 0
    prompts: int = 0
    clusters: int = 0
    identical: int = 0


@dataclass(frozen=True)
class GateResult:
    """The decision of a gate.

    Args:
        verdict: the worst verdict of the rows: error, fail, inconclusive, pass.
        removed: cells of the baseline whose method the run's suite does not have.
        notes: cells and figures that were not compared, and why.
        loss: the loss that a pass rules out.
    """

    verdict: str
    rows: tuple[GateRow, ...]
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    loss: float = LOSS

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 2 error, 4 inconclusive."""
        return EXIT[self.verdict]


def gate(
    store: Store, baseline: Mapping[str, Any], tolerated: float | None = None, min_prompts: int = stats.FEWEST
) -> GateResult:
    """Test every cell of ``baseline`` in ``store``.

    Args:
        tolerated: relative drop that never fails, and the loss that a pass rules out; 5 % if it is None.
        min_prompts: a cell with fewer prompts is inconclusive, even if it is identical.
    """
    check(store, baseline)
    finished, removed = {*store.cells(), *store.engine_cells()}, []
    seconds = machine_of(store) is not None and machine_of(store) == baseline.get("machine")
    rows: list[GateRow] = []
    for name, cell in baseline["cells"].items():
        planned = {**store.manifest.cells, **store.manifest.engines}
        if name not in planned and store.manifest.key.methods != baseline["key"].get("methods", []):
            removed.append(cell["label"])
            continue
        before = frame_of(cell)
        before = before if seconds else before.drop(columns="speedup", errors="ignore")
        after = _measured(store, name, finished)
        row = GateRow(name, cell["label"], "", "", "")
        rows += _cell_rows(row, before, after, min_prompts, cell.get("noise") or {})
    rows = [*_verdict_rows(store, baseline), *_e_value_rows(store), *decide(rows, tolerated)]
    known = {*baseline["cells"], *baseline.get("verdicts", {})}
    added = tuple(store.cell(name).meta.label or name for name in store.cells() if name not in known)
    notes = [] if seconds else ["seconds are not compared: the machines differ"]
    notes += [
        f"the speed-up of {titled(cell.name, cell.meta.label or cell.name)} is not compared: its timing was disturbed"
        for cell in (map(store.cell, store.cells()) if seconds else ())
        if disturbed_share(cell.steps) > WAITING_STEPS
    ]
    unseen = [row for row in rows if row.metric == SECONDS and row.verdict == "inconclusive"]
    notes += [f"the speed-up of {titled(row.cell, row.label)} is not judged: {row.why}" for row in unseen]
    if len(removed) == len(baseline["cells"]):
        rows = [GateRow("", "all cells", "", "error", "the run and the baseline share no method"), *rows]
    loss = LOSS if tolerated is None else tolerated
    judged = [row for row in rows if row not in unseen]
    return GateResult(worst(judged), tuple(rows), tuple(removed), added, tuple(notes), loss)


def joined(results: Sequence[GateResult]) -> GateResult:
    """Several results as one, with the worst verdict."""
    rows = tuple(row for result in results for row in result.rows)
    return GateResult(
        worst(results),
        rows,
        tuple(label for result in results for label in result.removed),
        tuple(label for result in results for label in result.added),
        tuple(note for result in results for note in result.notes),
        max(result.loss for result in results),
    )


def worst(rows: Sequence[GateRow | GateResult]) -> str:
    """The worst verdict of rows or results."""
    verdicts = {row.verdict for row in rows}
    return next(word for word in ("error", "fail", "inconclusive", "pass") if word in verdicts)


def _verdict_rows(store: Store, baseline: Mapping[str, Any]) -> Iterator[GateRow]:
    """Yield a failure for each cell whose verdict got worse, and for each new cell that is broken."""
    verdicts = baseline["verdicts"]
    for name in store.cells():
        cell = store.cell(name)
        before, after = verdicts.get(name), verdict_of(cell)
        worse = after == "broken" if name not in verdicts or before is None else _rank(after) > _rank(before)
        if worse and before != after:
            known = f"was {before} and" if before is not None else "of a new cell" if name not in verdicts else ""
            why = f"the verdict {known} is {after or 'none, since no sample succeeded'}".replace("  ", " ")
            yield GateRow(name, cell.meta.label or name, "verdict", "fail", why)

    for name in store.engine_cells():
        cell = store.cell(name)
        if cell.meta.role == "speculative" and cell.meta.judged.verdict == "broken":
            yield GateRow(name, label_of(cell), "verdict", "fail", "its drafts change what it samples")


def _rank(word: str | None) -> int:
    return ORDER.index(word) if word in ORDER else ORDER.index("unverified")


def _e_value_rows(store: Store) -> Iterator[GateRow]:
    """Yield a row for each audited cell that claims the target's distribution; the run's threshold refutes it."""
    metas = {name: store.cell(name).meta for name in store.cells()}
    threshold = refuting_in(metas.values())
    for name, meta in metas.items():
        log_e = meta.audit_log_e
        if log_e is None or meta.claim != "SAME_LAW":
            continue
        label, visible = meta.label or name, meta.audit_visible_tv
        if not np.isfinite(log_e) and log_e != np.inf:
            yield GateRow(name, label, "e-value", "inconclusive", f"the audit's e-value is {log_e}")
            continue
        text = f"log e = {log_e:.1f} after {meta.audit_tokens} tokens"
        text += f"; a bias of TV {visible:.2g} a token would be seen" if visible is not None else ""
        refuted = log_e >= np.log(threshold)
        why = f"refuted by {meta.audit_best}: {text}" if refuted else text
        yield GateRow(name, label, "e-value", "fail" if refuted else "pass", why)


@dataclass(frozen=True)
class MeasuredCell:
    """The figures of a finished cell (`figures_of`), and its samples or requests that failed."""

    figures: pd.DataFrame
    failures: pd.DataFrame


def _measured(store: Store, name: str, finished: Collection[str]) -> MeasuredCell | None:
    """Return a cell of a method or of an engine, or None if it is not finished."""
    if name not in finished:
        return None
    cell = store.cell(name)
    return MeasuredCell(figures_of(store, cell), failed_samples(cell))


def _cell_rows(
    row: GateRow, before: pd.DataFrame, measured: MeasuredCell | None, min_prompts: int, noise: Mapping[str, float]
) -> list[GateRow]:
    """Return the tests of one cell; a row with an empty verdict awaits Holm's adjustment."""
    if measured is None:
        return [replace(row, verdict="error", why="the run lacks this cell, or did not finish it")]
    failures = measured.failures
    failed = before.index.intersection(pd.MultiIndex.from_frame(failures[["prompt", "repetition"]]))
    if len(failed):
        names = ", ".join(f"{prompt} ({repetition})" for prompt, repetition in failed[:5])
        return [replace(row, verdict="error", why=f"{number_of(len(failed), 'sample')} failed: {names}")]
    after = measured.figures
    if len(missing := before.index.difference(after.index)):
        names = ", ".join(f"{prompt} ({repetition})" for prompt, repetition in missing[:5])
        why = f"the run lacks {len(missing)} of the baseline's {len(before)} samples: {names}"
        advice = "decode all of them, or make a baseline of the prompts that you decode with `stride gate make`"
        return [replace(row, verdict="error", why=f"{why}; {advice}")]
    after = after.loc[before.index]
    compared = [name for name in (*COUNTS, "nfe", "sha256") if name in before]
    equal = (before[compared] == after[compared]).all(axis=1)
    prompts = before.index.get_level_values("prompt").nunique()
    independent = stats.clusters(before.index, before.get("cluster")).nunique()
    row = replace(row, pairs=len(before), prompts=prompts, clusters=independent, identical=int(equal.sum()))
    figures = {name: figure for name, figure in tested(before, after).items() if figure.noise or name in noise}
    rows = [
        compare_figure(
            replace(row, metric=name, title=figure.title, noise=noise.get(name)), figure, before, after, min_prompts
        )
        for name, figure in figures.items()
    ]
    lost = [
        name for name in map(str, before) if name.startswith(SCORE) and name not in after and before[name].notna().any()
    ]
    why = "the run was not scored, and the baseline was"
    return rows + [replace(row, metric=name, verdict="inconclusive", why=why) for name in lost]


def compare_figure(
    row: GateRow, figure: TestedFigure, before: pd.DataFrame, after: pd.DataFrame, min_prompts: int
) -> GateRow:
    """The row with the change of a figure; without a verdict where `decide` is to give one."""
    row = replace(row, before=figure.value(before), after=figure.value(after))
    count = number_of(row.prompts, "prompt") if row.clusters == row.prompts else f"{row.clusters} clusters of prompts"
    if min(row.prompts, row.clusters) < min_prompts:
        return replace(row, verdict="inconclusive", why=f"{count}; {min_prompts} are needed")
    if row.clusters < stats.FEWEST:
        return replace(row, verdict="inconclusive", why=f"{count}; an interval needs {stats.FEWEST}")
    if figure.noise and row.identical == row.pairs and _equal(figure, before, after):
        noise = row.noise if row.noise is not None else figure.unpaired_error(before)
        return replace(row, verdict="pass", why="identical", change=0.0, low=0.0, high=0.0, noise=noise)
    change = figure.change(before, after)
    if change is None and not row.before:
        return _from_zero(row, figure, before, after)
    if change is None or change.error is None:
        return replace(row, verdict="inconclusive", why="nothing was counted any more")
    if not figure.noise:  # seconds: the machine's noise is in the A/A reruns, not in the spread over prompts
        error = max(change.error, row.noise or 0.0)
        half = float(stdtrit(row.clusters - 1, 1 - ALPHA)) * error
        p = float(stdtr(row.clusters - 1, change.estimate / error)) if error else 1.0
        low, high = change.estimate - half, change.estimate + half
        return replace(row, change=change.estimate, low=low, high=high, p=p, error=error)
    bounds, p_drop = change.interval(1 - 2 * ALPHA), change.p_below(0.0)
    return replace(row, change=change.estimate, low=bounds.low, high=bounds.high, p=p_drop, error=change.error)


def _from_zero(row: GateRow, figure: TestedFigure, before: pd.DataFrame, after: pd.DataFrame) -> GateRow:
    """The row of a figure that was 0, so that no relative change exists; an error rate that rose is never a pass."""
    if figure.sign > 0 or not row.after:
        return replace(row, verdict="pass", why="the baseline has none of it: there is nothing to lose")
    sides = [side.assign(one=1.0)[[figure.numerator, figure.denominator]] for side in (before, after)]
    paired = sides[0].add_suffix("_a").join(sides[1].add_suffix("_b"), how="inner")
    gain = stats.bootstrap(paired, lambda s: s[..., 0] / s[..., 1] - s[..., 2] / s[..., 3])
    p = gain.p_below(0.0) if gain is not None else None
    why = f"was 0 and is {row.after:.3g}, and a relative change does not exist"
    return replace(row, verdict="fail" if p is not None and p < FAIL_ALPHA else "inconclusive", why=why)


def _equal(figure: TestedFigure, before: pd.DataFrame, after: pd.DataFrame) -> bool:
    """Whether both sides have the same values of a figure, up to rounding; a missing value equals none."""
    names = [name for name in (figure.numerator, figure.denominator) if name != "one"]
    first, second = (side[names].to_numpy(dtype=np.float64) for side in (before, after))
    return bool(np.isclose(first, second, rtol=1e-9, atol=1e-12, equal_nan=True).all())


def decide(rows: list[GateRow], tolerated: float | None, margin: float = LOSS, loss: float = LOSS) -> list[GateRow]:
    """Give a verdict to the rows that have none yet, with Holm's adjustment over these.

    Args:
        tolerated: the drop that is asked for, or None. It replaces both of the following.
        margin: a row passes if a drop beyond this is excluded,
        loss: and if a loss of this size would have been seen.
    """
    harmless = NEGLIGIBLE if tolerated is None else tolerated
    margin, loss = (margin, loss) if tolerated is None else (tolerated, tolerated)
    undecided = [i for i, row in enumerate(rows) if not row.verdict]
    adjusted = paired_tests.holm([rows[i].p or 0.0 for i in undecided])
    for i, p in zip(undecided, adjusted, strict=True):
        row, error = rows[i], rows[i].error or 0.0
        critical, power = (stdtrit(row.clusters - 1, q) for q in (1 - FAIL_ALPHA / len(undecided), POWER))
        visible = max(harmless, critical * error) + power * error
        needed = int(np.ceil(row.prompts * ((critical + power) * error / loss) ** 2)) if loss else np.inf
        change, low = row.change or 0.0, row.low if row.low is not None else -np.inf
        if p < FAIL_ALPHA and change < -harmless:
            verdict, why = "fail", "a significant drop" + (f" beyond {harmless:.1%}" if tolerated is not None else "")
        elif low > 0:
            verdict, why = "pass", "improved"
        elif needed > row.prompts:
            verdict, why = "inconclusive", _unseen(row, loss, needed)
        elif low > -margin:
            verdict, why = "pass", f"a loss of {margin:.1%} is excluded"
        elif row.low is None:
            verdict, why = "inconclusive", "too few prompts differ for an interval"
        else:
            verdict, why = "inconclusive", f"the interval reaches beyond a drop of {margin:.1%}"
        rows[i] = replace(row, verdict=verdict, why=why, p=p, margin=margin, visible=float(min(visible, 1.0)))
    return [_with_visible(row) for row in rows]


def _unseen(row: GateRow, loss: float, needed: float) -> str:
    """Return how many prompts a loss needs to be seen; a replay needs fewer, and knows figures of drafts alone."""
    replayed = ", or `stride gate replay`" if row.metric in REPLAYABLE else ""
    return (
        f"a loss of {loss:.1%} would not be seen in {number_of(row.prompts, 'prompt')}: {needed:,} are needed{replayed}"
    )


def _with_visible(row: GateRow) -> GateRow:
    """Add to an identical row the drop that would have been seen in the noise of two unlike runs.

    If not even the loss of everything would have been seen, a row of counts is inconclusive. Quality is a function of
    the outputs alone, so equal outputs have lost none.
    """
    if row.visible is not None or not row.noise or row.clusters < stats.FEWEST:
        return row
    factor = stdtrit(row.clusters - 1, 1 - FAIL_ALPHA) + stdtrit(row.clusters - 1, POWER)
    row = replace(row, visible=float(min(factor * row.noise, 1.0)))
    if row.why == "identical" and row.visible == 1 and row.metric != "logprob" and not row.metric.startswith(SCORE):
        why = f"identical, but in {number_of(row.prompts, 'prompt')} no drop would have been seen; decode more of them"
        return replace(row, verdict="inconclusive", why=why)
    return row
