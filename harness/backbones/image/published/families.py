"""The families of picture models by name, and the check of a preset."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stridebench.harness.backbones.base import check_dtype
from stridebench.harness.backbones.checkpoints import components
from stridebench.harness.backbones.image.published.family import Family
from stridebench.harness.errors import UnknownNameError, UsageError, check_parameters

FAMILIES = {
    "anole": "chameleon.ANOLE",
    "lumina": "chameleon.LUMINA",
    "emu3": "emu3.EMU3",
    "janus": "janus.JANUS",
    "llamagen_c2i": "llamagen.C2I",
    "llamagen_t2i": "llamagen.T2I",
    "simplear": "simplear.SIMPLEAR",
    "tar": "tar.TAR",
}
"""The module and constant of each family. Modules are imported at use, because transformers' classes take seconds."""


def family_of(kind: str) -> Family:
    """A family by name. UnknownNameError: there is none of that name."""
    if kind not in FAMILIES:
        raise UnknownNameError("family of picture models", kind, FAMILIES)
    module, _, constant = FAMILIES[kind].partition(".")
    family: Family = getattr(importlib.import_module(f"{__package__}.{module}"), constant)
    return family


@dataclass(frozen=True)
class Checked:
    """Parameters of a preset, settings with their defaults."""

    family: Family
    files: Mapping[str, components.Component]
    settings: Mapping[str, Any]


def check(name: str, params: Mapping[str, Any], dtype: str) -> Checked:
    """The parameters of a preset, checked before anything is read.

    Raises:
        UsageError: one is missing, unknown or of the wrong kind.
    """
    kind = str(params.get("family"))
    family = family_of(kind)
    rest = {key: value for key, value in params.items() if key not in ("family", "parts", "guidance")}
    check_parameters(f"{name}: the family {kind}", params, ["family", "parts", "guidance", *sorted(family.settings)])
    scale = params.get("guidance", 1.0)
    if not isinstance(scale, int | float) or isinstance(scale, bool) or scale < 0:
        raise UsageError(f"{name}: guidance is {scale!r}; give a number of at least 0")
    check_dtype(name, dtype)
    checked = components.check(name, params.get("parts"), family.components, family.optional)
    return Checked(family, checked, {**family.settings, **rest})
