"""Where the other three packages are named, as strings: what to import so that the registries are full."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from harness.errors import WeightsError

PACKAGES = ("methods", "tasks", "harness.backbones")
"""Packages whose modules register something when imported; names that begin with _ are parts."""


RECIPE_PACKAGES = ("harness.backbones.recipes", "methods.training", "tasks.training")
"""Packages whose modules register recipes; read by `stride train` alone."""


def load_all() -> None:
    """Import every module that registers a method, a task or a backbone adapter."""
    _import(PACKAGES)


def load_recipes() -> None:
    """Import every module that registers a recipe."""
    _import(RECIPE_PACKAGES)


def shipped(name: str) -> Path:
    """The folder of a recipe's shipped result, whether it is there or not."""
    return Path(__file__).parent / "backbones" / "weights" / name


def part(kind: str, name: str, backbone: str = "") -> Path:
    """The folder of a method's trained part: one of the package by name, or a path.

    Args:
        kind: of its recipe: samplers, say. backbone: NAME-BACKBONE of the package goes before NAME, for parts that are
            made for one backbone.

    Raises:
        WeightsError: it is not there; says how to make it.
    """
    own = f"{name}-{backbone}" if backbone else name
    places = (shipped(own), shipped(name), Path(name).expanduser())
    found = next((folder for folder in places if (folder / "config.json").is_file()), None)
    if found is None:
        made = "NAME" if "/" in name else own if kind in ("drafter", "adapter") else name  # made for one backbone
        for_it = f" for {backbone}" if backbone else ""
        raise WeightsError(
            f"no {kind} {name!r} came with the package{for_it}, and there is no such folder; to train: "
            f"stride train {kind} {made} --out {shipped(made)}"
        )
    return found


def _import(packages: Sequence[str]) -> None:
    for package in packages:
        found = importlib.import_module(package)
        for module in pkgutil.iter_modules(found.__path__, f"{package}."):
            if not module.ispkg and not module.name.rpartition(".")[2].startswith("_"):
                importlib.import_module(module.name)


def report(name: str) -> ModuleType:
    """A module of the reports package; they read stores and are called by the command line only."""
    return importlib.import_module(f"reports.{name}")


def suite_folders() -> Sequence[Path]:
    """Folders that hold the suites we ship."""
    root = Path(next(iter(importlib.import_module("tasks").__path__)))
    return (root / "suites",)


def sandbox() -> ModuleType:
    """The module that executes model output."""
    return importlib.import_module("tasks.metrics.sandbox")
