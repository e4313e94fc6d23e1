"""Engines and methods of one run: a table and a picture.

Seconds are those of whole requests, the reading of the prompt included, one request at a time. ``x plain`` compares
them with the same engine's plain decode, or with autoregressive decoding here, paired by prompt and repetition: the
ratio of the sums of seconds a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from stridebench.harness.record import stats
from stridebench.harness.record.entries import SAMPLING
from stridebench.harness.record.requests import counted
from stridebench.harness.record.store import Store
from stridebench.reports import engines
from stridebench.reports.pareto import BROKEN, COLOURS, STYLE
from stridebench.reports.summary import reader, summarise
from stridebench.reports.text_table import Column, TextTable, markdown_lines, number, word

if TYPE_CHECKING:
    from stridebench.reports.text_table import CellRow


def _times(row: CellRow) -> str:
    low, high = (number(row[f"times_{end}"]) for end in ("low", "high"))
    return number(row["times_estimate"]) + ("" if low == "-" else f" [{low}, {high}]")


COLUMNS = (
    Column("label", "decoder", rank=0, formatter=word("label")),
    Column("temperature", "T", 0, rank=0),
    Column("tokens_per_second", "tokens/s", 1, rank=1),
    Column("times", "x plain", rank=1, formatter=_times),
    Column("length_per_draft", "length a draft", 2, rank=2),
    Column("length_per_pass", "length a pass", 2, rank=2),
    Column("verdict", "verdict", rank=1, formatter=word("verdict")),
)
SECONDS, TOKENS = "seconds", "tokens"


def of_requests(requests: pd.DataFrame) -> pd.DataFrame:
    """Seconds, tokens and seconds a token of each counted request, by (prompt, repetition)."""
    rows = counted(requests).set_index(["prompt", "repetition"]).sort_index()
    seconds = (rows["ended_ns"] - rows["sent_ns"]) / 1e9
    return _timed(seconds.astype(float), rows["output_tokens"].astype(float))


def _timed(seconds: pd.Series[float], tokens: pd.Series[float]) -> pd.DataFrame:
    return pd.DataFrame({SECONDS: seconds, TOKENS: tokens, "each": seconds / tokens.where(tokens > 0)})


def times(plain: pd.DataFrame, other: pd.DataFrame) -> stats.Interval | None:
    """How many times as fast: the ratio of the sums of seconds a token, over requests that both have."""
    return stats.ratio(pairs(plain, other), "plain", "other")


def pairs(plain: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Seconds a token of the requests that both have, as columns plain and other."""
    return pd.concat([plain["each"].rename("plain"), other["each"].rename("other")], axis=1, join="inner").dropna()


def rows(store: Store) -> pd.DataFrame:
    """One row a decoder and temperature that finished an output: engines at one request at a time, then methods."""
    return pd.DataFrame([row for row in (*_engines(store), *_methods(store)) if row["outputs"]])


def _engines(store: Store) -> Iterator[dict[str, Any]]:
    frame = engines.summarise(store)
    frame = frame[(frame["status"] == "done") & (frame["role"] != "floor") & (frame["concurrency"] == 1)]
    tables = {str(row["cell"]): of_requests(store.cell(str(row["cell"])).requests) for _, row in frame.iterrows()}
    keys = ["backbone", *SAMPLING, "task"]
    plain = {(row["label"], *row[keys]): tables[str(row["cell"])] for _, row in frame.iterrows() if not row["plain"]}
    for _, row in frame.iterrows():
        yield _row(
            row,
            tables[str(row["cell"])],
            plain.get((row["plain"], *row[keys])),
            row["length_per_draft_pooled"],
            row["length_per_pass_pooled"],
        )


def _methods(store: Store) -> Iterator[dict[str, Any]]:
    if not store.manifest.cells:
        return
    read = reader(store)
    frame = summarise(store, read)
    for _, row in frame[(frame["status"] == "done") & (frame["role"] != "floor")].iterrows():
        cell = read(str(row["cell"])).cell
        plain = str(cell.meta.baseline or "")
        drafts = cell.steps[~cell.steps["warmup"] & (cell.steps["drafted"] > 0)]
        length = 1 + drafts["accepted"].sum() / len(drafts) if len(drafts) else None
        compared = _of_samples(read, plain) if plain in store.cells() and plain != row["cell"] else None
        yield _row(row, _of_samples(read, str(row["cell"])), compared, length, row["scr"] if length else None)


def _of_samples(read: Any, name: str) -> pd.DataFrame:
    finished = read(name)
    samples, sums = finished.samples, finished.totals
    before = (samples["prefill_ns"] + samples.get("open_ns", 0)) / 1e9
    return _timed(before + sums["wall_s"], sums["output"].astype(float)).sort_index()


def _row(
    row: Mapping[Any, Any] | pd.Series[Any],
    table: pd.DataFrame,
    plain: pd.DataFrame | None,
    per_draft: Any,
    per_pass: Any,
) -> dict[str, Any]:
    interval = times(plain, table) if plain is not None and len(plain) and len(table) else None
    return {
        **{name: row[name] for name in ("backbone", "task", "label", "temperature", "verdict")},
        "outputs": len(table),
        "tokens_per_second": float(table[TOKENS].sum() / table[SECONDS].sum()) if len(table) else None,
        **{f"times_{end}": getattr(interval, end, None) for end in ("estimate", "low", "high")},
        "length_per_draft": per_draft,
        "length_per_pass": per_pass,
    }


def table(frame: pd.DataFrame) -> TextTable:
    """The rows as text."""
    lines = [[column.text(row) for column in COLUMNS] for row in frame.to_dict("records")]
    return TextTable("engines and methods, one request at a time", COLUMNS, lines, [])


def write(frame: pd.DataFrame, folder: Path) -> list[Path]:
    """Write side_by_side.md, .csv and .png; returns the files, none where nothing is finished."""
    if frame.empty:
        return []
    text = table(frame)
    files = [folder / f"side_by_side.{kind}" for kind in ("md", "csv", "png")]
    lines = [f"### {text.title}", "", *markdown_lines([column.title for column in COLUMNS], text.rows), ""]
    files[0].write_text("\n".join(lines), encoding="utf-8")
    frame.to_csv(files[1], index=False)
    _draw(frame, files[2])
    return files


def _draw(frame: pd.DataFrame, path: Path) -> None:
    """A bar of tokens a second for each decoder, a panel for each temperature."""
    panels = list(frame.groupby("temperature", sort=True))
    tallest = max(len(part) for _, part in panels)
    with rc_context(STYLE):
        sheet = Figure(figsize=(5.2 * len(panels), 0.9 + 0.34 * tallest), layout="constrained")
        FigureCanvasAgg(sheet)
        for axes, (temperature, part) in zip(sheet.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            places = np.arange(len(part))
            plain = part["times_estimate"].isna()
            colours = np.where(part["verdict"] == "broken", BROKEN, np.where(plain, COLOURS[5], COLOURS[0]))
            axes.barh(places, part["tokens_per_second"], color=list(colours), height=0.7)
            for place, row in zip(places, part.to_dict("records"), strict=True):
                gain = "" if pd.isna(row["times_estimate"]) else f"{row['times_estimate']:.2f}x, "
                text = f" {gain}{row['verdict']}" if row["verdict"] else f" {gain}".rstrip(", ")
                axes.text(row["tokens_per_second"], place, text, va="center", fontsize=7)
            axes.set_yticks(places, list(part["label"]), fontsize=8)
            axes.invert_yaxis()
            axes.set_xlim(0, 1.6 * float(part["tokens_per_second"].max()))
            axes.set_xlabel("tokens/s")
            axes.set_title(f"T = {temperature:g}", fontsize=9)
        sheet.savefig(path, dpi=120)
