"""Did acceptance get worse? Compares the counts of a run with a stored baseline, paired by prompt and seed.

Counts do not depend on hardware. Two relative changes are tested in each cell that drafts: of tau - 1 and of the
acceptance rate along the path. Raw tau is not tested, because every step emits one token whatever it accepts.

- fail: a verdict fell from exact or became broken; or a change is significantly below zero and exceeds the margin. The
  test is a one-sided bootstrap over prompts at 2.5 %, with Holm's adjustment over all rows.
- pass: the records are identical, or the one-sided 95 % lower bound is above minus the margin.
- inconclusive: neither, or too few prompts.
- error: a cell, prompt or repetition of the baseline is missing or failed.
"""

from __future__ import annotations

import hashlib
import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.stats import t

from harness.errors import StoreError, UsageError, printable
from harness.record import stats
from harness.record.metrics import METRICS, totals
from reports.text_table import markdown_lines, number

if TYPE_CHECKING:
    from harness.record.store import Cell, Store

SCHEMA = 1
WHERE = ("device", "machine", "allow_code_execution")
"""Entries of a run's key that counts do not depend on."""
ALPHA = 0.05
"""One-sided level of the bounds."""
FAIL_ALPHA = 0.025
"""Level of a failure: half of ``ALPHA``, because a bootstrap over six prompts is overconfident."""
EXIT = {"pass": 0, "fail": 1, "error": 2, "inconclusive": 4}
TESTED = ("tau_minus_1", "acceptance")
COUNTS = ["output", "steps", "accepted", "tested", "drafted"]
FREE = "free_"
"""Prefix of the columns of `metrics.totals` that leave forced tokens out; a baseline stores these alone."""


@dataclass(frozen=True)
class Row:
    """One test of one cell.

    Args:
        cell: its name in the store.
        label: its name in tables.
        metric: one of ``TESTED``.
        verdict: error, fail, inconclusive or pass.
        why: the reason of the verdict.
        before: the metric of the baseline, over the pairs.
        after: the metric of the run, over the pairs.
        change: after / before - 1.
        low: one-sided 95 % lower bound of the change.
        high: one-sided 95 % upper bound of the change.
        error: standard error of the change.
        p: p-value of "no drop", adjusted by Holm.
        visible: the smallest drop that this many prompts would fail four times in five.
        pairs: samples compared.
        prompts: prompts compared.
        identical: pairs of equal outputs and counts.
    """

    cell: str
    label: str
    metric: str
    verdict: str
    why: str
    before: float | None = None
    after: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    error: float | None = None
    p: float | None = None
    visible: float | None = None
    pairs: int = 0
    prompts: int = 0
    identical: int = 0


@dataclass(frozen=True)
class Result:
    """What a gate found.

    Args:
        verdict: the worst verdict of the rows: error, fail, inconclusive, pass.
        rows: one a cell and metric.
        margin: the relative drop that was tolerated.
    """

    verdict: str
    rows: tuple[Row, ...]
    margin: float

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 2 error, 4 inconclusive."""
        return EXIT[self.verdict]


def make_baseline(store: Store) -> dict[str, Any]:
    """Return the counts of every cell that drafts and the verdicts of all, as a JSON document with its own checksum.

    Raises:
        UsageError: the run is not finished, or no cell drafts, so there is nothing to guard.
    """
    planned = [name for name, meta in store.manifest["cells"].items() if meta.get("status") == "planned"]
    finished = set(store.cells())
    if missing := [name for name in planned if name not in finished]:
        names = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise UsageError(
            f"the run in {store.path} is not finished: {len(missing)} of {len(planned)} cells are missing ({names}). "
            f"Finish it with `stride run ... --resume --out {store.path}`"
        )
    cells, verdicts = {}, {}
    for name in store.cells():
        cell = store.cell(name)
        counts = counts_of(cell)
        verdicts[name] = _verdict(cell)
        if counts["drafted"].sum():
            rows = [[*map(_plain, index), *map(_plain, row)] for index, *row in counts.itertuples(name=None)]
            cells[name] = {"label": cell.meta.get("label", name), "samples": rows}
    if not cells:
        raise UsageError(f"no finished cell of {store.path} drafts tokens: a gate would compare nothing")
    columns = ["prompt", "repetition", *COUNTS, "sha256"]
    document = {"schema": SCHEMA, "kind": "stridebench baseline", "key": dict(store.manifest["key"])}
    document |= {"columns": columns, "cells": cells, "verdicts": verdicts}
    return {**document, "sha256": _digest(document)}


def _verdict(cell: Cell) -> str | None:
    """Return the word of a cell's verdict; None where no sample succeeded."""
    word: str | None = (cell.meta.get("verdict") or {}).get("word")
    return word


def counts_of(cell: Cell) -> pd.DataFrame:
    """Return columns COUNTS and sha256 of every counted sample; the last three counts leave forced tokens out."""
    sums = totals(cell.samples, cell.steps)
    sums = sums.assign(**{name: sums[f"{FREE}{name}"] for name in COUNTS if f"{FREE}{name}" in sums})
    counts = sums[COUNTS].fillna(0).astype(int)  # a sample without steps has an empty output
    counted = cell.samples[(cell.samples["status"] == "ok") & ~cell.samples["warmup"]]
    return counts.join(counted.set_index(["prompt", "repetition"])["sha256"]).sort_index()


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _digest(document: Mapping[str, Any]) -> str:
    content = {key: value for key, value in document.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def gate(store: Store, baseline: Mapping[str, Any], margin: float = 0.05, min_prompts: int = 6) -> Result:
    """Test every cell of ``baseline`` in ``store``.

    Args:
        store: the run.
        baseline: a document of ``make_baseline``.
        margin: relative drop that is tolerated.
        min_prompts: a cell with fewer prompts is inconclusive, even where it is identical.

    Raises:
        StoreError: the baseline is damaged or has another schema.
        UsageError: the baseline was made from another suite; the message names the keys that differ.
    """
    _check(store, baseline)
    rows: list[Row] = []
    for name, cell in baseline["cells"].items():
        before = pd.DataFrame(cell["samples"], columns=baseline["columns"]).set_index(["prompt", "repetition"])
        after = store.cell(name) if name in store.cells() else None
        rows += _cell_rows(Row(name, cell["label"], "", "", ""), before, after, min_prompts)
    rows = [*_verdict_rows(store, baseline), *_decide(rows, margin)]
    verdicts = {row.verdict for row in rows}
    worst = next(word for word in ("error", "fail", "inconclusive", "pass") if word in verdicts)
    return Result(worst, tuple(rows), margin)


def _verdict_rows(store: Store, baseline: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a failure for each cell whose verdict was exact and is not any more, or is broken and was not."""
    finished = set(store.cells())
    for name, before in baseline.get("verdicts", {}).items():  # older baselines have none
        if name in finished and before is not None:
            cell = store.cell(name)
            after = _verdict(cell)
            if after != before and (before == "exact" or after == "broken"):
                why = f"the verdict was {before} and is {after or 'none, since no sample succeeded'}"
                yield Row(name, cell.meta.get("label", name), "verdict", "fail", why)


def _check(store: Store, baseline: Mapping[str, Any]) -> None:
    if baseline.get("kind") != "stridebench baseline" or baseline.get("schema") != SCHEMA:
        raise StoreError(
            f"not a baseline of schema {SCHEMA} (kind {baseline.get('kind')!r}, schema "
            f"{baseline.get('schema')!r}); make one with `stride baseline make RUN`"
        )
    if baseline.get("sha256") != _digest(baseline):
        raise StoreError("the baseline does not match its checksum: it was cut short or edited; make it again")
    stored, current = _comparable(baseline["key"], store.manifest["key"])
    differing = list(_differences(stored, current))
    if differing:
        raise UsageError(
            f"the baseline was made from another suite than {store.path}: {'; '.join(differing)}. "
            f"Compare runs of one suite, or make a new baseline."
        )


def _comparable(baseline: Mapping[str, Any], run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Both keys without the entries of ``WHERE``.

    Where the tasks differ, both lose the limit and the prompts as well: the shared prompts are compared.
    """
    keys = [{name: value for name, value in key.items() if name not in WHERE} for key in (baseline, run)]
    if keys[0].get("tasks") == keys[1].get("tasks"):
        return keys
    unlimited = []
    for key in keys:
        tasks = [{name: value for name, value in task.items() if name != "limit"} for task in key.get("tasks", ())]
        unlimited.append({name: value for name, value in key.items() if name != "prompts"} | {"tasks": tasks})
    return unlimited


def _differences(baseline: Any, run: Any, path: str = "") -> Iterator[str]:
    if isinstance(baseline, Mapping) and isinstance(run, Mapping):
        for key in sorted({*baseline, *run}):
            yield from _differences(baseline.get(key), run.get(key), f"{path}.{key}" if path else str(key))
    elif json.dumps(baseline, sort_keys=True) != json.dumps(run, sort_keys=True):
        yield f"{path} is {baseline!r} there and {run!r} here"


def _cell_rows(row: Row, before: pd.DataFrame, cell: Cell | None, min_prompts: int) -> list[Row]:
    """Return the tests of one cell; a row with an empty verdict awaits Holm's adjustment."""
    if cell is None:
        return [replace(row, verdict="error", why="the run has no such finished cell")]
    failures = cell.samples[(cell.samples["status"] != "ok") & ~cell.samples["warmup"]]
    failed = before.index.intersection(pd.MultiIndex.from_frame(failures[["prompt", "repetition"]]))
    if len(failed):
        names = ", ".join(f"{prompt} ({repetition})" for prompt, repetition in failed[:5])
        return [replace(row, verdict="error", why=f"{len(failed)} samples failed: {names}")]
    after = counts_of(cell)
    before = before.loc[before.index.intersection(after.index)]
    if before.empty:
        return [replace(row, verdict="error", why="the run and the baseline share no prompt")]
    after = after.loc[before.index]
    equal = (before[[*COUNTS, "sha256"]] == after[[*COUNTS, "sha256"]]).all(axis=1)
    prompts = before.index.get_level_values("prompt").nunique()
    row = replace(row, pairs=len(before), prompts=prompts, identical=int(equal.sum()))
    return [_test(replace(row, metric=name), before, after, min_prompts) for name in TESTED]


def _test(row: Row, before: pd.DataFrame, after: pd.DataFrame, min_prompts: int) -> Row:
    metric = METRICS[row.metric]
    columns = (metric.numerator.removeprefix(FREE), metric.denominator.removeprefix(FREE))
    ratios = [stats.ratio(frame, *columns, metric.minus) for frame in (before, after)]
    row = replace(row, before=_estimate(ratios[0]), after=_estimate(ratios[1]))
    if row.prompts < min_prompts:
        return replace(row, verdict="inconclusive", why=f"{row.prompts} prompts; {min_prompts} are needed")
    if row.prompts < stats.FEWEST:
        return replace(row, verdict="inconclusive", why=f"{row.prompts} prompts; an interval needs {stats.FEWEST}")
    if row.identical == row.pairs:
        return replace(row, verdict="pass", why="identical", change=0.0, low=0.0, high=0.0)
    change = stats.change(before, after, *columns, metric.minus)
    if change is None and not row.before:
        return replace(row, verdict="pass", why="the baseline accepted nothing: there is nothing to lose")
    if change is None:
        return replace(row, verdict="inconclusive", why="nothing was tested any more")
    bounds, p = change.interval(1 - 2 * ALPHA), change.p_below(0.0)
    row = replace(row, change=change.estimate, low=bounds.low, high=bounds.high, p=p, error=change.error)
    return row if p is not None else replace(row, verdict="inconclusive", why="too many prompts accept nothing")


def _estimate(interval: stats.Interval | None) -> float | None:
    return interval.estimate if interval else None


def _decide(rows: list[Row], margin: float) -> list[Row]:
    """Give a verdict to the rows that have none yet, with Holm's adjustment over these."""
    undecided = [i for i, row in enumerate(rows) if not row.verdict]
    adjusted = stats.holm([rows[i].p or 0.0 for i in undecided])
    for i, p in zip(undecided, adjusted, strict=True):
        row, error = rows[i], rows[i].error or 0.0
        critical = t.ppf(1 - FAIL_ALPHA / len(undecided), row.prompts - 1)
        visible = max(margin, critical * error) + t.ppf(0.8, row.prompts - 1) * error
        change, low = row.change or 0.0, row.low or 0.0
        if p < FAIL_ALPHA and change < -margin:
            verdict, why = "fail", f"a drop beyond the margin of {margin:.0%}"
        elif low > -margin:
            verdict, why = "pass", "improved" if low > 0 else "within the margin"
        else:
            verdict, why = "inconclusive", f"the interval reaches beyond a drop of {margin:.0%}: more prompts"
        rows[i] = replace(row, verdict=verdict, why=why, p=p, visible=float(min(visible, 1.0)))
    return rows


def markdown(result: Result) -> str:
    """Return the verdict and a table of all rows."""
    titles = ["cell", "metric", "verdict", "before", "after", "change", "p", "visible drop", "prompts", "why"]
    rows = [
        [
            row.label,
            row.metric.replace("tau_minus_1", "tau - 1"),
            row.verdict,
            number(row.before, 3),
            number(row.after, 3),
            _percent(row.change) + (f" [{_percent(row.low)}, {_percent(row.high)}]" if row.p is not None else ""),
            number(row.p, 4),
            _percent(row.visible).lstrip("+"),
            str(row.prompts),
            row.why,
        ]
        for row in result.rows
    ]
    note = "change: relative, with one-sided 95 % bounds; p: of no drop, Holm; visible drop: seen 4 times in 5"
    head = f"# Gate: {result.verdict} (margin {result.margin:.0%})"
    return "\n".join([head, "", *markdown_lines(titles, rows), "", note, ""])


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"


def junit(result: Result) -> str:
    """Return JUnit XML: one test case a row. Inconclusive rows are skipped tests with their reason."""
    counts = {word: sum(row.verdict == word for row in result.rows) for word in EXIT}
    suite = ET.Element(
        "testsuite",
        name="stride gate",
        tests=str(len(result.rows)),
        failures=str(counts["fail"]),
        errors=str(counts["error"]),
        skipped=str(counts["inconclusive"]),
    )
    words = {"fail": "failure", "error": "error", "inconclusive": "skipped"}
    for row in result.rows:
        case = ET.SubElement(
            suite, "testcase", classname=printable(row.cell), name=printable(f"{row.label}: {row.metric or 'present'}")
        )
        text = f"{row.why}; change {_percent(row.change)} [{_percent(row.low)}, {_percent(row.high)}]"
        if row.verdict in words:
            ET.SubElement(case, words[row.verdict], message=printable(text))
        else:
            ET.SubElement(case, "system-out").text = printable(text)
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"
