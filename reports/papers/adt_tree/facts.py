"""What ADT-Tree's tables need beyond their YAML: bases of trees that leave no choice, and which model stands for which.

Its trees with a fixed base are ours with bounds that leave no other: from a base of 1, d is 1 or 2, and from one of k,
k less or more one step, whatever the neighbour had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from reports.papers.engine import Facts, Line, Scene


def options(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of ADT-Tree with ``fixed``: which of depth (d) and width (k) its bounds fix."""
    if not {"depths", "widths", "step_k"} <= set(params):
        return params
    depth, (least, most) = list(params["depths"]) == [1, 2], params["widths"]
    return {**params, "fixed": ("d" if depth else "") + ("k" if most - least == params["step_k"] else "")}


def stand_ins(scene: Scene) -> dict[str, str]:
    """Backbones of the run by the paper's models, in the order of both."""
    printed = scene.table.rows
    models = dict.fromkeys(printed["Model"]) if "Model" in printed else [scene.layout.model]
    return dict(zip(models, dict.fromkeys(scene.cells["backbone"]), strict=False))


def lines(scene: Scene) -> Iterator[Line]:
    """Each row on the backbone that stands for its model."""
    backbones = stand_ins(scene)
    for line in scene.lines:
        backbone = backbones.get(line.labels[0] if "Model" in scene.table.rows else scene.layout.model)
        yield replace(line, selection={**(line.selection or {}), "backbone": backbone} if backbone else None)


def notes(scene: Scene) -> Iterator[str]:
    """Which backbone stands for which model."""
    yield from (f"{backbone} stands for {model}" for model, backbone in stand_ins(scene).items())


FACTS = Facts(options=options, lines=lines, notes=notes)
