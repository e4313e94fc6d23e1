"""What ADT-Tree's tables need beyond their YAML: trees with a fixed base, and which backbone stands for which model.

A fixed base is expressed by bounds: from a base of 1, d is 1 or 2. From a base of k, the width is k minus or plus one
step, whatever the neighbour had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from stridebench.reports.papers.engine import PaperFacts, SheetLine, SheetScene


def options(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add ``fixed`` to the options of ADT-Tree: which of depth (d) and width (k) its bounds fix."""
    if not {"depths", "widths", "step_k"} <= set(params):
        return params
    depth, (least, most) = list(params["depths"]) == [1, 2], params["widths"]
    return {**params, "fixed": ("d" if depth else "") + ("k" if most - least == params["step_k"] else "")}


def stand_ins(scene: SheetScene) -> dict[str, str]:
    """Return the run's backbones by the paper's models; both keep their order."""
    printed = scene.table.rows
    models = dict.fromkeys(printed["Model"]) if "Model" in printed else [scene.layout.model]
    return dict(zip(models, dict.fromkeys(scene.cells["backbone"]), strict=False))


def lines(scene: SheetScene) -> Iterator[SheetLine]:
    """Assign each row the backbone that stands for its model."""
    backbones = stand_ins(scene)
    for line in scene.lines:
        backbone = backbones.get(line.labels[0] if "Model" in scene.table.rows else scene.layout.model)
        yield replace(line, selection={**(line.selection or {}), "backbone": backbone} if backbone else None)


def notes(scene: SheetScene) -> Iterator[str]:
    """Say which backbone stands for which model."""
    yield from (f"{backbone} stands for {model}" for model, backbone in stand_ins(scene).items())


FACTS = PaperFacts(options=options, lines=lines, notes=notes)
