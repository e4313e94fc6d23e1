"""Names of 0.1 lead to the names of today, with a warning."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from stridebench.harness.deprecated import MODULES, RENAMED


@pytest.mark.parametrize(
    ("old", "name", "new"),
    [
        ("harness.worlds.emoji", "scene", "stridebench.harness.synthetic.emoji_scene"),
        ("harness.worlds.speech", "asked", "stridebench.harness.synthetic.speech"),
        ("stridebench.harness.backbones.nets.vq", "VQ", "stridebench.harness.backbones.image.vq"),
    ],
)
def test_a_module_that_moved_is_imported_by_its_old_name(old: str, name: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old}.{name} moved"):
        assert getattr(importlib.import_module(old), name).__module__ == new


@pytest.mark.parametrize(
    ("module", "old", "new"), [(module, old, new) for module, names in RENAMED.items() for old, new in names.items()]
)
def test_a_renamed_symbol_of_a_module_that_stayed_is_served_by_its_old_name(module: str, old: str, new: str) -> None:
    loaded = importlib.import_module(module)
    assert old not in vars(loaded)
    with pytest.warns(DeprecationWarning, match=f"{module}.{old} is now called {new}"):
        assert getattr(loaded, old) is vars(loaded)[new]


def test_a_module_with_renamed_symbols_has_no_other_names() -> None:
    module = importlib.import_module("stridebench.methods.verifiers.rejection")
    with pytest.raises(AttributeError, match=r"module 'methods\.verifiers\.rejection' has no attribute 'coins'"):
        _ = module.coins


@pytest.mark.parametrize("package", ["stridebench.methods.drafters.choices", "reports.sheet", "tasks.scenes"])
def test_an_old_module_may_be_the_first_import_of_a_program(package: str) -> None:
    assert package in MODULES
    done = subprocess.run([sys.executable, "-c", f"import {package}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
