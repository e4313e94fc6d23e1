"""Layers of a variant, and imports of adapters."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stridebench.harness.backbones.base import spread


@pytest.mark.parametrize("count", [2, 3, 15, 26, 30])
def test_spread_keeps_the_ends_and_the_requested_number(count: int) -> None:
    layers = spread(30, str(count), "x")
    assert len(set(layers)) == count
    assert layers[0] == 0 and layers[-1] == 29
    assert list(layers) == sorted(layers)


FIRST = """
import sys
from stridebench.harness.machine import extras
extras.prepare = lambda: print("transformers" in sys.modules)
import stridebench.harness.backbones.slots.net
"""


def test_torchvision_is_prepared_before_transformers_is_imported_by_any_module() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
