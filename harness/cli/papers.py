"""`stride papers`: each table and figure of the papers, and whether this machine can make it."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from stridebench.harness.cli.main import emit, say
from stridebench.harness.discover import declare_all
from stridebench.harness.plan import presets
from stridebench.harness.plan.compatibility import Outcome, Outcomes, vocabulary
from stridebench.harness.plan.planned_method import PlannedMethod, catalogued
from stridebench.harness.plan.suite import Resolved, load
from stridebench.harness.registry import METHODS
from stridebench.reports.papers.paper_files import Cells, Item, items

WORDS = ("yes", "needs weights", "no")


@click.command(name="papers")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: [{paper, item, outcome, why}].")
def command(as_json: bool) -> None:
    """List each table and figure of the five papers: yes, needs weights, or no and why.

    An item is judged on the paper's models, and its suite must run all of them. The table shows the first reason of
    several, --json all of them.

    \b
    stride papers
    stride papers --json
    """
    declare_all()
    outcomes = Outcomes()
    rows = [row(outcomes, paper, item) for paper, listed in items().items() for item in listed]
    if as_json:
        emit(rows)
        return
    table = Table("paper", "item", "outcome", "why", box=None, header_style="bold")
    for one in rows:
        table.add_row(one["paper"], one["item"], one["outcome"], _short(one["why"]))
    Console().print(table)
    counts = Counter(one["outcome"] for one in rows)
    say(f"{len(rows)} tables and figures: " + ", ".join(f"{counts[word]} {word}" for word in WORDS))


def _short(why: str) -> str:
    """The first reason, and what makes the item."""
    reasons = why.split("; ")
    between = [f"{len(reasons) - 2} more"] if len(reasons) > 2 else []
    return "; ".join(dict.fromkeys([reasons[0], *between, reasons[-1]]))


def row(outcomes: Outcomes, paper: str, item: Item) -> dict[str, Any]:
    """Return the outcome of an item: no if its suite or one of its cells cannot make it, needs weights, or yes."""
    cells = [
        outcomes.of(method, presets.resolve(model))
        for cells in item.cells
        for model in cells.models
        for method in _settings(item.suite, cells, model)
    ]
    cells += [_size(model) for model in item.models]
    outcome, reason = _judged(item, cells)
    made_by = f"stride run {item.suite}" if item.suite else item.made_by
    models = {model for cells in item.cells for model in cells.models}
    missing = sorted(models - _backbones(item.suite)) if item.suite else []
    if missing and not item.why:
        outcome, lacks = "no", f"{item.suite} does not run {', '.join(missing)}"
        reason = "; ".join(text for text in (lacks, reason) if text)
    if models and len(missing) == len(models):
        made_by += " fills it from models that are here"
    why = "; ".join(text for text in (reason, made_by) if text)
    return {"paper": paper, "item": item.item, "outcome": outcome, "why": why}


def _settings(suite: str, cells: Cells, model: str) -> list[PlannedMethod]:
    """A method as the item's suite runs it on a model; where that is no cell of the suite, with the item's options."""
    uses = _loaded(suite).uses if suite else ()
    named = [use for use in uses if use.planned.name == cells.method and use.backbones and model in use.backbones]
    if named:
        return [use.planned for use in named]
    return [catalogued(cells.method, cells.options) or PlannedMethod.of(METHODS.get(cells.method)(**cells.options))]


def _backbones(suite: str) -> set[str]:
    return {entry.name for entry in _loaded(suite).suite.backbones}


@cache
def _loaded(suite: str) -> Resolved:
    return load(suite)


def _judged(item: Item, cells: list[Outcome]) -> tuple[str, str]:
    """The outcome, and why it is not yes."""
    if item.why:
        return "no", item.why
    if reasons := [str(cell.reason) for cell in cells if cell.word == "cannot"]:
        return "no", "; ".join(dict.fromkeys(reasons))
    lacking = [cell for cell in cells if cell.word in ("needs weights", "needs a part")]
    commands = dict.fromkeys(command for cell in lacking for command in cell.commands or (cell.command,))
    return ("needs weights", "; ".join(commands)) if commands else ("yes", "")


def _size(model: str) -> Outcome:
    """Whether a model's number of token ids is known; its weights say it."""
    spec = presets.resolve(model)
    known = vocabulary(spec) is not None or spec.ready()
    return Outcome("runs") if known else Outcome("needs weights", None, f"stride fetch {model}")
