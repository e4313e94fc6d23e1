"""`stride show RUN CELL` of an engine's cell: its verdict and what it rests on, its measures, and its requests."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stridebench.harness.cli.main import emit
from stridebench.harness.cli.show_prompt import match_prompt
from stridebench.harness.errors import printable, printable_line
from stridebench.harness.record.entries import json_values
from stridebench.harness.record.request_store import EngineCell, RequestStore
from stridebench.harness.record.store import Store
from stridebench.reports import engines
from stridebench.reports.html.engine_facts import EngineFacts, engine_facts

TOLD = ("prompt_tokens", "output_tokens", "finish", "draft_steps", "drafted", "accepted", "histogram", "error")


def names(store: Store) -> list[str]:
    """Finished cells of engines."""
    return RequestStore.of(store.path, store.manifest).cells()


def show(store: Store, name: str, prompt: str | None, as_json: bool) -> None:
    """Print a cell, or its requests of one prompt.

    Raises:
        UnknownNameError: the cell has no such prompt. UsageError: it has several; they are listed.
    """
    cell = RequestStore.of(store.path, store.manifest).cell(name)
    if prompt is not None:
        _show_requests(cell, prompt, as_json)
        return
    frame = engines.summarise(store)
    row = frame[frame["cell"] == name].iloc[0]
    if as_json:
        emit({"meta": cell.meta, "metrics": {key: row[key] for key in row.index if key not in cell.meta}})
        return
    _print(engine_facts(row, cell, ""))


def _print(facts: EngineFacts) -> None:
    console = Console(highlight=False, markup=False)
    console.print(Text(f"{facts.label}: {facts.verdict or 'no verdict'}", "bold"))
    console.print(f"{facts.setting}\n{facts.meaning}")
    for name, text in (*facts.evidence, *facts.engine):
        console.print(f"  {name}: {text}")
    table = Table("measure", "value", "meaning", header_style="bold")
    for measure in facts.measures:
        table.add_row(*map(Text, measure))
    console.print(table)
    for note in facts.notes:
        console.print(f"- {note}")


def _show_requests(cell: EngineCell, prompt: str, as_json: bool) -> None:
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
