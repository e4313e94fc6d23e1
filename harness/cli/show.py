"""`stride show`: one cell of a run, one of its outputs token by token, or an engine's requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import click
import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from stridebench.harness.cli.main import emit, json_option, say
from stridebench.harness.errors import UsageError, printable, printable_line
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.metrics import METRICS, acceptance_by_depth, totals, value
from stridebench.harness.record.outputs import (
    ACCEPTED,
    BONUS,
    CORRECTED,
    DECODED,
    FORCED,
    ORIGINS,
    json_values,
    origins,
)
from stridebench.harness.record.run_folders import match_name, match_prompt
from stridebench.harness.record.store import Store
from stridebench.reports.engine_rows import summarise_engines
from stridebench.reports.finished_cell import reader
from stridebench.reports.html.cell_facts import CellFacts, engine_facts
from stridebench.reports.summary import row_of
from stridebench.reports.tables import COLUMN

COLOURS = {ACCEPTED: "green", CORRECTED: "red", BONUS: "blue", FORCED: "yellow", DECODED: "default"}
COUNTS = ("drafted", "tested", "accepted", "emitted", "forced")
BLOCK = "\N{BLACK SQUARE}"
"""Stands for a token of an output that is not text."""
STEPS = 24
"""The table shows at most so many steps; --json has all."""
TOLD = ("prompt_tokens", "output_tokens", "finish", "draft_steps", "drafted", "accepted", "histogram", "error")


@click.command(name="show")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("cell", required=False)
@click.option("--prompt", help="Print this prompt, its output with every token by its origin, and its steps.")
@json_option("the cell's meta and metrics")
def command(run: Path, cell: str | None, prompt: str | None, as_json: bool) -> None:
    """Print a cell's verdict, speed-up and e-value, its metrics, acceptance by depth and outputs.

    CELL is a cell's label in the run's table, its id, or parts of it in their order that no other cell has, such as
    prompt_lookup.T0. The ID of a prompt may be its beginning, or its end after a slash, if no other prompt has that.

    \b
    stride show runs/quick-20260101-120000                        the ids of its cells
    stride show runs/quick-20260101-120000 prompt_lookup.T0
    stride show runs/quick-20260101-120000 "eagle2 depth=2 width=2 nodes=4 T=1"
    stride show runs/quick-20260101-120000 prompt_lookup.T0 --prompt HumanEval/3
    """
    store = Store.open(run)
    if cell is None and prompt is not None:
        raise UsageError("--prompt shows an output of one cell: stride show RUN CELL --prompt ID")
    ids = [*store.cells(), *store.engine_cells()]
    if cell is None:
        if as_json:
            emit(ids)
        else:
            say("\n".join(ids) or f"{run}: no finished cell")
        return
    name = match_name(ids, cell)
    if name in store.engine_cells():
        show_engine(store, name, prompt, as_json)
        return
    finished = store.cell(name)
    if prompt is not None:
        show_prompt(finished, prompt, as_json)
        return
    document = _document(finished)
    if as_json:
        emit(document)
        return
    _print(document, finished, row_of(name, store.cells(), reader(store)))


class CellDocument(TypedDict):
    """A cell in ``--json``: its facts, its metrics, and its acceptance by depth."""

    meta: Mapping[str, object]
    metrics: Mapping[str, float | None]
    depths: Sequence[Mapping[str, Any]]


def _document(cell: SealedCell) -> CellDocument:
    frame = totals(cell.samples, cell.steps)
    counted = cell.steps[~cell.steps["warmup"].astype(bool)]
    return {
        "meta": cell.meta.stored(),
        "metrics": {name: value(metric, frame) for name, metric in METRICS.items()},
        "depths": [vars(depth) for depth in acceptance_by_depth(counted)],
    }


def headline(row: Mapping[str, Any]) -> str:
    """Return the verdict, the speed-up and the e-value of a row of the summary, those that it has."""
    named = {"speed-up": "speedup", "e (visible TV)": "audit"}
    figures = {title: COLUMN[key].text(row) for title, key in named.items()}
    told = [f"{title} {text}" for title, text in figures.items() if text != "-"]
    return ", ".join([COLUMN["verdict"].text(row), *told])


def _print(document: CellDocument, cell: SealedCell, summary: Mapping[str, Any]) -> None:
    console = Console()
    meta = cell.meta
    console.print(Text(printable(headline(summary)), "bold"))
    sampled = f", {meta.sampling.words}"
    setting = f" on {meta.backbone} in {meta.dtype}{sampled}, {meta.task}"
    console.print(f"[bold]{escape(printable(meta.label))}[/]{escape(printable(setting))}")
    for key, item in (meta.verdict.stored() if meta.verdict else {}).items():
        if item not in (None, []):
            name = "verdict" if key == "word" else key.replace("_", " ")
            console.print(printable(f"  {name}: {item}"), highlight=False, markup=False)
    table = Table("metric", "value", "formula", header_style="bold")
    for name, number in document["metrics"].items():
        table.add_row(name, "" if number is None else f"{number:.4g}", METRICS[name].formula)
    console.print(table)
    if document["depths"]:
        depths = Table("depth", "marginal", "conditional", title="acceptance by depth", header_style="bold")
        for at in document["depths"]:
            conditional = "" if at["conditional"] is None else f"{at['conditional']:.3f}"
            depths.add_row(str(at["depth"]), f"{at['marginal']:.3f}", conditional)
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


def show_prompt(cell: SealedCell, prompt: str, as_json: bool) -> None:
    """Print the counted decodes of a prompt."""
    prompt = match_prompt(list(dict.fromkeys(cell.samples["prompt"])), printable_line(prompt))  # as it is stored
    samples = cell.samples[(cell.samples["prompt"] == prompt) & ~cell.samples["warmup"].astype(bool)]
    steps = cell.steps[(cell.steps["prompt"] == prompt) & ~cell.steps["warmup"].astype(bool)]
    if as_json:
        emit({"samples": samples.to_dict("records"), "steps": steps.to_dict("records")})
        return
    console = Console(highlight=False, markup=False)
    asked = _text(samples.iloc[0], "prompt_text")
    console.print(Text("prompt", "bold"))
    console.print(Text(printable(asked) if asked else "(the run does not hold its text)"))
    for _, sample in samples.iterrows():
        _print_decode(console, sample, steps[steps["repetition"] == sample["repetition"]])


def _print_decode(console: Console, sample: pd.Series[Any], steps: pd.DataFrame) -> None:
    console.print(Text(f"\noutput of repetition {sample['repetition']}", "bold"))
    if sample["status"] != "ok":
        console.print(Text(printable(str(sample["error"]))))
        return
    kinds = origins(steps.itertuples(), len(sample["tokens"]))
    pieces = [printable(str(piece)) for piece in (() if sample.get("pieces") is None else sample["pieces"])]
    text, file = printable(str(sample["text"])), file_of(sample)
    if kinds is None or (text and len(pieces) != len(kinds)):
        console.print(Text(text or file or f"{len(sample['tokens'])} tokens without a text"))
        in_any_order = "positions were filled in any order, so that no token has one origin"
        textless = "the run holds no text of single tokens; the steps say how many were accepted"
        console.print(Text(f"({in_any_order if kinds is None else textless})", "dim"))
    else:
        if not text:
            console.print(Text(f"{file or 'no text'}, a block a token:"))
        shown = pieces if text else [BLOCK] * len(kinds)
        console.print(Text.assemble(*((piece, COLOURS[kind]) for piece, kind in zip(shown, kinds, strict=True))))
        lines = [(f"{kind} {kinds.count(kind)}: {ORIGINS[kind]}\n", COLOURS[kind]) for kind in ORIGINS if kind in kinds]
        console.print(Text.assemble(*lines, end=""))
    console.print(_table(steps, pieces))
    if len(steps) > STEPS:
        console.print(Text(f"{len(steps) - STEPS} more steps: --json has all", "dim"))


def file_of(sample: pd.Series[Any]) -> str:
    """Return the file of an output that is not text, such as a picture, in the run folder; "" if there is none."""
    return printable(_text(sample, "output"))


def _table(steps: pd.DataFrame, pieces: list[str]) -> Table:
    """Return the table of steps, with the text that each emitted if it is known."""
    table = Table("step", *COUNTS, "ms", *(["text"] if pieces else []), header_style="bold")
    first = 0
    for _, step in steps.head(STEPS).iterrows():
        end = first + int(step["emitted"])
        numbers = [str(int(step[name])) for name in COUNTS]
        text = "".join(pieces[first:end]).replace("\n", "\\n")
        table.add_row(
            str(int(step["step"])), *numbers, f"{step['wall_ns'] / 1e6:.1f}", *([Text(text[:40])] if pieces else [])
        )
        first = end
    return table


def _text(sample: pd.Series[Any], column: str) -> str:
    """Return a text of a column, or "" if the run lacks it."""
    value = sample.get(column)
    return value if isinstance(value, str) else ""


def show_engine(store: Store, name: str, prompt: str | None, as_json: bool) -> None:
    """Print a cell, or its requests of one prompt."""
    cell = store.cell(name)
    if prompt is not None:
        _show_requests(cell, prompt, as_json)
        return
    frame = summarise_engines(store)
    row = frame[frame["cell"] == name].iloc[0]
    if as_json:
        meta = cell.meta.stored()
        emit({"meta": meta, "metrics": {key: row[key] for key in row.index if key not in meta}})
        return
    _print_engine(engine_facts(row, cell))


def _print_engine(facts: CellFacts) -> None:
    console = Console(highlight=False, markup=False)
    console.print(Text(f"{facts.label}: {'no verdict' if facts.verdict == '-' else facts.verdict}", "bold"))
    console.print(f"{facts.setting}\n{facts.meaning}")
    for name, text in (*facts.evidence, *facts.params):
        console.print(f"  {name}: {text}")
    table = Table("measure", "value", "meaning", header_style="bold")
    for name, text, _, meaning in facts.metrics:
        table.add_row(*map(Text, (name, text, meaning)))
    console.print(table)
    for note in facts.flags:
        console.print(f"- {note}")


def _show_requests(cell: SealedCell, prompt: str, as_json: bool) -> None:
    rows = cell.requests[~cell.requests["warmup"]]
    found = match_prompt(list(dict.fromkeys(rows["prompt"])), printable_line(prompt))
    rows = rows[rows["prompt"] == found]
    if as_json:
        emit({"requests": rows.to_dict("records")})
        return
    console = Console(highlight=False, markup=False)
    for row in rows.to_dict("records"):
        console.print(Text(f"{found}, repetition {row['repetition']}: {row['status']}", "bold"))
        told = {name: value for name in TOLD if (value := json_values(row[name])) not in (None, "")}
        console.print(", ".join(f"{name} {printable_line(str(value))}" for name, value in told.items()))
        console.print(Text(printable(str(row["text"] or ""))))
