"""`stride paper`: the tables and figures of the papers, training costs, user studies, layers and predictions."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from stridebench.harness.cli.main import FiniteRange, LazyGroup, emit, json_option, say
from stridebench.harness.discover import declare_all, names_of
from stridebench.harness.errors import UnknownNameError
from stridebench.harness.plan import presets
from stridebench.harness.plan.compatibility import Outcome, Outcomes, vocabulary
from stridebench.harness.plan.contract import rows_of
from stridebench.harness.plan.planned_method import PlannedMethod, catalogued
from stridebench.harness.plan.resolve import Resolved, of_command
from stridebench.harness.record.entries import CellMeta, StoredSetScore
from stridebench.harness.registry import METHODS
from stridebench.reports.papers.paper_files import model_name, papers
from stridebench.reports.papers.paper_items import Cells, Item, items

if TYPE_CHECKING:
    from stridebench.harness.record.store import Store
    from stridebench.reports.papers import user_study

WORDS = ("yes", "needs weights", "no")
PATH = click.Path(path_type=Path)


@click.group(name="paper", cls=LazyGroup, modules={"layers": "layers", "predict": "predict"})
def command() -> None:
    """Reproduce what papers print, and predict a run's speed-ups on machines that are not here.

    \b
    stride paper list sjdpp
    stride paper cost --utilisation 400e12
    stride paper study export runs/mine autoregressive. multi_head.
    stride paper layers embedded-code --adapter cross-regression --task programs --out layers
    stride paper predict runs/mine --machine h100-sxm
    """


@command.command(name="list")
@click.argument("paper", required=False)
@json_option("[{paper, item, outcome, why}]")
def list_items(paper: str | None, as_json: bool) -> None:
    """List each table and figure of the five papers, or of one: yes, needs weights, or no and why.

    An item is judged on the paper's models, and its suite must run all of them. The table shows the first reason of
    several, --json all of them.

    \b
    stride paper list
    stride paper list sjdpp      also who wrote it, and the sizes of the models that are not here
    stride paper list --json
    """
    declare_all()
    outcomes, names = Outcomes(), {_key(name): name for name in items()}
    if paper is not None and _key(paper) not in names:
        raise UnknownNameError("paper", paper, [name for name in papers() if _key(name) in names])
    chosen = names if paper is None else [_key(paper)]
    rows = [row(outcomes, names[key], item) for key in chosen for item in items()[names[key]]]
    if as_json:
        emit(rows)
        return
    table = Table("paper", "item", "outcome", "why", box=None, header_style="bold")
    for one in rows:
        table.add_row(one["paper"], one["item"], one["outcome"], _short(one["why"]))
    Console().print(table)
    counts = Counter(one["outcome"] for one in rows)
    say(f"{len(rows)} tables and figures: " + ", ".join(f"{counts[word]} {word}" for word in WORDS))
    if paper is not None:
        listed = items()[names[_key(paper)]]
        models = dict.fromkeys(model for item in listed for cells in item.cells for model in cells.models)
        specs = {spec.name: spec for spec in map(presets.resolve, models) if not spec.ready()}
        say(f"by {printed_source(_key(paper))}")
        say("to fetch: " + (", ".join(f"{name} ({spec.size})" for name, spec in specs.items()) or "nothing"))


def _key(paper: str) -> str:
    """Return the name of a paper without marks, as one types it: sjdpp for SJD++."""
    return "".join(letter for letter in paper.lower().replace("+", "p") if letter.isalnum())


def printed_source(key: str) -> str:
    """Return who wrote a paper, and its address if it is known."""
    return next(paper.source for name, paper in papers().items() if _key(name) == key)


def _short(why: str) -> str:
    """Return the first reason, and the command that makes the item."""
    reasons = why.split("; ")
    between = [f"{len(reasons) - 2} more"] if len(reasons) > 2 else []
    return "; ".join(dict.fromkeys([reasons[0], *between, reasons[-1]]))


def row(outcomes: Outcomes, paper: str, item: Item) -> dict[str, str]:
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
    run = {model_name(entry.name) for entry in _loaded(item.suite).suite.backbones} if item.suite else models
    missing = sorted(models - run)
    if missing and not item.why:
        outcome, lacks = "no", f"{item.suite} does not run {', '.join(missing)}"
        reason = "; ".join(text for text in (lacks, reason) if text)
    if models and len(missing) == len(models):
        made_by += " fills it from models that are here"
    why = "; ".join(text for text in (reason, made_by) if text)
    return {"paper": paper, "item": item.item, "outcome": outcome, "why": why}


def _settings(suite: str, cells: Cells, model: str) -> list[PlannedMethod]:
    """Return a method as the item's suite runs it on a model, or with the item's options if it does not."""
    uses = [use for use in _loaded(suite).uses if use.planned.name == cells.method] if suite else []
    named = [use for use in uses if not use.backbones or names_of(model) & set(use.backbones)]
    if named:
        return [use.planned for use in named]
    return [catalogued(cells.method, cells.options) or PlannedMethod.of(METHODS.get(cells.method)(**cells.options))]


@cache
def _loaded(suite: str) -> Resolved:
    return of_command(suite)


def _judged(item: Item, cells: list[Outcome]) -> tuple[str, str]:
    """Return the outcome, and the reason if it is not yes."""
    if item.why:
        return "no", item.why
    if reasons := [str(cell.reason) for cell in cells if cell.word == "cannot"]:
        return "no", "; ".join(dict.fromkeys(reasons))
    lacking = [cell for cell in cells if cell.word in ("needs weights", "needs a part")]
    commands = dict.fromkeys(command for cell in lacking for command in cell.commands or (cell.command,))
    return ("needs weights", "; ".join(commands)) if commands else ("yes", "")


def _size(model: str) -> Outcome:
    """Return whether a model's number of token ids is known, from its preset or its weights."""
    spec = presets.resolve(model)
    known = vocabulary(spec) is not None or spec.ready()
    return Outcome("runs") if known else Outcome("needs weights", None, f"stride fetch {model}")


@command.command(name="cost")
@click.option("--cards", type=click.Path(path_type=Path), help="Your cards, in the form of the shipped ones.")
@click.option(
    "--utilisation",
    type=FiniteRange(0, min_open=True),
    help="FLOP/s a GPU sustains. Default: the paper's.",
)
@click.option("--markdown", type=click.Path(path_type=Path), help="Also write both tables and the notes to this file.")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Also write the cost table to this file.")
@json_option("{cost: [...], frameworks: [...]}")
def cost(
    cards: Path | None, utilisation: float | None, markdown: Path | None, csv_file: Path | None, as_json: bool
) -> None:
    """Compute training costs: C = 6 P D, or 2 P_base D + 6 P_aux D if the base is frozen; GPU hours are C / (3600 U).

    P: parameters, D: tokens, U: FLOP/s of a GPU. Notes name printed values that differ from their formula.

    \b
    stride paper cost                                   the tables of the paper on Cross-Regression
    stride paper cost --utilisation 400e12 --csv cost.csv
    stride paper cost --cards mine.yaml --markdown cost.md
    """
    from stridebench.reports import text_table  # imports pandas, which `stride paper list` does not need
    from stridebench.reports.papers import cost

    book = cost.read(cards or cost.CARDS)
    rate = utilisation or book.utilisation
    rows, sheets = cost.rows(book, rate), [cost.cost_table(book, rate)]
    if book.frameworks:
        declare_all()
        sheets.append(cost.framework_table(book, {row["name"]: row["claim"] for row in rows_of(METHODS)}))
    if markdown:
        markdown.write_text(cost.markdown(sheets), encoding="utf-8")
    if csv_file:
        with csv_file.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows({**row, "flags": "; ".join(row["flags"])} for row in rows)
    if as_json:
        emit({"cost": rows, "frameworks": [framework.summary() for framework in book.frameworks.values()]})
        return
    text_table.print_table(sheets[0], Console())
    for sheet in sheets[1:]:
        table = Table(*(column.title for column in sheet.columns), title=sheet.title, title_justify="left")
        for row in sheet.rows:
            table.add_row(*row)
        Console().print(table, *sheet.notes, sep="\n")


@command.group(name="study", cls=LazyGroup)
def study() -> None:
    """Ask people which meshes are best, in a questionnaire that names no method.

    \b
    stride paper study export runs/mine autoregressive.embedded-mesh. autoregressive.embedded-mesh-truncated multi_head.
    stride paper study tally runs/mine/study/key.json answers-*.json
    """


@study.command(name="export")
@click.argument("run", type=PATH)
@click.argument("cells", nargs=-1, required=True, metavar="CELL...")
@click.option("--cases", default=20, show_default=True, type=click.IntRange(1), help="Number of shapes.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of the shapes and their order.")
@click.option("--out", type=PATH, help="Folder of both files. Default: RUN/study.")
def export(run: Path, cells: tuple[str, ...], cases: int, seed: int, out: Path | None) -> None:
    """Write questionnaire.html, which needs no other file, and key.json, which you keep.

    CELL is any part of a cell's id. Name two or more; the paper has three. Participants save their answers as files.

    \b
    stride paper study export runs/mine autoregressive.embedded-mesh. multi_head. --cases 20 --seed 1
    """
    from stridebench.harness.record.run_folders import match_name
    from stridebench.harness.record.store import Store
    from stridebench.reports.papers import user_study

    store = Store.open(run)
    ids = [match_name(store.cells(), cell) for cell in cells]
    paths = user_study.export(store, ids, out or run / "study", cases, seed)
    say("\n".join(f"wrote {path}" for path in paths))


@study.command(name="tally")
@click.argument("key", type=PATH)
@click.argument("answers", nargs=-1, required=True, type=PATH, metavar="ANSWERS...")
@click.option("--run", type=PATH, help="The run: its cells get their percent of the votes as the score user_study.")
@json_option("{participants, unanswered, votes: [...]}")
def tally(key: Path, answers: tuple[Path, ...], run: Path | None, as_json: bool) -> None:
    """Count the votes of all participants, one file each. With --run, reports of the run show them (US in XSpecMesh).

    \b
    stride paper study tally runs/mine/study/key.json answers-*.json --run runs/mine
    """
    from stridebench.harness.record.store import Store
    from stridebench.reports import text_table
    from stridebench.reports.papers import user_study

    votes = user_study.tally(key, answers)
    if run is not None:
        _keep(Store.open(run), votes)
    if as_json:
        emit(asdict(votes))
        return
    text_table.print_table(user_study.table(votes), Console())


def _keep(store: Store, votes: user_study.VoteTally) -> None:
    """Store the shares of the votes as scores of the run's cells."""
    from stridebench.harness.core.task import SetScore

    for one in votes.votes:
        if one.share is not None:
            low, high = (None if bound is None else 100 * bound for bound in (one.share.low, one.share.high))
            count = sum(other.votes for other in votes.votes)
            score = SetScore(100 * one.share.estimate, count, votes.unanswered, low, high)
            changed = store.meta(one.cell).set_scores | {"user_study": StoredSetScore(**vars(score))}
            store.update(one.cell, CellMeta(set_scores=changed))
