"""The only module that names the other three packages, as strings: which module registers which name."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pkgutil
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from stridebench.harness.errors import WeightsError
from stridebench.harness.registry import BACKBONES, ENGINES, KERNELS, LAYOUTS, METHODS, RUNNERS, TASKS

SAMPLES = Path(__file__).resolve().parents[1] / "tasks" / "data" / "tiny"
"""A prompt of each benchmark in its published format, for `stride run SUITE --tiny`."""

COMPONENT_FILES = ("config.json", "adapter_config.json")
"""Either marks a component's folder; peft's adapters have the second alone."""

PAIRS = re.compile(r"\w+=[^=,:]*(,\w+=[^=,:]*)*")
"""Parameters behind the last colon of a backbone's or drafter's name."""


@cache
def catalogue() -> Mapping[str, Any]:
    """Return the catalogue of the registries, so that lists and dry runs import no torch.

    `python -m tests.catalogue --write` writes the file, and a test compares it with the registries.
    """
    document: dict[str, Any] = json.loads(Path(__file__).with_name("catalogue.json").read_text(encoding="utf-8"))
    return document


@cache
def declare_all() -> None:
    """Tell the registries every name that ships; its module is imported when the name is asked for."""
    METHODS.declare(_named_by_file(importlib.import_module("stridebench.methods")))
    TASKS.declare(_named_by_file(importlib.import_module("stridebench.tasks")))
    TASKS.declare({name: str(task["row"]["from"]) for name, task in catalogue()["tasks"].items()})  # several in a file
    for registry in (BACKBONES, KERNELS, LAYOUTS, ENGINES, RUNNERS):
        registry.declare(catalogue()["modules"].get(registry.kind, {}))


def _named_by_file(package: ModuleType) -> dict[str, str]:
    """Return the modules of a package by their names; one without a leading underscore registers its namesake."""
    modules = pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    names = {module.name.rpartition(".")[2]: module.name for module in modules if not module.ispkg}
    return {name: module for name, module in names.items() if not name.startswith("_")}


def load_all() -> None:
    """Import every module that registers a method, a task or a backbone adapter."""
    declare_all()
    for registry in (METHODS, TASKS, BACKBONES):
        for name in registry:
            registry.get(name)


def load_recipes() -> None:
    """Import every module that registers a recipe."""
    for module in catalogue()["modules"]["recipe"]:
        importlib.import_module(module)


def shipped(name: str) -> Path:
    """The folder of a recipe's shipped result, whether it is there or not."""
    return Path(__file__).parent / "backbones" / "weights" / name


def plain(backbone: str) -> str:
    """A backbone's name without parameters: ``smollm2-135m:weights=int4`` becomes ``smollm2-135m``."""
    name, colon, tail = backbone.rpartition(":")
    return name if colon and PAIRS.fullmatch(tail) else backbone


def teacher(backbone: str) -> str:
    """The name of the model that a component is trained for: without parameters but guidance, which its texts have."""
    name = plain(backbone)
    return ":".join([name, *(pair for pair in backbone[len(name) + 1 :].split(",") if pair.startswith("guidance="))])


def names_of(backbone: str) -> set[str]:
    """Return the names by which an entry of a suite may mean a backbone: with and without its parameters.

    A tuned backbone (``lora=``) is another model, so it has only the name with parameters.
    """
    name, _, tail = backbone.rpartition(":")
    return {backbone} if "lora=" in tail and plain(backbone) == name else {backbone, plain(backbone)}


def trained(name: str) -> Path:
    """The folder of a component that a recipe for any backbone has trained, or will train."""
    cache = Path(os.environ.get("STRIDE_CACHE") or Path.home() / ".cache" / "stridebench")
    return cache / "trained" / re.sub(r"[^\w.=+-]", "-", name)


def tunes(recipe_name: str) -> bool:
    """Return whether a recipe for any backbone tunes the backbone too."""
    return bool(catalogue()["general_recipes"].get(recipe_name, {}).get("tunes"))


def first_stage(recipe_name: str) -> str | None:
    """Return the recipe from whose result a recipe for any backbone starts, or None if it starts anew."""
    return next(iter(catalogue()["general_recipes"].get(recipe_name, {}).get("requires", ())), None)


def served(kind: str) -> tuple[str, ...]:
    """Return the backbones that recipes of a kind train for if their names do not end in one."""
    return tuple(dict.fromkeys(name for of in _recipes(kind) for name in catalogue()["recipes"][of]["serves"]))


def _recipes(kind: str) -> list[str]:
    return [name for name, facts in catalogue()["recipes"].items() if facts["kind"] == kind]


class GeneralPart(NamedTuple):
    """A component that a recipe for any backbone trains.

    Attributes:
        layers: first and last layer that the component's name states, or None.
        data: the task of prompts that its name states, or "".
        temperature: of the backbone's answers, as its name states it.
    """

    recipe: str
    layers: tuple[int, int] | None = None
    data: str = ""
    temperature: str = ""


ADAPTER = re.compile(r"(gsm8k|mixed)-t(\d+(?:\.\d+)?)")
"""Adapters of Cross-Regression by data and temperature: gsm8k-t0.6."""


def general(kind: str, name: str) -> GeneralPart | None:
    """Return how a recipe for any backbone trains a component of this name, or None if none does."""
    if kind == "adapter" and (stated := ADAPTER.fullmatch(name)):
        return GeneralPart("cross-regression", None, f"{stated[1]}_7k", stated[2])
    match = re.fullmatch(r"(.+)-l(\d+)-(\d+)", name)
    recipe_name = match[1] if match else name
    if catalogue()["general_recipes"].get(recipe_name, {}).get("kind") != kind:
        return None
    return GeneralPart(recipe_name, (int(match[2]), int(match[3])) if match else None)


def general_command(kind: str, name: str, backbone: str, data: str = "FILE") -> str | None:
    """Return the command that trains a component for a backbone, on data of the user, or None if no recipe does.

    Recipes that tune the backbone serve only that one: ``bpt:lora=xspecmesh-cross-lora``.
    """
    part = general(kind, name)
    if part is None or (tunes(part.recipe) and not backbone.endswith(f":lora={name}")):
        return None
    backbone = teacher(backbone)
    if part.layers:
        more = f" --set 'layers={list(part.layers)}' --out {trained(f'{name}-{backbone}')}"
    else:
        more = f" --name {name} --set data.temperature={part.temperature}" if part.data else ""
    return f"stride train {part.recipe} --backbone {backbone} --data {part.data or data}{more}"


def tuned(lora: str, backbone: str) -> Path:
    """The low-rank matrices that ``lora`` of a backbone's name means: a recipe's result for it, or a folder."""
    if tunes(lora):
        return trained(f"{lora}-{plain(backbone)}") / "backbone"
    return Path(lora).expanduser()


def find_component(name: str, backbone: str = "") -> Path | None:
    """The folder of a trained component, whatever it was trained for; NAME-BACKBONE is preferred to NAME."""
    own = f"{name}-{plain(backbone)}" if backbone else name
    guided = trained(f"{name}-{teacher(backbone)}")
    places = (guided, shipped(own), trained(own), shipped(name), Path(name).expanduser())
    return next((folder for folder in places if any((folder / file).is_file() for file in COMPONENT_FILES)), None)


def is_here(kind: str, name: str, backbone: str) -> bool:
    """Return whether a component for a backbone is here. Those shipped for one backbone are not used for another."""
    folder = find_component(name, backbone)
    own = served(kind) if folder == shipped(name) else ()
    return folder is not None and (not own or plain(backbone) in own)


def recipe(kind: str, name: str, backbone: str = "") -> str | None:
    """Return the recipe that trains a component for a backbone, or None if there is none."""
    names, backbone = _recipes(kind), plain(backbone)
    own = f"{name}-{backbone}" if backbone else name
    serves = backbone in ("", *served(kind))
    return own if own in names else name if name in names and serves else None


def kind_of(recipe_name: str) -> str | None:
    """Return the kind of a recipe, or None if it does not exist."""
    facts = catalogue()["recipes"].get(recipe_name)
    return facts and str(facts["kind"])


def train_command(kind: str, name: str) -> str:
    """The command that trains a recipe into the package."""
    return f"stride train {kind} {name} --out {shipped(name)}"


def component(kind: str, name: str, backbone: str = "", fingerprint: str = "") -> Path:
    """Return the folder of a method's trained component: one of the package by name, or a path.

    Args:
        kind: the kind of its recipe, such as samplers.
        name: of the component, or its path.
        backbone: the model that it serves. NAME-BACKBONE of the package is preferred to NAME.
        fingerprint: of the backbone's weights; "" to skip the check that the component was
            trained for it.

    Raises:
        WeightsError: it is not there, or is tied to other weights; says how to make it.
    """
    match = find_component(name, backbone)
    if match is None:
        for_it = f" for {backbone}" if backbone else ""
        made_by = recipe(kind, name, backbone)
        command = train_command(kind, made_by) if made_by else general_command(kind, name, backbone or "NAME")
        remedy = f"to train: {command}" if command else f"no recipe of `stride train {kind}` is for it"
        raise WeightsError(f"no {kind} {name!r} came with the package{for_it}, and there is no such folder; {remedy}")
    if fingerprint and (tied := tied_fingerprint(match)) not in ("", fingerprint):
        raise WeightsError(
            f"the {kind} in {match} was trained for other weights ({tied[:12]}) than those of {backbone} "
            f"({fingerprint[:12]}); train one for these: `stride train {kind}` lists the recipes"
        )
    return match


def tied_fingerprint(folder: Path) -> str:
    """Return the weights that a component was made for; "" if it states none or cannot be read: its method says so."""
    try:
        return str(json.loads((folder / "config.json").read_text(encoding="utf-8")).get("fingerprint", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def tied_backbone(folder: Path) -> str:
    """Return the backbone that a component was made for, by its configuration; "" if it names none."""
    try:
        named = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("backbone", "")
    except (OSError, ValueError, AttributeError):
        return ""
    return str(named).partition(" ")[0]


def suite_folder() -> Path:
    """The folder of the suites that we ship."""
    return Path(next(iter(importlib.import_module("stridebench.tasks").__path__))) / "suites"


def report_files() -> list[Path]:
    """The YAML files of the papers, each of which defines reports under ``reports:``."""
    folder = Path(next(iter(importlib.import_module("stridebench.reports").__path__))) / "data" / "papers"
    return sorted(folder.glob("*.yaml"))
