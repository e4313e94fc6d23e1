"""The data of shapes by name: each draws a shape of a split ("train" or "test") and a level (0 to 2; drawn if None)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from stridebench.harness.synthetic import furniture, shapes

DATA: Mapping[str, Callable[[np.random.Generator, str, int | None], shapes.ProceduralShape]] = MappingProxyType(
    {"furniture": furniture.shape, "shapes": shapes.shape}
)
