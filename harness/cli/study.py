"""`stride study`: a questionnaire about the meshes of a run, and the count of its votes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from stridebench.harness.cli.main import emit, say
from stridebench.harness.cli.show import match_cell
from stridebench.harness.core.task import SetScore
from stridebench.harness.record.store import Store
from stridebench.reports import text_table
from stridebench.reports.papers import user_study

PATH = click.Path(path_type=Path)


@click.group(name="study")
def command() -> None:
    """Ask people which meshes are best, in a questionnaire that names no method.

    \b
    stride study export runs/mine autoregressive.embedded-mesh. autoregressive.embedded-mesh-truncated multi_head.
    stride study tally runs/mine/study/key.json answers-*.json
    """


@command.command(name="export")
@click.argument("run", type=PATH)
@click.argument("cells", nargs=-1, required=True, metavar="CELL...")
@click.option("--cases", default=20, show_default=True, type=click.IntRange(1), help="Number of shapes.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of the shapes and their order.")
@click.option("--out", type=PATH, help="Folder of both files. Default: RUN/study.")
def export(run: Path, cells: tuple[str, ...], cases: int, seed: int, out: Path | None) -> None:
    """Write questionnaire.html, which needs no other file, and key.json, which you keep.

    CELL is any part of a cell's id. Name two or more; the paper has three. Participants save their answers as files.

    \b
    stride study export runs/mine autoregressive.embedded-mesh. multi_head. --cases 20 --seed 1
    """
    store = Store.open(run)
    ids = [match_cell(store, cell) for cell in cells]
    paths = user_study.export(store, ids, out or run / "study", cases, seed)
    say("\n".join(f"wrote {path}" for path in paths))


@command.command(name="tally")
@click.argument("key", type=PATH)
@click.argument("answers", nargs=-1, required=True, type=PATH, metavar="ANSWERS...")
@click.option("--run", type=PATH, help="The run: its cells get their percent of the votes as the score user_study.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: {participants, unanswered, votes: [...]}.")
def tally(key: Path, answers: tuple[Path, ...], run: Path | None, as_json: bool) -> None:
    """Count the votes of all participants, one file each. With --run, reports of the run show them (US in XSpecMesh).

    \b
    stride study tally runs/mine/study/key.json answers-*.json --run runs/mine
    """
    votes = user_study.tally(key, answers)
    if run is not None:
        _keep(Store.open(run), votes)
    if as_json:
        emit(asdict(votes))
        return
    text_table.print_table(user_study.table(votes), Console())


def _keep(store: Store, votes: user_study.VoteTally) -> None:
    """Make the shares scores of the run's cells."""
    for one in votes.votes:
        if one.share is not None:
            low, high = (None if bound is None else 100 * bound for bound in (one.share.low, one.share.high))
            count = sum(other.votes for other in votes.votes)
            score = SetScore(100 * one.share.estimate, count, votes.unanswered, low, high)
            scores = store.meta(one.cell).get("set_scores") or {}
            store.update(one.cell, set_scores={**scores, "user_study": asdict(score)})
