"""`stride show`: one cell of a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stridebench.harness.cli import show_engine
from stridebench.harness.cli.main import emit, say
from stridebench.harness.cli.show_prompt import file_of, show_prompt
from stridebench.harness.errors import UnknownNameError, UsageError, printable
from stridebench.harness.record.metrics import METRICS, acceptance_by_depth, totals, value
from stridebench.harness.record.store import Cell, Store


@click.command(name="show")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("cell", required=False)
@click.option("--prompt", help="Print this prompt, its output with every token by its origin, and its steps.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: the cell's meta and metrics.")
def command(run: Path, cell: str | None, prompt: str | None, as_json: bool) -> None:
    """Print a cell's verdict, metrics, acceptance by depth and outputs.

    CELL is a cell's id, parts of it in their order that no other cell has, such as prompt_lookup.T0, or its label in
    the run's table. The ID of a prompt may be its beginning, or its end behind a slash, where no other prompt has that.

    \b
    stride show runs/quick-20260101-120000                        the ids of its cells
    stride show runs/quick-20260101-120000 prompt_lookup.T0
    stride show runs/quick-20260101-120000 prompt_lookup.T0 --prompt HumanEval/3
    """
    store = Store.open(run)
    if cell is None and prompt is not None:
        raise UsageError("--prompt shows an output of one cell: stride show RUN CELL --prompt ID")
    of_engines = show_engine.names(store)
    if cell is None:
        ids = [*store.cells(), *of_engines]
        if as_json:
            emit(ids)
        else:
            say("\n".join(ids) or f"{run}: no finished cell")
        return
    name = match_name([*store.cells(), *of_engines], cell)
    if name in of_engines:
        show_engine.show(store, name, prompt, as_json)
        return
    finished = store.cell(name)
    if prompt is not None:
        show_prompt(finished, prompt, as_json)
        return
    document = _document(finished)
    if as_json:
        emit(document)
        return
    _print(document, finished)


def match_cell(store: Store, text: str) -> str:
    """The only cell of a method in a run that fits a text; rules and errors as of ``match_name``."""
    return match_name(list(store.cells()), text)


def match_name(ids: list[str], text: str) -> str:
    """The only cell whose id is ``text``, begins with it, contains it, or contains its parts in their order.

    A label of the run's table, such as ``sjdpp tau=0.25``, is read as the beginning of an id.

    Raises:
        UnknownNameError: there is no such cell. UsageError: there are several; they are listed.
    """
    if text in ids:
        return text
    label = re.sub(r"[^\w=+-]+", "-", text, flags=re.ASCII).strip("-")  # as `Cell.id` writes it
    parts = re.compile(".*".join(map(re.escape, text.split("."))))
    for matches in (
        [name for name in ids if name.startswith(f"{text}.")],
        [name for name in ids if label and name.startswith(f"{label}.")],
        [name for name in ids if name.startswith(f"{text}-")],
        [name for name in ids if text in name],
        [name for name in ids if parts.search(name)],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            listed = "".join(f"\n  {name}" for name in matches)
            raise UsageError(f"{text!r} fits {len(matches)} cells; write more of one's id:{listed}")
    raise UnknownNameError("cell", text, ids)


def _document(cell: Cell) -> dict[str, Any]:
    frame = totals(cell.samples, cell.steps)
    counted = cell.steps[~cell.steps["warmup"].astype(bool)]
    return {
        "meta": cell.meta,
        "metrics": {name: value(metric, frame) for name, metric in METRICS.items()},
        "depths": [vars(depth) for depth in acceptance_by_depth(counted)],
    }


def _print(document: dict[str, Any], cell: Cell) -> None:
    console = Console()
    meta = document["meta"]
    temperature = (meta.get("sampling") or {}).get("temperature")
    sampled = "" if temperature is None else f", T = {temperature:g}"
    setting = f" on {meta['backbone']} in {meta['dtype']}{sampled}, {meta['task']}"
    console.print(f"[bold]{escape(printable(meta['label']))}[/]{escape(printable(setting))}")
    for key, item in (meta.get("verdict") or {}).items():
        if item not in (None, []):
            name = "verdict" if key == "word" else key.replace("_", " ")
            console.print(printable(f"  {name}: {item}"), highlight=False, markup=False)
    table = Table("metric", "value", "formula", header_style="bold")
    for name, number in document["metrics"].items():
        table.add_row(name, "" if number is None else f"{number:.4g}", METRICS[name].formula)
    console.print(table)
    if document["depths"]:
        depths = Table("depth", "marginal", "conditional", title="acceptance by depth", header_style="bold")
        for row in document["depths"]:
            conditional = "" if row["conditional"] is None else f"{row['conditional']:.3f}"
            depths.add_row(str(row["depth"]), f"{row['marginal']:.3f}", conditional)
        console.print(depths)
    samples = Table("prompt", "rep", "status", "tokens", "agreement", "output", header_style="bold")
    for _, row in cell.samples[~cell.samples["warmup"].astype(bool)].iterrows():
        text = (
            row["error"]
            if row["status"] == "failed"
            else " ".join(str(row["text"]).split())[:60] or Path(file_of(row)).name
        )
        agreement = "" if row["agreement"] != row["agreement"] else f"{row['agreement']:.2f}"
        samples.add_row(
            escape(printable(row["prompt"])),
            str(row["repetition"]),
            row["status"],
            str(len(row["tokens"])),
            agreement,
            escape(printable(text)),
        )
    console.print(samples)
