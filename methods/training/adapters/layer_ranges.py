"""Adapters of Cross-Regression on a range of layers: `stride train adapter cross-regression-l0-1-embedded-code`.

Source: Abulkhanov et al., Cross-Regression, Table 16: quarters, halves and three quarters of the layers.
"""

from __future__ import annotations

from dataclasses import replace

from stridebench.harness.registry import RECIPES
from stridebench.methods.training.adapters.recipes import TrainAdapter

RANGES = {
    "embedded-code": ((0, 0), (1, 1), (2, 3), (4, 4), (0, 1), (1, 3), (2, 4), (0, 3), (1, 4)),
    "smollm2-135m": ((0, 7), (8, 14), (15, 22), (23, 29), (0, 14), (8, 22), (15, 29), (0, 22), (8, 29)),
}
"""First and last layer of each range; the backbones have 5 and 30 layers."""

for _backbone, _ranges in RANGES.items():
    _all_layers = RECIPES.get(f"cross-regression-{_backbone}")
    assert isinstance(_all_layers, TrainAdapter)
    for _first, _last in _ranges:
        RECIPES.register(f"cross-regression-l{_first}-{_last}-{_backbone}")(
            replace(
                _all_layers,
                summary=f"adapter of layers {_first} to {_last} of {_backbone} for cross_regression",
                layers=(_first, _last),
            )
        )
