"""`stride train`: trains weights from a recipe, the shipped ones or new ones."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from harness.cli.main import emit
from harness.discover import load_recipes, shipped
from harness.errors import UsageError
from harness.registry import RECIPES
from harness.train import loop as training

EVERY_S = 30.0


@click.command(name="train")
@click.argument("kind", required=False)
@click.argument("name", required=False)
@click.option("--out", type=click.Path(path_type=Path), help="Folder of checkpoint and result. Default: trained/NAME.")
@click.option("--seed", default=0, show_default=True, help="Of weights and data.")
@click.option("--minutes", type=float, help="Stop after this time; the same command continues.")
@click.option("--threads", default=1, show_default=True, help="CPU threads.")
@click.option("--part", "parts", multiple=True, help="NAME=FOLDER: build on this result of the recipe NAME.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: {folder, finished, step, hours}.")
def command(
    kind: str | None,
    name: str | None,
    out: Path | None,
    seed: int,
    minutes: float | None,
    threads: int,
    parts: tuple[str, ...],
    as_json: bool,
) -> None:
    """Train the recipe NAME. KIND is backbone, drafter, heads, adapter, samplers or scorer.

    After an interruption the same command continues from the last checkpoint, which is written every two minutes.

    \b
    stride train                          the recipes, their data and their CPU hours
    stride train backbone digits-s        a minute
    stride train backbone emoji-image --out trained/emoji-image --minutes 60
    """
    load_recipes()
    if name is None:
        _show(kind, as_json)
        return
    recipe = _recipe(str(kind), name)
    torch.set_num_threads(threads)
    folder = out or Path("trained") / name
    built = _parts(recipe, parts)
    with Watch(name, recipe.steps) as watch:
        try:
            result = training.train(name, recipe, folder, built, seed, minutes, watch)
        except KeyboardInterrupt:
            click.echo(f"interrupted; go on with the same command: the checkpoint is in {folder}", err=True)
            raise
    if as_json:
        emit({"folder": folder, "finished": result.finished, "step": result.step, "hours": result.hours})
    else:
        state = "finished" if result.finished else "not finished: the same command goes on"
        click.echo(f"{folder}: step {result.step} of {recipe.steps}, {result.hours:.2f} h, {state}")


class Watch:
    """A progress bar on a terminal, a line every half minute elsewhere."""

    def __init__(self, name: str, steps: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task(name, total=steps)
        self._name, self._said = name, -math.inf

    def __enter__(self) -> Watch:
        if self._bar.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, progress: training.Progress) -> None:
        """Report a step."""
        text = f"{self._name} step {progress.step}/{progress.steps} loss {progress.loss:.4f} {progress.hours:.2f} h"
        if self._bar.console.is_terminal:
            self._bar.update(self._task, completed=progress.step, description=text)
        elif time.monotonic() - self._said > EVERY_S or progress.step == progress.steps:
            self._said = time.monotonic()
            click.echo(text, err=True)


def _recipe(kind: str, name: str) -> training.Recipe:
    recipe: training.Recipe = RECIPES.get(name)
    if recipe.kind != kind:
        raise UsageError(
            f"{name!r} is a recipe of kind {recipe.kind!r}, not {kind!r}: write stride train {recipe.kind} {name}"
        )
    return recipe


def _parts(recipe: training.Recipe, pairs: tuple[str, ...]) -> dict[str, Path]:
    """Folder of each recipe that this one builds on.

    Raises:
        UsageError: a pair is malformed, or a folder is missing.
    """
    named: dict[str, Path] = {}
    for pair in pairs:
        key, equals, folder = pair.partition("=")
        if not equals or key not in recipe.requires:
            names = ", ".join(recipe.requires) or "none"
            raise UsageError(f"--part {pair!r}: write NAME=FOLDER with NAME one of {names}")
        named[key] = Path(folder)
    folders = {key: named.get(key, shipped(key)) for key in recipe.requires}
    for key, place in folders.items():
        if not (place.is_dir() if key in named else any(place.glob("*.safetensors"))):
            raise UsageError(
                f"the recipe builds on {key!r}, and {place} holds no weights; train it first: "
                f"stride train {RECIPES.get(key).kind} {key} --out {place}, or give --part {key}=FOLDER"
            )
    return folders


def _show(kind: str | None, as_json: bool) -> None:
    recipes = {name: RECIPES.get(name) for name in RECIPES}
    kinds = sorted({recipe.kind for recipe in recipes.values()})
    if kind is not None and kind not in kinds:
        raise UsageError(f"there is no kind of recipe {kind!r}; choose one of {', '.join(kinds)}")
    rows = [_row(name, recipe) for name, recipe in recipes.items() if kind in (None, recipe.kind)]
    if as_json:
        emit(rows)
        return
    table = Table("recipe", "kind", "what", "steps", "CPU hours at most", "data", box=None)
    for row in rows:
        table.add_row(*(str(row[key]) for key in ("name", "kind", "summary", "steps", "hours", "source")))
    Console().print(table)


def _row(name: str, recipe: training.Recipe) -> dict[str, Any]:
    keys = ("kind", "summary", "steps", "hours", "source", "requires")
    return {"name": name, **{key: getattr(recipe, key) for key in keys}}
