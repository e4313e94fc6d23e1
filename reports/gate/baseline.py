"""The baseline of a gate: a run's counts by prompt and seed, its verdicts, and its noise between equal runs.

A step of an engine's request is a pass with a draft: `output` is what those passes emitted, one token and the accepted
drafts each, so that tau - 1 is the length a draft less 1. Requests that do not tell their steps are left out.

A baseline may hold reruns of the same suite with other seeds (A/A reruns). Nothing but chance separates them from the
run, so they say how far a figure of an unchanged system moves, seconds too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from stridebench.harness.errors import StoreError, UsageError
from stridebench.harness.record import stats
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.metrics import totals
from stridebench.harness.record.requests import counted as counted_requests
from stridebench.harness.record.stats import FloatArray
from stridebench.harness.record.store import Store
from stridebench.reports.finished_cell import WAITING_STEPS, FinishedCell, disturbed_share
from stridebench.reports.gate.document import COUNTS, SCORE, fault
from stridebench.reports.gate.matching import SERVED, configuration, digest_of, label_of
from stridebench.reports.quality import LOWER_IS_BETTER, NEUTRAL

SCHEMA = 2
WHERE = ("device", "machine", "allow_code_execution", "plugins")
"""Entries of a run's key that counts do not depend on."""
FIGURES = [*COUNTS, "nfe", "expected", "logprob", "speedup"]
"""Columns of a cell, besides ``score.NAME`` for each of the task's scores."""
FREE = "free_"
"""Prefix of the columns of `metrics.totals` that leave forced tokens out; a baseline stores these alone."""


@dataclass(frozen=True)
class TestedFigure:
    """A figure that a gate tests: a ratio of two totals, of which more is better unless ``sign`` is -1.

    Args:
        numerator: a column of `figures_of`, or "one" for the number of samples.
        minus: subtracted from the ratio.
        sign: 1 where more is better, -1 where less is.
        noise: whether the spread over the run's prompts says how far the figure moves between equal runs. Seconds move
            with the machine too, so only A/A reruns say that.
    """

    title: str
    numerator: str
    denominator: str
    minus: float = 0.0
    sign: int = 1
    noise: bool = True

    @property
    def quality(self) -> bool:
        """Whether it says how good outputs are, not how many a pass gives."""
        return self.numerator == "logprob" or self.numerator.startswith(SCORE)

    def unpaired_error(self, frame: pd.DataFrame) -> float | None:
        """Standard error of the change between two independent runs like this one; pairing can only lower it."""
        rows = self._columns(frame)
        one = stats.bootstrap(rows, lambda s: s[..., 0] / s[..., 1] - self.minus)
        if one is None or one.error is None or not one.estimate:
            return None
        return float(np.sqrt(2) * one.error / abs(one.estimate))

    def change(self, before: pd.DataFrame, after: pd.DataFrame) -> stats.Bootstrap | None:
        """The gain of ``after`` relative to the size of ``before``, over the rows in both; below 0: it got worse."""

        def gain(s: FloatArray) -> FloatArray:
            was, now = s[..., 0] / s[..., 1] - self.minus, s[..., 2] / s[..., 3] - self.minus
            relative: FloatArray = self.sign * (now - was) / np.abs(was)
            return relative

        sides = [self._columns(side).drop(columns="cluster", errors="ignore") for side in (before, after)]
        paired = sides[0].add_suffix("_a").join(sides[1].add_suffix("_b"), how="inner")
        clusters = {"cluster": before["cluster"].reindex(paired.index)} if "cluster" in before else {}
        return stats.bootstrap(paired.assign(**clusters), gain, resamples=10_000)

    def _columns(self, frame: pd.DataFrame) -> pd.DataFrame:
        names = [self.numerator, self.denominator, *(name for name in ("cluster",) if name in frame)]
        return frame.assign(one=1.0)[names]

    def value(self, frame: pd.DataFrame) -> float | None:
        """Return the figure over all rows that have it, or None if nothing was counted."""
        rows = frame.assign(one=1.0)[[self.numerator, self.denominator]].dropna()
        below = float(rows[self.denominator].sum())
        return float(rows[self.numerator].sum()) / below - self.minus if below else None


TESTED = {
    "tau_minus_1": TestedFigure("tau - 1", "output", "steps", minus=1.0),
    "acceptance": TestedFigure("acceptance", "accepted", "tested"),
    "expected": TestedFigure("expected accepted/step", "expected", "steps"),
    "scr": TestedFigure("SCR", "output", "nfe"),
    "logprob": TestedFigure("log-prob", "logprob", "output"),
    "speedup": TestedFigure("speed-up", "speedup", "one", noise=False),
}


def tested(before: pd.DataFrame, after: pd.DataFrame) -> dict[str, TestedFigure]:
    """Return the figures to test in a cell: those of drafts if it drafts, SCR if that is not tau, and its quality."""
    shared = [name for name in before.columns if name in after.columns]
    drafts = bool(before["drafted"].sum())
    names = ["tau_minus_1", "acceptance"] if drafts else []
    if drafts and "expected" in shared and before["expected"].sum() > 0:
        names.append("expected")
    if "nfe" in shared and (not drafts or any((side["nfe"] != side["steps"]).any() for side in (before, after))):
        names.append("scr")
    names += ["logprob"] if "logprob" in shared and before["logprob"].notna().any() else []
    timed = "speedup" in shared and all(side["speedup"].notna().any() for side in (before, after))
    names += ["speedup"] if timed else []
    scores = [name for name in shared if name.startswith(SCORE) and before[name].notna().any()]
    return {name: TESTED[name] for name in names} | {
        name: TestedFigure(title, name, "one", sign=-1 if title in LOWER_IS_BETTER else 1)
        for name in scores
        if (title := name.removeprefix(SCORE)) not in NEUTRAL
    }


def figures_of(store: Store, cell: SealedCell) -> pd.DataFrame:
    """Return FIGURES, the scores, the sha256 and the cluster of every counted sample; counts leave forced tokens out.

    ``speedup`` is the baseline's time of an output token over the cell's; missing without that baseline, and where
    threads waited for a core in a tenth of the steps of either. Of an engine's requests only the counts are known.
    """
    if cell.meta.engine:
        return _figures_of_requests(cell.requests)
    sums = totals(cell.samples, cell.steps)
    counted = cell.samples[(cell.samples["status"] == "ok") & ~cell.samples["warmup"]]
    counted = counted.set_index(["prompt", "repetition"])
    measured = counted["logprobs"].map(len).eq(counted["tokens"].map(len))
    times = sums["wall_ms"] / sums["output"]
    baseline = str(cell.meta.baseline)
    plain = store.cell(baseline) if _timed(store, cell, baseline) else None
    reference = totals(plain.samples, plain.steps) if plain is not None else None
    speedup = (reference["wall_ms"] / reference["output"] / times) if reference is not None else np.nan
    free = {name: sums[f"{FREE}{name}"] for name in (*COUNTS, "expected") if f"{FREE}{name}" in sums}
    sums = sums.assign(logprob=sums["logprob"].astype(float).where(measured), speedup=speedup, **free)
    counts = sums[[*COUNTS, "nfe"]].fillna(0).astype(int)  # a sample without steps has an empty output
    scored = not FinishedCell.of(cell).unscored
    scores = [json.loads(text) if text and scored else {} for text in counted["scores"]]
    table = pd.DataFrame(scores, index=counted.index).add_prefix(SCORE).astype(float)
    counts = counts.join(sums[["expected", "logprob", "speedup"]].astype(float)).join(table)
    return counts.join(counted[["sha256", "cluster"]]).sort_index()


def _figures_of_requests(requests: pd.DataFrame) -> pd.DataFrame:
    rows = counted_requests(requests).set_index(["prompt", "repetition"])
    rows = rows[rows[["draft_steps", "drafted", "accepted"]].notna().all(axis=1)].sort_index()
    steps, drafted, accepted = (rows[column].astype(int) for column in ("draft_steps", "drafted", "accepted"))
    columns = {"output": steps + accepted, "steps": steps, "accepted": accepted, "tested": drafted, "drafted": drafted}
    frame = pd.DataFrame({**columns, "nfe": steps}, index=rows.index)
    frame[["expected", "logprob", "speedup"]] = np.nan
    return frame.assign(sha256=[digest_of(*pair) for pair in zip(rows["tokens"], rows["text"], strict=True)])


def _timed(store: Store, cell: SealedCell, baseline: str) -> bool:
    """Whether the cell was timed, its baseline is there, and neither of the two was disturbed."""
    if not cell.meta.timed or baseline not in store.cells():
        return False
    return all(disturbed_share(one.steps) <= WAITING_STEPS for one in (cell, store.cell(baseline)))


def make_baseline(store: Store, again: Sequence[Store] = ()) -> dict[str, Any]:
    """Return the figures of every cell that does more than the reference decoding, and the verdicts of all, as JSON.

    Args:
        again: A/A reruns: finished runs of the same suite with other seeds.
    """
    for run in (store, *again):
        _refuse_unfinished(run)
    for run in again:
        _refuse_unlike(store, run)
    cells: dict[str, Any] = {}
    verdicts: dict[str, str | None] = {}
    for name in (*store.cells(), *store.engine_cells()):
        cell = store.cell(name)
        verdicts |= {} if cell.meta.engine else {name: verdict_of(cell)}
        if cell.meta.role in ("method", "speculative") and (figures := figures_of(store, cell))["steps"].sum():
            cells[name] = _entry(label_of(cell), figures, [_rerun(run, cell) for run in again])
    if not cells:
        raise UsageError(f"no finished cell of {store.path} drafts tokens or fills several a pass: nothing to guard")
    document = {"schema": SCHEMA, "kind": "stridebench baseline", "key": store.manifest.key.stored()}
    document |= {"reruns": len(again), "machine": machine_of(store), "cells": cells, "verdicts": verdicts}
    return {**document, "sha256": digest(document)}


def failed_samples(cell: SealedCell) -> pd.DataFrame:
    """Return the counted samples or requests of a cell that failed, which its figures leave out."""
    rows = cell.requests if cell.meta.engine else cell.samples
    return rows[(rows["status"] != "ok") & ~rows["warmup"].astype(bool)]


def _entry(label: str, figures: pd.DataFrame, reruns: Sequence[pd.DataFrame]) -> dict[str, object]:
    columns = ["prompt", "repetition", *figures.columns]
    return {"label": label, "columns": columns, "samples": _rows(figures), "noise": noise(figures, reruns)}


def with_replay(document: Mapping[str, Any], replay: Mapping[str, Any]) -> dict[str, object]:
    """The baseline with texts and their scores, under a new checksum.

    Args:
        replay: ``suite``, as dumped; ``cells``: label, texts and scores by name; ``skipped``: reasons by label.
    """
    content = {key: value for key, value in document.items() if key != "sha256"} | {"replay": dict(replay)}
    return {**content, "sha256": digest(content)}


def noise(before: pd.DataFrame, reruns: Sequence[pd.DataFrame]) -> dict[str, float]:
    """The standard error of each figure's change between equal runs, as the reruns show it; empty without reruns.

    It is the larger of two: the spread over prompts, and the changes that were seen.
    """
    errors: dict[str, float] = {}
    for name, figure in tested(before, before).items() if reruns else ():
        changes = [figure.change(before, rerun.reindex(columns=before.columns)) for rerun in reruns]
        usable = [(change.error, change.estimate) for change in changes if change and change.error is not None]
        if usable:
            spread, moved = (float(np.sqrt(np.mean(np.square(values)))) for values in zip(*usable, strict=True))
            errors[name] = max(spread, moved)
    return errors


def _rerun(run: Store, cell: SealedCell) -> pd.DataFrame:
    """The figures of the same cell of a rerun, whose name has another seed."""
    for name in run.engine_cells() if cell.meta.engine else run.cells():
        other = run.cell(name)
        if unseeded(other) == unseeded(cell):
            return figures_of(run, other)
    raise UsageError(f"{run.path} lacks a cell like {label_of(cell)}; rerun the same suite")


def unseeded(cell: SealedCell) -> str:
    """Return what two cells share that differ in nothing but the seed, as a key."""
    setting = ("backbone", "dtype", "task", "task_params", "sampling", "max_new_tokens", "batch")
    words = ("method", "label", "params", "role", *(word for word in SERVED if word != "seed"), *setting)
    return configuration(cell.meta, words)


def _refuse_unfinished(store: Store) -> None:
    cells = {**store.manifest.cells, **store.manifest.engines}
    planned = [name for name, meta in cells.items() if meta.status == "planned"]
    finished = {*store.cells(), *store.engine_cells()}
    if missing := [name for name in planned if name not in finished]:
        names = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise UsageError(
            f"the run in {store.path} is not finished: {len(missing)} of {len(planned)} cells are missing ({names}). "
            f"Finish it with `stride run ... --resume --out {store.path}`"
        )


def _refuse_unlike(store: Store, rerun: Store) -> None:
    first, second = (comparable(run.manifest.key.stored()) for run in (store, rerun))
    seeds = [key.pop("seed", None) for key in (first, second)]
    unlike = list(differences(first, second))
    if unlike:
        raise UsageError(
            f"{rerun.path} is not a rerun of {store.path}: {'; '.join(unlike)}. Change nothing but --seed."
        )
    if seeds[0] == seeds[1]:
        raise UsageError(
            f"{rerun.path} has the seed of {store.path}, so it shows no noise; run the suite again with --seed N"
        )


def verdict_of(cell: SealedCell) -> str | None:
    """Return the word of a cell's verdict, or None if no sample succeeded."""
    return cell.meta.verdict.word if cell.meta.verdict else None


def machine_of(store: Store) -> str | None:
    """The fingerprint of the machine, equal where times may be compared."""
    return store.manifest.provenance.fingerprint


def _rows(frame: pd.DataFrame) -> list[list[Any]]:
    return [[*map(_plain, index), *map(_plain, row)] for index, *row in frame.itertuples(name=None)]


def _plain(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value


def frame_of(cell: Mapping[str, Any]) -> pd.DataFrame:
    """The figures of a cell of a baseline, indexed by (prompt, repetition)."""
    frame = pd.DataFrame(cell["samples"], columns=cell["columns"]).set_index(["prompt", "repetition"])
    numbers = [name for name in frame.columns if name not in ("sha256", "cluster")]
    return frame.astype(dict.fromkeys(numbers, float)).astype(dict.fromkeys(COUNTS, int))


def digest(document: Mapping[str, Any]) -> str:
    """The checksum of a baseline's content."""
    content = {key: value for key, value in document.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check(store: Store, baseline: Mapping[str, Any]) -> None:
    """Refuse a baseline that must not be compared with this run."""
    check_content(baseline)
    _check_key(store, baseline)


def check_content(baseline: Mapping[str, Any]) -> None:
    """Refuse a document that is not a baseline."""
    if baseline.get("kind") != "stridebench baseline" or baseline.get("schema") != SCHEMA:
        raise StoreError(
            f"not a baseline of schema {SCHEMA} (kind {baseline.get('kind')!r}, schema "
            f"{baseline.get('schema')!r}); make one with `stride gate make RUN`"
        )
    if baseline.get("sha256") != digest(baseline):
        raise StoreError("the baseline does not match its checksum: it was cut short or edited; make it again")
    if words := fault(baseline):
        raise StoreError(f"the baseline {words}; make it again with `stride gate make RUN`")


def _check_key(store: Store, baseline: Mapping[str, Any]) -> None:
    there, here = _without_methods(baseline["key"], store.manifest.key.stored())
    unlike = list(differences(there, here))
    if unlike:
        raise UsageError(
            f"the baseline was made from another suite than {store.path}: {'; '.join(unlike)}. "
            f"Compare runs of one suite, or make a new baseline."
        )


def comparable(key: Mapping[str, Any]) -> dict[str, Any]:
    """A key without the entries that counts do not depend on."""
    return {name: value for name, value in key.items() if name not in WHERE}


def _without_methods(baseline: Mapping[str, Any], run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Both keys without methods, because the shared cells are compared.

    If the tasks differ, both lose the limit and the prompts as well: a run may have more prompts than the baseline.
    """
    keys = [{name: value for name, value in comparable(key).items() if name != "methods"} for key in (baseline, run)]
    if keys[0].get("tasks") == keys[1].get("tasks"):
        return keys
    unlimited = []
    for key in keys:
        tasks = [{name: value for name, value in task.items() if name != "limit"} for task in key.get("tasks", ())]
        unlimited.append({name: value for name, value in key.items() if name != "prompts"} | {"tasks": tasks})
    return unlimited


def differences(baseline: Any, run: Any, path: str = "") -> Iterator[str]:
    """Each leaf in which two keys differ, with both values."""
    if isinstance(baseline, Mapping) and isinstance(run, Mapping):
        for key in sorted({*baseline, *run}):
            yield from differences(baseline.get(key), run.get(key), f"{path}.{key}" if path else str(key))
    elif json.dumps(baseline, sort_keys=True) != json.dumps(run, sort_keys=True):
        yield f"{path} is {baseline!r} there and {run!r} here"
