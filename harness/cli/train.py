"""`stride train`: trains weights from a recipe, the shipped ones or new ones."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from stridebench.harness.cli.main import FiniteRange, emit, json_option, say
from stridebench.harness.discover import catalogue, declare_all, load_recipes, shipped, trained
from stridebench.harness.errors import UnknownNameError, UsageError
from stridebench.harness.machine.device import NATIVE, check_device, native_dtype
from stridebench.harness.plan.lookup import build
from stridebench.harness.plan.yaml_lines import option_settings, option_value
from stridebench.harness.registry import DATASETS, GENERAL_RECIPES, RECIPES, TASKS

if TYPE_CHECKING:  # trainings import torch, which an error in a name does not need
    from stridebench.harness.train.loop import TrainingProgress
    from stridebench.harness.train.recipe import Recipe

EVERY_S = 30.0


@click.command(name="train")
@click.argument("kind", required=False)
@click.argument("name", required=False)
@click.option("--name", "component", help="With --backbone: the result's name, such as gsm8k-t0.6. Default: KIND.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of checkpoint and result. Default: trained/NAME.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Of weights and data.")
@click.option("--minutes", type=FiniteRange(0), help="Stop after this time; the same command continues.")
@click.option("--threads", type=click.IntRange(1, 1024), default=1, show_default=True, help="CPU threads.")
@click.option("--part", "parts", multiple=True, help="NAME=FOLDER: build on this result of the recipe NAME.")
@click.option("--backbone", help="Train for this backbone; KIND is then medusa, eagle1, dflash, ...")
@click.option(
    "--data",
    metavar="FILE|TASK|FOLDER",
    help="With --backbone: prompts (.txt, .jsonl, .csv), a task's entry, or a folder of pictures.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Of the recipe, or of its data: data.new=64."
)
@click.option("--device", default="cpu", show_default=True, help="With --backbone: a torch device, such as cuda.")
@click.option("--dtype", default=NATIVE, show_default=True, help="With --backbone: its type, as of `stride run`.")
@json_option("{folder, finished, step, hours, taken}")
def command(
    kind: str | None,
    name: str | None,
    component: str | None,
    out: Path | None,
    seed: int,
    minutes: float | None,
    threads: int,
    parts: tuple[str, ...],
    backbone: str | None,
    data: str | None,
    settings: tuple[str, ...],
    device: str,
    dtype: str,
    as_json: bool,
) -> None:
    """Train the recipe NAME. KIND is backbone, drafter, heads, adapter, samplers or scorer.

    With --backbone, KIND is a recipe for any backbone: medusa, blockwise, eagle1, eagle3, p_eagle, mtp, dflash,
    dflash2, dspark, cross-regression, xspecmesh-mlp or xspecmesh-cross, xspecmesh-mlp-lora or xspecmesh-cross-lora
    after those, mulo-2x, and mulo-4x after it. It learns from the texts that the backbone writes after the prompts of
    --data, or from a folder of pictures with captions.
    The result goes where `stride run` looks for it, unless --out is given: a method takes it by the name of --name, as
    in {name: cross_regression, adapter: gsm8k-t0.6}. Other data or settings need another name. --set epochs=N counts
    passes over the data, and --set schedule=paper trains as long as the paper did.

    After an interruption the same command continues from the last checkpoint. It is written every two minutes, and
    after the step in which ^C was pressed; a second ^C does not wait for that.

    \b
    stride train                          the recipes, their data and their CPU hours
    stride train backbone digits-s        a minute
    stride train backbone emoji-image --out trained/emoji-image --minutes 60
    stride train medusa --backbone smollm2-135m --data prompts.jsonl --set heads=5
    stride train cross-regression --backbone qwen2.5-7b --data gsm8k_7k --device cuda
    stride train cross-regression --backbone qwen2.5-7b --data mixed_7k --name mixed --device cuda
    stride train mulo-2x --backbone tar-1.5b --data pictures --set schedule=paper
    """
    declare_all()
    recipes = {*catalogue()["general_recipes"], *GENERAL_RECIPES} if backbone else {*catalogue()["recipes"], *RECIPES}
    asked = kind if backbone else name
    if asked is not None and asked not in recipes:
        raise UnknownNameError("recipe", asked, sorted(recipes))
    load_recipes()
    if backbone is not None:
        if name is not None:
            raise UsageError("with --backbone write stride train KIND --backbone NAME --data FILE, without NAME")
        dtype = native_dtype(device) if dtype == NATIVE else dtype
        recipe = _general(str(kind), backbone, data, settings, device, dtype)
        built = _parts(recipe, parts, backbone)
        name = f"{component or kind}-{backbone}"
        folder = out or trained(name)
        _train(name, recipe, folder, built, seed, minutes, threads, as_json)
        return
    if data is not None or settings or component or device != "cpu" or dtype != NATIVE:
        belong = "--data, --set, --name, --device and --dtype belong to a recipe for any backbone"
        raise UsageError(f"{belong}; add --backbone NAME, or leave them out")
    if name is None:
        if out or seed or minutes is not None or threads != 1 or parts:
            raise UsageError("a list of recipes takes no option but --json; name a recipe to train, as in the list")
        _show(kind, as_json)
        return
    recipe = _recipe(str(kind), name)
    _train(name, recipe, out or Path("trained") / name, _parts(recipe, parts), seed, minutes, threads, as_json)


def _general(kind: str, backbone: str, data: str | None, settings: tuple[str, ...], device: str, dtype: str) -> Recipe:
    """Return the recipe for a backbone that the options describe; a folder of data holds pictures."""
    from stridebench.harness.train.distributed import Workers
    from stridebench.harness.train.general import TaskPlan, general
    from stridebench.harness.train.pictures import PicturePlan

    if data is None:
        raise UsageError("--data is missing: a file of prompts, a task such as gsm8k_7k, or '{name: coco, limit: 9}'")
    device = Workers.of_environment().device(device)
    if device != "cpu":
        check_device(device)
    if Path(data).is_dir() and data not in TASKS:
        return general(
            kind,
            backbone,
            PicturePlan(Path(data), device=device, dtype=dtype),
            option_settings("--set", settings, "heads=5"),
        )
    if Path(data).suffix in (".txt", ".jsonl", ".csv"):
        entry: dict[str, Any] = {"name": "prompts", "file": data}
    else:
        read = option_value("--data", data)
        entry = dict(read) if isinstance(read, dict) else {"name": str(read)}
        if entry == {"name": str(read)} and read not in TASKS and read in DATASETS:
            entry = {"name": "prompts", "file": f"dataset:{read}"}
    task = TASKS.get(str(entry.pop("name", "")))
    instance = build(task, data, entry)
    if isinstance(instance, list):
        raise UsageError(f"--data: {'; '.join(text for _, text in instance)}")
    plan = TaskPlan(TASKS.name_of(task), entry, device=device, dtype=dtype)
    return general(kind, backbone, plan, option_settings("--set", settings, "heads=5"))


def _train(
    name: str,
    recipe: Recipe,
    folder: Path,
    built: dict[str, Path],
    seed: int,
    minutes: float | None,
    threads: int,
    as_json: bool,
) -> None:
    """Train, and print the folder of the result; of several processes, the first one prints it."""
    import torch

    from stridebench.harness.train import loop as training
    from stridebench.harness.train.distributed import Workers

    torch.set_num_threads(threads)
    if not Workers.of_environment().first:
        training.train(name, recipe, folder, built, seed, minutes)
        return
    with TrainingBar(name, recipe.steps) as watch:
        try:
            result = training.train(name, recipe, folder, built, seed, minutes, watch)
        except KeyboardInterrupt:
            if (folder / training.CHECKPOINT).exists():
                say(f"interrupted; go on with the same command: the checkpoint is in {folder}", err=True)
            else:
                say(f"interrupted before the first step ended; {folder} has no checkpoint", err=True)
            raise
    if as_json:
        keys = ("folder", "finished", "step", "hours", "taken")
        emit({key: getattr(result, key) for key in keys})
    else:
        state = "finished" if result.finished else "not finished: the same command goes on"
        state += "" if result.taken else "; it was trained before with the same data and settings, so no step was taken"
        say(f"{folder}: step {result.step} of {recipe.steps}, {result.hours:.2f} h, {state}")


class TrainingBar:
    """Show a progress bar on a terminal, and a line every half minute elsewhere."""

    def __init__(self, name: str, steps: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task(name, total=steps)
        self._name, self._said = name, -math.inf

    def __enter__(self) -> TrainingBar:
        if self._bar.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, progress: TrainingProgress) -> None:
        """Report a step."""
        text = f"{self._name} step {progress.step}/{progress.steps} loss {progress.loss:.4f} {progress.hours:.2f} h"
        if self._bar.console.is_terminal:
            self._bar.update(self._task, completed=progress.step, description=text)
        elif time.monotonic() - self._said > EVERY_S or progress.step == progress.steps:
            self._said = time.monotonic()
            say(text, err=True)


def _recipe(kind: str, name: str) -> Recipe:
    recipe: Recipe = RECIPES.get(name)
    if recipe.kind != kind:
        raise UsageError(
            f"{name!r} is a recipe of kind {recipe.kind!r}, not {kind!r}: write stride train {recipe.kind} {name}"
        )
    return recipe


def _parts(recipe: Recipe, pairs: tuple[str, ...], backbone: str = "") -> dict[str, Path]:
    """Return the folder of each recipe that this one builds on; with a backbone, that of the recipe for it."""
    named: dict[str, Path] = {}
    for pair in pairs:
        key, equals, folder = pair.partition("=")
        if not equals or key not in recipe.requires:
            names = ", ".join(recipe.requires) or "none"
            raise UsageError(f"--part {pair!r}: write NAME=FOLDER with NAME one of {names}")
        named[key] = Path(folder).expanduser()
    usual = {key: trained(f"{key}-{backbone}") if backbone else shipped(key) for key in recipe.requires}
    folders = {key: named.get(key, usual[key]) for key in recipe.requires}
    for key, place in folders.items():
        if not (place.is_dir() if key in named else any(place.glob("*.safetensors"))):
            train = f"{key} --backbone {backbone} --data FILE" if backbone else f"{RECIPES.get(key).kind} {key}"
            raise UsageError(
                f"the recipe builds on {key!r}, and {place} holds no weights; train it first: "
                f"stride train {train} --out {place}, or give --part {key}=FOLDER"
            )
    return folders


def _show(kind: str | None, as_json: bool) -> None:
    recipes = {name: RECIPES.get(name) for name in RECIPES}
    kinds = sorted({recipe.kind for recipe in recipes.values()})
    if kind is not None and kind not in kinds:
        raise UsageError(f"{kind!r} is not a kind of recipe; choose one of {', '.join(kinds)}")
    keys = ("kind", "summary", "steps", "hours", "source", "requires")
    chosen = {name: recipe for name, recipe in recipes.items() if kind in (None, recipe.kind)}
    rows = [{"name": name, **{key: getattr(recipe, key) for key in keys}} for name, recipe in chosen.items()]
    if as_json:
        emit(rows)
        return
    table = Table("recipe", "kind", "what", "steps", "CPU hours at most", "data", box=None)
    for row in rows:
        table.add_row(*(str(row[key]) for key in ("name", "kind", "summary", "steps", "hours", "source")))
    Console().print(table)
