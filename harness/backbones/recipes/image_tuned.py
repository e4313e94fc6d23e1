"""The model of emoji scenes, trained on towards its captions: `stride train backbone emoji-image-tuned`.

What a caption decides is a few bits of a picture: which object begins first, of which colour, how many follow. Beside
the hundreds of bits of a textured ground, and at the pace that the rest needs, the first training hardly learns them.
Here pictures are nearly all smooth, captions that say a colour, a number or a relation come more often, the cells
where an object may begin count more, and the pace is a third. Nothing of it shifts the law given a caption: the family
and the ground stand in the caption, and the weights depend on them and on the place alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from harness.backbones.recipes._decoder import Decoder
from harness.backbones.recipes._pictures import Batch
from harness.backbones.recipes.image import TOKENIZER, SceneRecipe
from harness.registry import RECIPES
from harness.worlds import emoji

BASE = "emoji-image"
FAMILIES = (
    *("position", "color_attr", "counting", "position", "colors"),
    *("color_attr", "two_object", "counting", "position", "single_object"),
)
LATTICE = 2
"""Cells of a step of the lattice that objects lie on: they begin in every other row of cells."""


@dataclass(frozen=True, kw_only=True)
class TunedSceneRecipe(SceneRecipe):
    """Goes on from the weights of ``emoji-image``.

    Args:
        beginning: weight of a cell in a row where objects may begin. ground: of each cell of a textured picture.
    """

    textured: float = 0.05
    beginning: float = 4.0
    ground: float = 0.1
    requires: tuple[str, ...] = (TOKENIZER, BASE)

    fall = 1.0
    warmup = 50
    muon = 0.003

    def build(self, parts: Mapping[str, Path]) -> Decoder:
        model = super().build(parts)
        model.read(parts[BASE])
        return model

    def draw(self, model: nn.Module, step: int, random: np.random.Generator) -> Batch:
        numbers = range(step * self.batch, (step + 1) * self.batch)
        scenes = [self._scene(random, FAMILIES[number % len(FAMILIES)]) for number in numbers]
        side = self.layout.rows
        weights = torch.ones(len(scenes), side, side)
        weights[:, ::LATTICE] = self.beginning
        weights[torch.tensor([scene.ground.textured for scene in scenes])] = self.ground
        return Batch([emoji.caption(scene) for scene in scenes], self.cells(model, scenes), weights.flatten(1))


RECIPES.register("emoji-image-tuned")(
    TunedSceneRecipe(
        summary="emoji-image, trained on towards what captions say",
        width=192,
        inner=512,
        layers=6,
        heads=4,
        context=512,
        batch=16,
        steps=3600,
        hours=1.5,
        rate=2e-3,
        compiled=True,
        average=0.998,
    )
)
