"""Trains heads, drafters and adapters of stand-ins for two steps, for `stride run --tiny`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from stridebench.harness import discover
from stridebench.harness.backbones.tiny import PREFIX
from stridebench.harness.errors import PackageMissing
from stridebench.harness.plan import presets
from stridebench.harness.plan.cells import Cell, Plan
from stridebench.harness.train import loop
from stridebench.harness.train.general import TaskPlan, general

DATA = {
    "text": TaskPlan("humaneval", limit=3, rows=2, new=40),
    "image": TaskPlan("imagenet_classes", {"file": str(discover.SAMPLES / "imagenet_classes.json")}, limit=3, new=1024),
    "mesh": TaskPlan("point_clouds", {"folder": str(discover.SAMPLES / "point_clouds")}, limit=2, new=40),
    "speech": TaskPlan("utterances", limit=3, new=40),
}
"""Prompts of each modality."""
SMALL = {"cross-regression": {"batch": 1, "rank": 4, "width": 8}, "xspecmesh-cross": {"together": 1, "heads": 6}}
SMALL["xspecmesh-mlp"] = SMALL["xspecmesh-cross"]
SMALL["mulo-2x"] = SMALL["mulo-4x"] = {"batch": 2, "width": 16, "blocks": 1}
SMALL["xspecmesh-cross-lora"] = SMALL["xspecmesh-mlp-lora"] = {"together": 1}


def make(plan: Plan, tell: Callable[[str], None]) -> Plan:
    """Train the components that cells of stand-ins lack; return the plan without the cells that must do without.

    A component whose training needs a package that is not installed is a reason to skip its cells.
    """
    absent: dict[tuple[tuple[str, str], str], str] = {}
    cells = [cell for cell in plan.runnable if cell.backbone.startswith(PREFIX)]
    for (kind, name), backbone in dict.fromkeys((part, cell.backbone) for cell in cells for part in _parts(cell)):
        tuned = discover.tunes(name)
        base = discover.teacher(backbone)
        _forget_other_weights(name, base, tuned)
        if not _is_here(kind, name, base) and (part := discover.general(kind, name)):
            try:
                _train(part.recipe, part.layers, name, base, tell)
            except PackageMissing as error:
                absent[(kind, name), backbone] = str(error)
    return replace(plan, cells=tuple(_without(cell, absent) for cell in plan.cells)) if absent else plan


def _is_here(kind: str, name: str, backbone: str) -> bool:
    """Return whether a component is here; one that was trained at another guidance is not the backbone's."""
    folder = discover.find_component(name, backbone)
    if folder is None or not discover.is_here(kind, name, backbone):
        return False
    return backbone == discover.plain(backbone) or discover.tied_fingerprint(folder) in ("", _fingerprint(backbone))


def _without(cell: Cell, absent: Mapping[tuple[tuple[str, str], str], str]) -> Cell:
    """Return the cell, skipped if one of its components is absent."""
    reasons = [absent[part, cell.backbone] for part in _parts(cell) if (part, cell.backbone) in absent]
    return cell if cell.skip or not reasons else replace(cell, skip=reasons[0])


def _parts(cell: Cell) -> list[tuple[str, str]]:
    """Return the components of a cell, and the recipe that tuned its backbone."""
    lora = str(presets.resolve(cell.backbone).params.get("lora", ""))
    return [*([("heads", lora)] if discover.tunes(lora) else ()), *cell.planned.components]


def _forget_other_weights(name: str, backbone: str, tuned: bool) -> None:
    """Delete a component that was trained for another stand-in of this name; it takes seconds to train again."""
    folder = discover.trained(f"{name}-{backbone}")
    tied = discover.tied_fingerprint(folder / "backbone" if tuned else folder)
    if tied and tied != _fingerprint(backbone):
        shutil.rmtree(folder)


@cache
def _fingerprint(backbone: str) -> str:
    return presets.load(backbone, "fp32").fingerprint


def _train(recipe: str, layers: tuple[int, int] | None, name: str, backbone: str, tell: Callable[[str], None]) -> None:
    folder: Path = discover.trained(f"{name}-{backbone}")
    built = {}
    data = DATA[presets.resolve(backbone).modality()]
    settings = {**SMALL.get(recipe, {}), "steps": 2, **({"layers": layers} if layers else {})}
    tell(f"training {name} of {backbone} for two steps")
    part = general(recipe, backbone, data, settings)
    for required in part.requires:
        built[required] = discover.trained(f"{required}-{backbone}")
        if not (built[required] / "config.json").is_file():
            _train(required, None, required, backbone, tell)
    shutil.rmtree(folder, ignore_errors=True)  # an interrupted training, perhaps with other settings
    loop.train(recipe, part, folder, built)
