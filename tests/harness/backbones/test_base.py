"""Layers of a variant."""

from __future__ import annotations

import pytest

from stridebench.harness.backbones.base import spread


@pytest.mark.parametrize("count", [2, 3, 15, 26, 30])
def test_spread_keeps_the_ends_and_the_requested_number(count: int) -> None:
    layers = spread(30, str(count), "x")
    assert len(set(layers)) == count
    assert layers[0] == 0 and layers[-1] == 29
    assert list(layers) == sorted(layers)
