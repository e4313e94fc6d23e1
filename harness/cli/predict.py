"""`stride predict`: speed-ups of a stored run on another machine, from its counts and a profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pandas as pd
from rich.console import Console

from harness.cli.main import emit
from harness.record.store import Store
from reports import predict, text_table


@click.command(name="predict")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--machine", required=True, metavar="NAME", help="A profile that ships, or a .yaml file.")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Decodes in lock step.")
@click.option("--kernels", type=click.IntRange(0), default=predict.KERNELS, show_default=True, help="Launches a pass.")
@click.option("--measured", is_flag=True, help="The run is of that machine: how far predictions are from it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: {machine, assumptions, cells, scatter}.")
def command(run: Path, machine: str, batch: int, kernels: int, measured: bool, as_json: bool) -> None:
    """Predict the speed-ups of a run on a machine that is not here, and the batch at which they end.

    The counts are the run's. A pass takes max(bytes / bandwidth, operations / rate) + launches, by the profile. All
    assumptions are printed. `stride doctor --profile FILE` measures this machine and writes its profile.

    \b
    stride predict runs/mine --machine h100-sxm
    stride predict runs/mine --machine rtx-4090 --batch 16
    stride predict runs/mine --machine here.yaml --measured
    """
    profile = predict.machine(machine)
    frame = predict.predict(Store.open(run), profile, batch, kernels, measured)
    spread = predict.scatter(frame) if measured else None
    assumptions = [text.format(kernels=kernels) for text in predict.ASSUMPTIONS]
    if as_json:
        body = {"name": profile.name, "sources": dict(profile.sources)}
        cells = frame.astype(object).where(frame.notna(), None).to_dict("records")
        emit({"machine": body, "assumptions": assumptions, "cells": cells, "scatter": spread and vars(spread)})
        return
    _show(frame, f"predicted speed-up on {profile.name}, batch {batch}", measured)
    console = Console()
    if measured:
        console.print(_said(spread), highlight=False, markup=False)
    for line in [*(f"{key}: {source}" for key, source in profile.sources.items()), *(f"- {a}" for a in assumptions)]:
        console.print(line, highlight=False, markup=False)


def _show(frame: pd.DataFrame, title: str, measured: bool) -> None:
    names = ["cell", "predicted", "no gain from batch", *(["measured"] if measured else [])]
    columns = tuple(text_table.Column(name, name, rank=rank) for rank, name in enumerate(names))
    rows = frame.to_dict("records")
    lines = [_line({str(key): value for key, value in row.items()}, measured) for row in rows if row["reason"] is None]
    notes = [f"! {row['cell']}: {row['reason']}" for row in rows if row["reason"] is not None]
    text_table.print_table(text_table.TextTable(title, columns, lines, notes), Console())


def _line(row: dict[str, Any], measured: bool) -> list[str]:
    ends = f"{row['crossover']:.0f}" if pd.notna(row["crossover"]) else f"none to {predict.LARGEST}"
    told = [f"{row['measured']:.2f}" if pd.notna(row["measured"]) else "-"] if measured else []
    return [str(row["cell"]), f"{row['predicted']:.2f}", ends, *told]


def _said(spread: predict.Scatter | None) -> str:
    if spread is None:
        return "no cell has a predicted and a measured speed-up"
    return (
        f"{spread.cells} cells, |predicted / measured - 1|: median {spread.median:.1%}, "
        f"worst {spread.worst:.1%} ({spread.worst_cell})"
    )
