"""`stride paper predict`: speed-ups of a stored run on another machine, by its counts, host time and a profile."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pandas as pd
from rich.console import Console

from stridebench.harness.cli.main import emit, json_option
from stridebench.harness.errors import UsageError, printable_line
from stridebench.harness.record.store import Store
from stridebench.reports import machines, predict, text_table
from stridebench.reports.text_table import Column

COLUMNS = (
    Column("cell", "cell", rank=0),
    Column("predicted", "predicted", rank=0),
    Column("predicted_no_host", "predicted, no host", rank=0),
    Column("host_share", "host share", rank=1),
    Column("verdict", "verdict", rank=1),
    Column("flags", "flags", rank=1),
    Column("gains", "gain at batch", rank=2),
    Column("gains_no_host", "gain at batch, no host", rank=3),
    Column("predicted_median", "predicted, median", rank=1),
    Column("measured", "measured, median", rank=1),
)
OF_MEASURED = ("predicted_median", "measured")


@click.command(name="predict")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--machine", required=True, metavar="NAME", help="A profile that ships, or a .yaml file.")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Decodes in lock step.")
@click.option("--kernels", type=click.IntRange(0), help=f"Launches a pass.  [default: {predict.KERNELS} a layer]")
@click.option("--figure", type=click.Path(path_type=Path, dir_okay=False), help="A picture of --measured: the scatter.")
@click.option("--measured", is_flag=True, help="The run is of that machine: how far predictions are from it.")
@json_option("{machine, assumptions, cells, scatter}")
def command(
    run: Path, machine: str, batch: int, kernels: int | None, figure: Path | None, measured: bool, as_json: bool
) -> None:
    """Predict the speed-ups of a run on a machine that is not here, and the batches that gain.

    Counts and the host's time are the run's. By a data sheet a pass takes max(bytes / bandwidth, operations / rate) +
    launches; by measured passes it takes their sum. Each speed-up is followed by one without any time of the host. All
    assumptions are printed. `stride doctor --profile FILE` measures this machine and writes its profile.

    \b
    stride paper predict runs/mine --machine h100-sxm
    stride paper predict runs/mine --machine rtx-4090 --batch 16
    stride paper predict runs/mine --machine here.yaml --measured --figure scatter.png
    """
    if figure is not None and not measured:
        raise UsageError("--figure draws predictions over measurements: add --measured, for a run of that machine")
    profile, store = machines.machine(machine), Store.open(run)
    frame = predict.predict(store, profile, batch, kernels, measured)
    if why := predict.why_nothing(store, frame):
        raise UsageError(f"{run}: nothing can be predicted: {why}")
    spread = predict.scatter(frame) if measured else None
    if figure is not None:
        _draw(frame, figure, f"{run.name} on {profile.name}")
    launches = f"{predict.KERNELS} kernels a layer" if kernels is None else f"{kernels} kernels"
    launches += f" (a record without its layers: {machines.LAYERS})"
    assumptions = [text.format(kernels=launches) for text in predict.ASSUMPTIONS]
    if as_json:
        body = {"name": profile.name, "sources": dict(profile.sources)}
        cells = frame.astype(object).where(frame.notna(), None).to_dict("records")
        emit({"machine": body, "assumptions": assumptions, "cells": cells, "scatter": spread and vars(spread)})
        return
    _show(frame, f"predicted speed-up on {profile.name}, batch {batch}", measured)
    console = Console()
    if measured:
        console.print(_said(spread), highlight=False, markup=False)
    for line in [
        *(printable_line(f"{key}: {source}") for key, source in profile.sources.items()),
        *(f"- {a}" for a in assumptions),
    ]:
        console.print(line, highlight=False, markup=False)


def _show(frame: pd.DataFrame, title: str, measured: bool) -> None:
    columns = tuple(column for column in COLUMNS if measured or column.key not in OF_MEASURED)
    rows: list[dict[str, Any]] = [{str(key): item for key, item in row.items()} for row in frame.to_dict("records")]
    lines = [[_cell(row[column.key], column.key) for column in columns] for row in rows if row["reason"] is None]
    notes = [f"! {row['cell']}: {row[key]}" for row in rows for key in ("flags", "reason") if row[key]]
    text_table.print_table(text_table.TextTable(title, columns, lines, notes), Console())


def _cell(value: Any, key: str) -> str:
    if key in ("cell", "verdict"):
        return str(value)
    if key == "flags":  # the notes have them whole
        return ", ".join(dict.fromkeys(re.split(r": | \(", flag)[0] for flag in value.split("; "))) or "-"
    if key.startswith("gains"):
        return _ranges(value) if isinstance(value, list) else "-"
    share = key == "host_share" and pd.notna(value)
    return f"{value:.0%}" if share else text_table.number(value)


def _ranges(gains: list[tuple[int, int]]) -> str:
    """Write ranges of batches in words."""
    words = [f"from {first}" if last == predict.LARGEST else f"{first} to {last}" for first, last in gains]
    return ", ".join(words) or "no gain"


def _draw(frame: pd.DataFrame, path: Path, title: str) -> None:
    """Draw the scatter of predictions and measurements, or raise UsageError if no cell has both figures."""
    if predict.scatter(frame) is None:
        raise UsageError(f"--figure: {_said(None)}")
    predict.draw(frame, path, title)


def _said(spread: predict.Scatter | None) -> str:
    if spread is None:
        return "no cell has a predicted and a measured speed-up (a run with `timing: off` has none)"
    return (
        f"{spread.cells} cells, |predicted / measured - 1|, both medians over outputs: median {spread.median:.1%}, "
        f"worst {spread.worst:.1%} ({spread.worst_cell})"
    )
