"""Where the other three packages are named, as strings: what registers which name."""

from __future__ import annotations

import importlib
import importlib.util
import json
import pkgutil
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from harness.errors import UsageError, WeightsError
from harness.registry import BACKBONES, METHODS, TASKS

ADAPTERS = {
    "drafter": "harness.backbones.text.drafter",
    "hf_causal": "harness.backbones.text.hf_causal",
    "image": "harness.backbones.image.adapter",
    "masked": "harness.backbones.masked.adapter",
    "masked_tabular": "harness.backbones.toy.masked_tabular",
    "mesh": "harness.backbones.mesh.adapter",
    "point_mesh": "harness.backbones.mesh.published.adapter",
    "real_image": "harness.backbones.image.published.adapter",
    "tabular": "harness.backbones.toy.tabular",
    "whisper": "harness.backbones.speech.whisper",
}
"""The modules that register backbone adapters, by the adapter's name."""

RECIPES = (
    "harness.train.backbones.cllm",
    "harness.train.backbones.code",
    "harness.train.backbones.digits",
    "harness.train.backbones.smollm2_drafter",
    "harness.train.backbones.emoji_image",
    "harness.train.backbones.shapes_mesh",
    "harness.train.backbones.sudoku",
    "harness.train.backbones.emoji_vq",
    "methods.training.adapters.recipes",
    "methods.training.adapters.layer_ranges",
    "methods.training.eagle.recipes",
    "methods.training.heads.recipes",
    "methods.training.heads.xspecmesh",
    "methods.training.heads.xspecmesh_joint",
    "methods.training.heads.medusa2",
    "methods.training.scales.recipes",
    "tasks.training.detector",
)
"""Modules that register recipes; only `stride train` reads them."""


PACKAGES = ("methods", "tasks", "reports")
"""Our packages beside this one, whose names a user's own files may have too."""


def check_packages() -> None:
    """Refuse a file of the user that Python would import in the place of one of our packages.

    Raises:
        UsageError: there is one; names it.
    """
    home = Path(__file__).resolve().parents[1]
    for name in PACKAGES:
        place = _place(name)
        if place is not None and place != home / name / "__init__.py":
            raise UsageError(
                f"{place} is imported in the place of stridebench's package {name!r}. "
                f"Rename {place.parent if place.name == '__init__.py' else place}, or start Python in another folder."
            )


def _place(name: str) -> Path | None:
    """The file that ``import name`` reads or has read; None: there is none."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
    else:
        spec = importlib.util.find_spec(name)
        file = spec.origin if spec is not None else None
    return Path(file).resolve() if file is not None else None


@cache
def declare_all() -> None:
    """Tell the registries every name that ships; its module is imported when the name is asked for.

    Raises:
        UsageError: a file of the user hides one of our packages.
    """
    check_packages()
    METHODS.declare(_named_by_file(importlib.import_module("methods")))
    TASKS.declare(_named_by_file(importlib.import_module("tasks")))
    BACKBONES.declare(ADAPTERS)


def _named_by_file(package: ModuleType) -> dict[str, str]:
    """The modules of a package by their names; one without a leading underscore registers what it is named after."""
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
    for module in RECIPES:
        importlib.import_module(module)


def shipped(name: str) -> Path:
    """The folder of a recipe's shipped result, whether it is there or not."""
    return Path(__file__).parent / "backbones" / "weights" / name


def component(kind: str, name: str, backbone: str = "", fingerprint: str = "") -> Path:
    """The folder of a method's trained component: one of the package by name, or a path.

    Args:
        kind: the kind of its recipe, such as samplers.
        name: of the component, or its path.
        backbone: the model that it serves. NAME-BACKBONE of the package is preferred to NAME.
        fingerprint: of the backbone's weights; "": what the component was trained for is not checked.

    Raises:
        WeightsError: it is not there, or is tied to other weights; says how to make it.
    """
    own = f"{name}-{backbone}" if backbone else name
    places = (shipped(own), shipped(name), Path(name).expanduser())
    match = next((folder for folder in places if (folder / "config.json").is_file()), None)
    recipe = "NAME" if "/" in name else own if kind in ("drafter", "adapter") else name  # made for one backbone
    if match is None:
        for_it = f" for {backbone}" if backbone else ""
        raise WeightsError(
            f"no {kind} {name!r} came with the package{for_it}, and there is no such folder; to train: "
            f"stride train {kind} {recipe} --out {shipped(recipe)}"
        )
    if fingerprint and (tied := _tied(match)) not in ("", fingerprint):
        raise WeightsError(
            f"the {kind} in {match} was trained for other weights ({tied[:12]}) than those of {backbone} "
            f"({fingerprint[:12]}); train one for these: `stride train {kind}` lists the recipes"
        )
    return match


def _tied(folder: Path) -> str:
    """The weights that a component was made for; "" where it states none or cannot be read: its method says so."""
    try:
        return str(json.loads((folder / "config.json").read_text(encoding="utf-8")).get("fingerprint", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def suite_folder() -> Path:
    """The folder of the suites that we ship."""
    return Path(next(iter(importlib.import_module("tasks").__path__))) / "suites"


def report_files() -> list[Path]:
    """The YAML files of the papers, each of which defines reports under ``reports:``."""
    folder = Path(next(iter(importlib.import_module("reports").__path__))) / "data" / "papers"
    return sorted(folder.glob("*.yaml"))
