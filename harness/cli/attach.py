"""`stride attach`: results of an official evaluation as scores of a cell."""

from __future__ import annotations

from pathlib import Path

import click

from stridebench.harness.cli.main import emit, say
from stridebench.harness.cli.show import match_cell
from stridebench.harness.core.task import SetScore
from stridebench.harness.discover import declare_all
from stridebench.harness.errors import UsageError
from stridebench.harness.record.store import Store
from stridebench.harness.registry import LAYOUTS
from stridebench.harness.run.stored_audit import attach


@click.command(name="attach")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("cell")
@click.option("--geneval", metavar="FILE", help="results.jsonl of evaluate_images.py.")
@click.option("--dpg", metavar="FILE", help="The *_detail.txt of compute_dpg_bench.py.")
@click.option("--t2i", multiple=True, metavar="CATEGORY=FILE", help="A vqa_result.json; one option a category.")
@click.option("--human-eval", metavar="FILE", help="samples.jsonl_results.jsonl of evaluate_functional_correctness.")
@click.option("--lm-eval", metavar="FILE", help="A samples_*.jsonl with metrics.")
@click.option("--layout", "other", multiple=True, metavar="NAME=FILE", help="Results of a layout of another package.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: {NAME: {value, n, low, high, ...}}.")
def command(run: Path, cell: str, other: tuple[str, ...], as_json: bool, **options: str | tuple[str, ...]) -> None:
    """Read results of what `stride export` wrote, as scores of CELL; reports show them from then on.

    The files are kept in the run with their sha256. Results of other prompts or other outputs are refused.

    \b
    stride attach runs/mine sjdpp.lumina --geneval results.jsonl
    stride attach runs/mine sjdpp.lumina --t2i color=color.json --t2i shape=shape.json
    """
    declare_all()
    files = {key.replace("_", "-"): _files(value) for key, value in options.items() if value}
    files |= {name: {"": Path(path)} for name, _, path in (pair.partition("=") for pair in other)}
    if not files:
        raise UsageError("name a file of results, such as --geneval results.jsonl")
    store = Store.open(run)
    name = match_cell(store, cell)
    scores: dict[str, SetScore] = {}
    for layout, named in files.items():
        if missing := [path for path in named.values() if not path.is_file()]:
            raise UsageError(f"--{layout}: there is no file {missing[0]}; give the results that the evaluation wrote")
        scores |= attach(store, name, layout, LAYOUTS.get(layout)(), named)
    if as_json:
        emit({figure: vars(score) for figure, score in scores.items()})
        return
    for figure, score in scores.items():
        say(f"{figure} {score.value:.4g} of {score.n}" if score.value is not None else f"{figure}: {score.reason}")


def _files(value: str | tuple[str, ...]) -> dict[str, Path]:
    """The files of an option by the name before ``=``."""
    if isinstance(value, str):
        return {"": Path(value)}
    pairs = [pair.partition("=") for pair in value]
    if wrong := [pair for pair, equals, _ in pairs if not equals]:
        raise UsageError(f"--t2i {wrong[0]}: write CATEGORY=FILE, as in --t2i color=vqa_result.json")
    return {category: Path(path) for category, _, path in pairs}
