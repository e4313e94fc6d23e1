"""Where the other three packages are named, as strings: what registers which name."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pkgutil
import re
from functools import cache
from pathlib import Path
from types import ModuleType

from stridebench.harness.errors import WeightsError
from stridebench.harness.registry import BACKBONES, ENGINES, KERNELS, LAYOUTS, METHODS, TASKS

ADAPTERS = {
    "drafter": "stridebench.harness.backbones.text.drafter",
    "hf_causal": "stridebench.harness.backbones.text.hf_causal",
    "image": "stridebench.harness.backbones.image.adapter",
    "masked": "stridebench.harness.backbones.masked.adapter",
    "masked_tabular": "stridebench.harness.backbones.toy.masked_tabular",
    "mesh": "stridebench.harness.backbones.mesh.adapter",
    "point_mesh": "stridebench.harness.backbones.mesh.published.adapter",
    "real_image": "stridebench.harness.backbones.image.published.adapter",
    "tabular": "stridebench.harness.backbones.toy.tabular",
    "whisper": "stridebench.harness.backbones.speech.whisper",
}
"""The modules that register backbone adapters, by the adapter's name."""

KERNEL_MODULES = {
    "transformers": "stridebench.harness.audit.kernels",
    "transformers_single_position": "stridebench.harness.audit.generators",
}
"""Kernels that `stride audit --kernel` knows, and their modules."""

LAYOUT_MODULES = {
    **dict.fromkeys(("geneval", "dpg", "t2i", "vbench-like"), "stridebench.tasks.exchange.pictures"),
    **dict.fromkeys(("human-eval", "lm-eval"), "stridebench.tasks.exchange.texts"),
}
"""Layouts of `stride export` and `stride attach`, and their modules."""

ENGINE_NAMES = ("llama_cpp", "openai", "openvino_genai", "sglang", "tensorrt_llm", "transformers", "vllm")
"""Engines that ship; the module of stridebench.harness.engines is named as the engine."""

RECIPES = (
    "stridebench.harness.train.backbones.cllm",
    "stridebench.harness.train.backbones.code",
    "stridebench.harness.train.backbones.digits",
    "stridebench.harness.train.backbones.smollm2_drafter",
    "stridebench.harness.train.backbones.emoji_image",
    "stridebench.harness.train.backbones.shapes_mesh",
    "stridebench.harness.train.backbones.sudoku",
    "stridebench.harness.train.backbones.emoji_vq",
    "stridebench.methods.training.adapters.recipes",
    "stridebench.methods.training.adapters.layer_ranges",
    "stridebench.methods.training.eagle.recipes",
    "stridebench.methods.training.heads.recipes",
    "stridebench.methods.training.heads.xspecmesh",
    "stridebench.methods.training.heads.xspecmesh_any",
    "stridebench.methods.training.heads.xspecmesh_joint",
    "stridebench.methods.training.heads.medusa2",
    "stridebench.methods.training.scales.general",
    "stridebench.methods.training.scales.recipes",
    "stridebench.tasks.training.detector",
)
"""Modules that register recipes; only `stride train` reads them."""

TRAINED = {
    "drafter": (
        *("blockwise-embedded-code", "blockwise-embedded-image", "blockwise-smollm2-135m"),
        *("eagle1-embedded-code", "eagle1-embedded-digits-l", "eagle1-embedded-digits-s", "eagle1-embedded-image"),
        *("eagle1-smollm2-135m", "eagle3-embedded-code", "eagle3-smollm2-135m"),
        *("medusa-embedded-code", "medusa-embedded-image", "medusa-smollm2-135m"),
        *("medusa2-embedded-code", "medusa2-smollm2-135m"),
    ),
    "adapter": (
        *("cross-regression-embedded-code", "cross-regression-smollm2-135m", "cross-regression-whisper-base"),
        *(f"cross-regression-l{a}-{b}-embedded-code" for a, b in ((0, 0), (0, 1), (0, 3), (1, 1), (1, 3), (1, 4))),
        *(f"cross-regression-l{a}-{b}-embedded-code" for a, b in ((2, 3), (2, 4), (4, 4))),
        *(f"cross-regression-l{a}-{b}-smollm2-135m" for a, b in ((0, 7), (0, 14), (0, 22), (8, 14), (8, 22))),
        *(f"cross-regression-l{a}-{b}-smollm2-135m" for a, b in ((8, 29), (15, 22), (15, 29), (23, 29))),
    ),
    "heads": (
        *("xspecmesh-cross", "xspecmesh-cross-full", "xspecmesh-cross-lora", "xspecmesh-mlp", "xspecmesh-mlp-lora"),
    ),
    "samplers": ("mulo-2x", "mulo-2x-gan"),
    "backbone": (
        *("cllm-embedded-code", "code", "digits-l", "digits-s", "emoji-image", "emoji-image-8x8", "emoji-image-small"),
        *("emoji-vq", "shapes-mesh", "shapes-mesh-truncated", "smollm2-drafter"),
        *("sudoku-ar", "sudoku-masked", "sudoku-masked-cosine", "sudoku-masked-log-linear"),
    ),
}
"""Recipes by kind, so that lists and dry runs name one without importing torch; ``RECIPES`` holds the same names."""
GENERAL = {
    "drafter": ("blockwise", "eagle1", "eagle3", "medusa"),
    "adapter": ("cross-regression",),
    "heads": ("xspecmesh-cross", "xspecmesh-cross-lora", "xspecmesh-mlp", "xspecmesh-mlp-lora"),
    "samplers": ("mulo-2x", "mulo-4x"),
}
"""Recipes for any backbone by kind; ``GENERAL_RECIPES`` holds the same names."""
TUNING = ("xspecmesh-cross-lora", "xspecmesh-mlp-lora")
"""Those of `GENERAL` that tune the backbone too: what they train is for the tuned one."""
EARLIER = {"mulo-4x": "mulo-2x", "xspecmesh-cross-lora": "xspecmesh-cross", "xspecmesh-mlp-lora": "xspecmesh-mlp"}
"""The first stage of recipes of `GENERAL` that start from its result."""
SERVED = {"heads": ("embedded-mesh",), "samplers": ("embedded-image", "embedded-image-small")}
"""The backbones that recipes of these kinds train for; their names do not end in one."""

SAMPLES = Path(__file__).resolve().parents[1] / "tasks" / "data" / "tiny"
"""A prompt of each benchmark in its published format, for `stride run SUITE --tiny`."""

COMPONENT_FILES = ("config.json", "adapter_config.json")
"""Either marks a component's folder; peft's adapters have the second alone."""

PAIRS = re.compile(r"\w+=[^=,:]*(,\w+=[^=,:]*)*")
"""Parameters behind the last colon of a backbone's or drafter's name."""


@cache
def declare_all() -> None:
    """Tell the registries every name that ships; its module is imported when the name is asked for."""
    METHODS.declare(_named_by_file(importlib.import_module("stridebench.methods")))
    TASKS.declare(_named_by_file(importlib.import_module("stridebench.tasks")))
    BACKBONES.declare(ADAPTERS)
    KERNELS.declare(KERNEL_MODULES)
    LAYOUTS.declare(LAYOUT_MODULES)
    ENGINES.declare({name: f"stridebench.harness.engines.{name}" for name in ENGINE_NAMES})


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


def plain(backbone: str) -> str:
    """A backbone's name without parameters: ``smollm2-135m:weights=int4`` becomes ``smollm2-135m``."""
    name, colon, tail = backbone.rpartition(":")
    return name if colon and PAIRS.fullmatch(tail) else backbone


def names_of(backbone: str) -> set[str]:
    """The names by which an entry of a suite may mean a backbone: its own, and that without parameters.

    A tuned backbone (``lora=``) is another model, so it has its own name alone.
    """
    name, _, tail = backbone.rpartition(":")
    return {backbone} if "lora=" in tail and plain(backbone) == name else {backbone, plain(backbone)}


def trained(name: str) -> Path:
    """The folder of a component that a recipe for any backbone has trained, or will train."""
    cache = Path(os.environ.get("STRIDE_CACHE") or Path.home() / ".cache" / "stridebench")
    return cache / "trained" / re.sub(r"[^\w.=+-]", "-", name)


def general(kind: str, name: str) -> tuple[str, tuple[int, int] | None] | None:
    """The recipe for any backbone that trains a component, and the layers that its name states; None: there is none."""
    match = re.fullmatch(r"(.+)-l(\d+)-(\d+)", name)
    recipe_name = match[1] if match else name
    if recipe_name not in GENERAL.get(kind, ()):
        return None
    return recipe_name, (int(match[2]), int(match[3])) if match else None


def general_command(kind: str, name: str, backbone: str, data: str = "FILE") -> str | None:
    """The command that trains a component for a backbone, on data of the user; None: no recipe does.

    Recipes of `TUNING` serve the backbone that they tune alone: ``bpt:lora=xspecmesh-cross-lora``.
    """
    part = general(kind, name)
    if part is None or (part[0] in TUNING and not backbone.endswith(f":lora={name}")):
        return None
    backbone = plain(backbone)
    layers = f" --set 'layers={list(part[1])}' --out {trained(f'{name}-{backbone}')}" if part[1] else ""
    return f"stride train {part[0]} --backbone {backbone} --data {data}{layers}"


def tuned(lora: str, backbone: str) -> Path:
    """The low-rank matrices that ``lora`` of a backbone's name means: a recipe's result for it, or a folder."""
    if lora in TUNING:
        return trained(f"{lora}-{plain(backbone)}") / "backbone"
    return Path(lora).expanduser()


def find_component(name: str, backbone: str = "") -> Path | None:
    """The folder of a trained component, whatever it was trained for; NAME-BACKBONE is preferred to NAME."""
    own = f"{name}-{plain(backbone)}" if backbone else name
    places = (shipped(own), trained(own), shipped(name), Path(name).expanduser())
    return next((folder for folder in places if any((folder / file).is_file() for file in COMPONENT_FILES)), None)


def is_here(kind: str, name: str, backbone: str) -> bool:
    """Whether a component for a backbone is here. What the package has for its own backbones serves no other."""
    folder = find_component(name, backbone)
    own = SERVED.get(kind, ()) if folder == shipped(name) else ()
    return folder is not None and (not own or plain(backbone) in own)


def recipe(kind: str, name: str, backbone: str = "") -> str | None:
    """The recipe that trains a component for a backbone; None: there is none."""
    names, backbone = TRAINED.get(kind, ()), plain(backbone)
    own = f"{name}-{backbone}" if backbone else name
    serves = backbone in ("", *SERVED.get(kind, ()))
    return own if own in names else name if name in names and serves else None


def kind_of(recipe_name: str) -> str | None:
    """The kind of a recipe; None: there is no such recipe."""
    return next((kind for kind, names in TRAINED.items() if recipe_name in names), None)


def train_command(kind: str, name: str) -> str:
    """The command that trains a recipe into the package."""
    return f"stride train {kind} {name} --out {shipped(name)}"


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
    """The weights that a component was made for; "" where it states none or cannot be read: its method says so."""
    try:
        return str(json.loads((folder / "config.json").read_text(encoding="utf-8")).get("fingerprint", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def tied_backbone(folder: Path) -> str:
    """The backbone that a component was made for, by its configuration; "" where it names none."""
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
