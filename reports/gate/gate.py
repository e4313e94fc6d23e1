"""Did acceptance get worse? A run against a stored baseline, on counts, paired by prompt and seed.

Counts do not depend on hardware. Two relative changes are tested in each cell that drafts, of tau - 1 (never
of raw tau, which one token a step props up) and of the acceptance rate along the path:

- fail: confidently below zero (one-sided bootstrap over prompts at 2.5 %, Holm over all rows), and the change
  itself beyond the margin;
- pass: the records are identical, or the one-sided 95 % lower bound is above minus the margin;
- inconclusive: neither, or too few prompts;
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

from harness.errors import StoreError, UsageError
from harness.record import stats
from harness.record.ledger import METRICS, totals
from reports.text_table import markdown_lines, number

if TYPE_CHECKING:
    from harness.record.store import Cell, Store

SCHEMA = 1
WHERE = ("device", "machine", "allow_code_execution")
"""Parts of a run's key that counts do not depend on."""
ALPHA = 0.05
"""One-sided, of a bound; a red light asks for half, because with six prompts a bootstrap is too sure."""
FAIL_ALPHA = 0.025
EXIT = {"pass": 0, "fail": 1, "error": 2, "inconclusive": 4}
TESTED = ("tau_minus_1", "acceptance")
COUNTS = ["output", "steps", "accepted", "tested", "drafted"]
FREE = "free_"
"""Of the columns of `ledger.totals` without forced tokens, which are all that a baseline holds."""


@dataclass(frozen=True)
class Row:
    """One test of one cell.

    Args:
        before, after: the metric, over the pairs. change: relative, after / before - 1; low, high: its
            one-sided 95 % bounds; error: its standard error. p: of "no drop", adjusted by Holm.
        visible: the smallest drop that this many prompts would have failed four times in five.
        pairs, prompts: compared; identical: pairs of equal outputs and counts.
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
    """Of a gate: the worst verdict of its rows (error, fail, inconclusive, pass), and the margin."""

    verdict: str
    rows: tuple[Row, ...]
    margin: float

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 2 error, 4 inconclusive."""
        return EXIT[self.verdict]


def make_baseline(store: Store) -> dict[str, Any]:
    """The counts of every finished cell that drafts, as a JSON document with its own checksum.

    Raises:
        UsageError: no cell drafts, so there is nothing to guard.
    """
    cells = {}
    for name in store.cells():
        cell = store.cell(name)
        counts = counts_of(cell)
        if counts["drafted"].sum():
            rows = [[*map(_plain, index), *map(_plain, row)] for index, *row in counts.itertuples(name=None)]
            cells[name] = {"label": cell.meta.get("label", name), "samples": rows}
    if not cells:
        raise UsageError(f"no finished cell of {store.path} drafts tokens: a gate would compare nothing")
    columns = ["prompt", "repetition", *COUNTS, "sha256"]
    made = {"schema": SCHEMA, "kind": "stridebench baseline", "key": dict(store.manifest["key"])}
    made |= {"columns": columns, "cells": cells}
    return {**made, "sha256": _digest(made)}


def counts_of(cell: Cell) -> pd.DataFrame:
    """Columns COUNTS, forced tokens left out of the last three, and sha256 of every counted sample."""
    found = totals(cell.samples, cell.steps)
    found = found.assign(**{name: found[f"{FREE}{name}"] for name in COUNTS if f"{FREE}{name}" in found})
    frame = found[COUNTS].fillna(0).astype(int)  # no step: an empty output
    good = cell.samples[(cell.samples["status"] == "ok") & ~cell.samples["warmup"]]
    return frame.join(good.set_index(["prompt", "repetition"])["sha256"]).sort_index()


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _digest(document: Mapping[str, Any]) -> str:
    held = {key: value for key, value in document.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()


def gate(store: Store, baseline: Mapping[str, Any], margin: float = 0.05, min_prompts: int = 6) -> Result:
    """Test every cell of ``baseline`` in ``store``.

    Args:
        margin: relative drop that is tolerated. min_prompts: below it a cell that differs is inconclusive,
            and so is one that is identical.

    Raises:
        StoreError: the baseline is damaged or of another schema.
        UsageError: it was made from another suite; names the keys that differ.
    """
    _check(store, baseline)
    rows: list[Row] = []
    for name, held in baseline["cells"].items():
        before = pd.DataFrame(held["samples"], columns=baseline["columns"]).set_index(["prompt", "repetition"])
        after = store.cell(name) if name in store.cells() else None
        rows += _cell_rows(Row(name, held["label"], "", "", ""), before, after, min_prompts)
    rows = _decide(rows, margin)
    worst = next(word for word in ("error", "fail", "inconclusive", "pass") if any(r.verdict == word for r in rows))
    return Result(worst, tuple(rows), margin)


def _check(store: Store, baseline: Mapping[str, Any]) -> None:
    if baseline.get("kind") != "stridebench baseline" or baseline.get("schema") != SCHEMA:
        raise StoreError(
            f"not a baseline of schema {SCHEMA} (kind {baseline.get('kind')!r}, schema "
            f"{baseline.get('schema')!r}); make one with `stride baseline make RUN`"
        )
    if baseline.get("sha256") != _digest(baseline):
        raise StoreError("the baseline does not match its checksum: it was cut short or edited; make it again")
    there, here = _comparable(baseline["key"], store.manifest["key"])
    differing = list(_differences(there, here))
    if differing:
        raise UsageError(
            f"the baseline was made from another suite than {store.path}: {'; '.join(differing)}. "
            f"Compare runs of one suite, or make a new baseline."
        )


def _comparable(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Both keys, without where they ran; and without the number of prompts where that alone differs.

    The shared prompts are compared then.
    """
    theirs, ours = ({k: v for k, v in key.items() if k not in WHERE} for key in (theirs, ours))
    if theirs.get("tasks") == ours.get("tasks"):
        return [dict(theirs), dict(ours)]
    bare = []
    for key in (theirs, ours):
        tasks = [{name: value for name, value in task.items() if name != "limit"} for task in key.get("tasks", ())]
        bare.append({**{name: value for name, value in key.items() if name != "prompts"}, "tasks": tasks})
    return bare


def _differences(theirs: Any, ours: Any, path: str = "") -> Iterator[str]:
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for key in sorted({*theirs, *ours}):
            yield from _differences(theirs.get(key), ours.get(key), f"{path}.{key}" if path else str(key))
    elif json.dumps(theirs, sort_keys=True) != json.dumps(ours, sort_keys=True):
        yield f"{path} is {theirs!r} there and {ours!r} here"


def _cell_rows(row: Row, before: pd.DataFrame, cell: Cell | None, min_prompts: int) -> list[Row]:
    """The tests of one cell; a row whose verdict is still empty awaits Holm's adjustment."""
    if cell is None:
        return [replace(row, verdict="error", why="the run has no such finished cell")]
    bad = cell.samples[(cell.samples["status"] != "ok") & ~cell.samples["warmup"]]
    failed = before.index.intersection(pd.MultiIndex.from_frame(bad[["prompt", "repetition"]]))
    if len(failed):
        named = ", ".join(f"{prompt} ({repetition})" for prompt, repetition in failed[:5])
        return [replace(row, verdict="error", why=f"{len(failed)} samples failed: {named}")]
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
    values = [stats.ratio(frame, *columns, metric.minus) for frame in (before, after)]
    old, new = (one.estimate if one else None for one in values)
    row = replace(row, before=old, after=new)
    if row.prompts < min_prompts:
        return replace(row, verdict="inconclusive", why=f"{row.prompts} prompts; {min_prompts} are needed")
    if row.identical == row.pairs:
        return replace(row, verdict="pass", why="identical", change=0.0, low=0.0, high=0.0)
    found = stats.change(before, after, *columns, metric.minus)
    if found is None:
        nothing = not row.before
        why = "the baseline accepted nothing: there is nothing to lose" if nothing else "nothing was tested any more"
        return replace(row, verdict="pass" if nothing else "inconclusive", why=why)
    bounds, p = found.interval(1 - 2 * ALPHA), found.p_below(0.0)
    row = replace(row, change=found.estimate, low=bounds.low, high=bounds.high, p=p, error=found.error)
    return row if p is not None else replace(row, verdict="inconclusive", why="too many prompts accept nothing")


def _decide(rows: list[Row], margin: float) -> list[Row]:
    """Verdicts of the rows that have none yet, with Holm's adjustment over all of them."""
    open_rows = [i for i, row in enumerate(rows) if not row.verdict]
    adjusted = stats.holm([rows[i].p or 0.0 for i in open_rows])
    for i, p in zip(open_rows, adjusted, strict=True):
        row, error = rows[i], rows[i].error or 0.0
        critical = t.ppf(1 - FAIL_ALPHA / len(open_rows), row.prompts - 1)
        seen = max(margin, critical * error) + t.ppf(0.8, row.prompts - 1) * error
        change, low = row.change or 0.0, row.low or 0.0
        if p < FAIL_ALPHA and change < -margin:
            verdict, why = "fail", f"a drop beyond the margin of {margin:.0%}"
        elif low > -margin:
            verdict, why = "pass", "improved" if low > 0 else "within the margin"
        else:
            verdict, why = "inconclusive", f"the interval reaches beyond a drop of {margin:.0%}: more prompts"
        rows[i] = replace(row, verdict=verdict, why=why, p=p, visible=float(min(seen, 1.0)))
    return rows


def markdown(result: Result) -> str:
    """The verdict and a table of all rows."""
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
    """JUnit XML: a test case a row; inconclusive rows are skipped tests with their reason."""
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
        case = ET.SubElement(suite, "testcase", classname=row.cell, name=f"{row.label}: {row.metric or 'present'}")
        text = f"{row.why}; change {_percent(row.change)} [{_percent(row.low)}, {_percent(row.high)}]"
        if row.verdict in words:
            ET.SubElement(case, words[row.verdict], message=text)
        else:
            ET.SubElement(case, "system-out").text = text
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"
