"""Packages of 0.1 that hold no module today still lead to their modules."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize(
    ("old", "name", "new"),
    [
        ("harness.worlds.emoji", "scene", "harness.synthetic.emoji_scene"),
        ("harness.worlds.speech", "asked", "harness.synthetic.speech"),
        ("harness.backbones.nets.vq", "VQ", "harness.backbones.image.vq"),
    ],
)
def test_a_module_of_a_package_that_is_gone_is_imported(old: str, name: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old}.{name} moved"):
        assert getattr(importlib.import_module(old), name).__module__ == new
