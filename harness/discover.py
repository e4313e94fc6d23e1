"""Where the other three packages are named, as strings: what to import so that the registries are full."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from harness.errors import WeightsError

PACKAGES = ("methods", "tasks")
"""Packages in which every module without a leading underscore registers one method or task."""

ADAPTERS = (
    "harness.backbones.image.adapter",
    "harness.backbones.image.published.adapter",
    "harness.backbones.masked.adapter",
    "harness.backbones.mesh.published.adapter",
    "harness.backbones.mesh.adapter",
    "harness.backbones.speech.whisper",
    "harness.backbones.text.drafter",
    "harness.backbones.text.hf_causal",
    "harness.backbones.toy.masked_tabular",
    "harness.backbones.toy.tabular",
)
"""Modules that register a backbone adapter."""

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
    "methods.training.heads.medusa2",
    "methods.training.scales.recipes",
    "tasks.training.detector",
)
"""Modules that register recipes; only `stride train` reads them."""


def load_all() -> None:
    """Import every module that registers a method, a task or a backbone adapter."""
    for package in PACKAGES:
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
            if not module.ispkg and not module.name.rpartition(".")[2].startswith("_"):
                importlib.import_module(module.name)
    load_adapters()


def load_adapters() -> None:
    """Import every module that registers a backbone adapter; entry points bring those of other packages."""
    for module in ADAPTERS:
        importlib.import_module(module)


def load_recipes() -> None:
    """Import every module that registers a recipe."""
    for module in RECIPES:
        importlib.import_module(module)


def shipped(name: str) -> Path:
    """The folder of a recipe's shipped result, whether it is there or not."""
    return Path(__file__).parent / "backbones" / "weights" / name


def component(kind: str, name: str, backbone: str = "", fingerprint: str = "") -> Path:
    """The folder of a method's trained part: one of the package by name, or a path.

    Args:
        kind: of its recipe: samplers, say. backbone: NAME-BACKBONE of the package goes before NAME, for parts that are
            made for one backbone. fingerprint: of its weights; "": whoever it was made for is not looked at.

    Raises:
        WeightsError: it is not there, or is tied to other weights; says how to make it.
    """
    own = f"{name}-{backbone}" if backbone else name
    places = (shipped(own), shipped(name), Path(name).expanduser())
    found = next((folder for folder in places if (folder / "config.json").is_file()), None)
    made = "NAME" if "/" in name else own if kind in ("drafter", "adapter") else name  # made for one backbone
    if found is None:
        for_it = f" for {backbone}" if backbone else ""
        raise WeightsError(
            f"no {kind} {name!r} came with the package{for_it}, and there is no such folder; to train: "
            f"stride train {kind} {made} --out {shipped(made)}"
        )
    if fingerprint and (tied := _tied(found)) not in ("", fingerprint):
        raise WeightsError(
            f"the {kind} in {found} was trained for other weights ({tied[:12]}) than those of {backbone} "
            f"({fingerprint[:12]}); train one for these: `stride train {kind}` lists the recipes"
        )
    return found


def _tied(folder: Path) -> str:
    """The weights that a part was made for; "" where it does not say, or cannot be read, which its method tells."""
    try:
        return str(json.loads((folder / "config.json").read_text(encoding="utf-8")).get("fingerprint", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def report(name: str) -> ModuleType:
    """A module of the reports package; they read stores and are called by the command line only."""
    moved = {"gate": "gate.gate", "compare": "gate.compare", "cost": "cost.tables", "cost_cards": "cost.cards"}
    moved["papers"] = "papers.suites"
    return importlib.import_module(f"reports.{moved.get(name, name)}")


def suite_folders() -> Sequence[Path]:
    """Folders that hold the suites we ship."""
    root = Path(next(iter(importlib.import_module("tasks").__path__)))
    return (root / "suites",)


def sandbox() -> ModuleType:
    """The module that executes model output."""
    return importlib.import_module("tasks.metrics.sandbox")
