"""Tables of the engines of a run: speed under load, acceptance in both definitions, and the verdict of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console

from stridebench.harness.record.entries import SAMPLING, CellMeta, StoredCounters, sampling_words
from stridebench.harness.record.requests import measures
from stridebench.harness.record.store import Store
from stridebench.reports.text_table import (
    Column,
    TextTable,
    counts,
    described,
    e_value,
    markdown_lines,
    number,
    print_table,
    word,
)

if TYPE_CHECKING:
    from stridebench.reports.text_table import CellRow

SETTING = ("backbone", *SAMPLING, "task", "max_new_tokens")


def _samples(row: CellRow) -> str:
    return counts(row, "ok", "failed")


def _latency(key: str, digits: int, *ranks: int) -> Callable[[CellRow], str]:
    """Return the formatter of some percentiles of a latency."""

    def formatted(row: CellRow) -> str:
        numbers = [number(row.get(f"{key}_ms_p{rank}"), digits) for rank in ranks]
        return "-" if set(numbers) == {"-"} else " / ".join(numbers)

    return formatted


def _same(row: CellRow) -> str:
    """Return the share of outputs that equal those of the plain decode, and the share that was compared."""
    share = number(row.get("visible_share"))
    return number(row.get("same"), 3) + (f" ({share})" if share != "-" else "")


COLUMNS = described(
    Column("label", "engine", rank=0, formatter=word("label")),
    Column("load", "load", rank=1, formatter=word("load")),
    Column("verdict", "verdict", rank=1, formatter=word("verdict")),
    Column("samples", "ok/fail", rank=6, formatter=_samples),
    Column("tokens_per_second", "tokens/s", 1, rank=2),
    Column("speedup", "x plain", 2, rank=2),
    Column("length_per_draft_pooled", "length a draft", 2, rank=2),
    Column("length_per_pass_pooled", "length a pass", 2, rank=2),
    Column("length_per_draft_mean", "length a draft, mean of means", 2, rank=9),
    Column("length_per_pass_mean", "length a pass, mean of means", 2, rank=9),
    Column("told_length_mean", "length, as told", 2, rank=9),
    Column("acceptance", "accepted/drafted", 2, rank=5),
    Column("ttft", "TTFT p50/p95 ms", rank=4, formatter=_latency("ttft", 0, 50, 95)),
    Column("tpot", "TPOT p50/p95 ms", rank=4, formatter=_latency("tpot", 1, 50, 95)),
    Column("itl", "ITL p50/p95/p99 ms", rank=5, formatter=_latency("itl", 1, 50, 95, 99)),
    Column("goodput", "good requests/s", 2, rank=6),
    Column("same", "same as plain (visible share)", rank=3, formatter=_same),
    Column("floor", "plain again", 3, rank=7),
    Column("audit", "e (visible TV)", rank=3, formatter=e_value),
    tokens_per_second="output tokens over the wall time from the first sending to the last answer",
    speedup="tokens/s over those of its plain decode at the same setting and load",
    length_per_draft_pooled="1 + accepted / passes with a draft, over all requests",
    length_per_pass_pooled="output tokens / passes of the target, over all requests",
    length_per_draft_mean="the mean over requests of the length a draft",
    length_per_pass_mean="the mean over requests of the length a pass",
    told_length_mean="the mean acceptance length that the engine tells",
    acceptance="accepted over drafted tokens",
    ttft="from sending a request to the first part of its output",
    tpot="from the first to the last part of an output, over the tokens after the first part",
    itl="between two parts of an output; a part may hold several tokens",
    goodput="requests a second that kept the suite's objective",
    same="share of outputs that equal the plain decode's with the same seed; in brackets the share of differing "
    "ones that would be seen in 9 of 10 such runs",
    floor="share of outputs in which the plain decode, made again in another order and batch, equals itself",
    audit="evidence against tokens drawn from the backbone's distribution; in brackets the bias that it would see",
    load="requests under way at once, or requests a second",
    samples="requests that were answered, and that failed",
)


AUDITED = ("log_e", "visible_tv", "tokens", "best", "verdict")
"""Figures of an audit in a row."""


def summarise(store: Store) -> pd.DataFrame:
    """One row a cell of an engine; cells that are not finished have the status "unfinished"."""
    objective = (store.manifest.suite.load or {}).get("objective") or {}
    rows = [_row(store, name, objective) for name in store.manifest.engines]
    frame = pd.DataFrame(rows)
    if len(frame):
        frame["speedup"] = _speedups(frame)
    return frame


def _row(store: Store, name: str, objective: Mapping[str, Any]) -> dict[str, Any]:
    planned = store.manifest.engines[name]
    sampling = {word: getattr(planned.sampling, word) for word in SAMPLING}
    facts = {**planned.stored(), **sampling, "status": "unfinished", "verdict": ""}
    if not store.sealed(name):
        requests = store.requests(name)
        faults = [row.error for row in requests if row.status != "ok"]
        return {
            **facts,
            "n_ok": len([row for row in requests if row.status == "ok" and not row.warmup]),
            "note": faults[-1] if faults else "",
        }
    cell = store.cell(name)
    verdict = cell.meta.judged
    counted = cell.requests[~cell.requests["warmup"]]
    return {
        **facts,
        **measures(cell.requests, cell.meta.growth, objective),
        "status": "done",
        "verdict": verdict.verdict,
        "n_ok": int((counted["status"] == "ok").sum()),
        "n_failed": int((counted["status"] != "ok").sum()),
        "same": verdict.same,
        "visible_share": verdict.visible_share,
        "floor": verdict.floor,
        **{f"audit_{key}": getattr(verdict.audit, key, None) for key in AUDITED},
        "note": "; ".join(notes_of(cell.requests, cell.meta)),
    }


def notes_of(requests: pd.DataFrame, meta: CellMeta) -> Iterator[str]:
    """Yield the notes on a cell that its figures do not show."""
    failed = requests[requests["status"] != "ok"]
    for fault, rows in failed.groupby("fault"):
        yield f"{len(rows)} x {fault}: {rows['error'].iloc[0]}"
    verdict, counters = meta.judged, meta.counters or StoredCounters()
    told = requests["drafted"].dropna()
    drafted = float(told.sum()) if len(told) else meta.growth.get("drafted")
    if meta.role == "speculative" and drafted == 0:
        yield "nothing was drafted, so this was a plain decode"
    if counters.problem:
        yield f"counters: {counters.problem}"
    yield from (f"counters: {line}" for line in counters.disagree)
    yield from (f"identity: {line}" for line in verdict.broken_identities)
    margins = [abs(one.margin) for one in verdict.differences or [] if one.margin is not None]
    if margins:
        outputs = "1 output differs" if len(margins) == 1 else f"{len(margins)} outputs differ"
        yield (f"{outputs} first where the reference's logits are {min(margins):.2g} to {max(margins):.2g} apart")


def _speedups(frame: pd.DataFrame) -> list[float | None]:
    """Tokens a second over those of the plain entry at the same setting and load."""
    keys = [key for key in (*SETTING, "concurrency", "rate") if key in frame]
    plain = {
        (row["label"], *(row[key] for key in keys)): row.get("tokens_per_second")
        for _, row in frame[frame["role"] == "plain"].iterrows()
    }
    out: list[float | None] = []
    for _, row in frame.iterrows():
        below = plain.get((row["plain"], *(row[key] for key in keys)))
        own = row.get("tokens_per_second")
        both = number(own) != "-" and number(below) != "-" and bool(below)
        out.append(float(own) / float(below) if both and own is not None and below is not None else None)
    return out


def groups(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the title and the rows of each backbone, sampling, task and budget."""
    if frame.empty:
        return
    for names, rows in frame.groupby(list(SETTING), sort=False, dropna=False):
        backbone, *sampling, task, budget = names
        yield f"engines: {backbone}, {sampling_words(*sampling)}, {task}, {budget} tokens", rows


def finished(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that a table shows: a plain decode that was made again has none."""
    return rows[(rows["status"] == "done") & (rows["role"] != "floor")]


def text_tables(frame: pd.DataFrame) -> Iterator[TextTable]:
    """A table for each group."""
    for title, rows in groups(frame):
        done = finished(rows)
        cells = {column: [column.text(row) for _, row in done.iterrows()] for column in COLUMNS}
        columns = tuple(column for column in COLUMNS if set(cells[column]) - {"-"} or column.rank == 0)
        table = [list(row) for row in zip(*(cells[column] for column in columns), strict=True)]
        notes = [f"{row['label']}, load {row['load']}: {row['note']}" for _, row in rows.iterrows() if row["note"]]
        notes += [
            f"not finished: {row['label']}, load {row['load']}" for _, row in rows.iterrows() if row["status"] != "done"
        ]
        yield TextTable(title, columns, table, notes)


def terminal(frame: pd.DataFrame, console: Console) -> None:
    """Print every table."""
    for table in text_tables(frame):
        print_table(table, console)


def audits(frame: pd.DataFrame, console: Console) -> None:
    """Print the audit of each cell: its verdict, its e-value, its tokens and what would have been seen."""
    columns = (
        Column("label", "engine", rank=0, formatter=word("label")),
        Column("load", "load", rank=5, formatter=word("load")),
        Column("verdict", "verdict", rank=0, formatter=word("verdict")),
        Column("audit", "e (visible TV)", rank=0, formatter=e_value),
        Column("audit_tokens", "tokens", 0, rank=1),
        Column("audit_best", "best bet", rank=4, formatter=word("audit_best")),
    )
    rows = [[column.text(row) for column in columns] for _, row in frame.iterrows()]
    print_table(TextTable("audit of the engines' tokens", columns, rows, []), console)


def write(frame: pd.DataFrame, folder: Path, more: Sequence[TextTable] = ()) -> list[Path]:
    """Write engines.md, with further tables, and engines.csv; returns the files, none if there is no engine."""
    if frame.empty:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    for table in (*text_tables(frame), *more):
        lines += [f"### {table.title}", "", *markdown_lines([c.title for c in table.columns], table.rows), ""]
        lines += [*(f"- {note}" for note in table.notes), ""]
    files = [folder / "engines.md", folder / "engines.csv"]
    files[0].write_text("\n".join(lines), encoding="utf-8")
    frame.drop(columns=["sampling", "task_params", "options"], errors="ignore").to_csv(files[1], index=False)
    return files
