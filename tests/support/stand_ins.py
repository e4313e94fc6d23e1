"""Stand-ins of published models by family, components that learn for a few steps, and decodes with them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stridebench.harness import discover
from stridebench.harness.backbones.tiny import PREFIX
from stridebench.harness.backbones.tiny.texts import causal_architecture
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.method import Method
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.plan import contract, presets
from stridebench.harness.plan.compatibility import Outcomes
from stridebench.harness.registry import GENERAL_RECIPES
from stridebench.harness.train import loop
from stridebench.harness.train.general import general
from stridebench.harness.train.tiny_components import DATA, SMALL

SMALLER = {
    "mulo-2x": {"tiny:tar-1.5b": "tiny:tar-1.5b-256"},
    "mulo-4x": {"tiny:tar-1.5b-1024": "tiny:tar-1.5b-256"},
}
"""Models of pictures of half and of a quarter of the side, which draft for MuLo-SD."""


@dataclass(frozen=True)
class Lesson:
    """A recipe for any backbone, a stand-in that it may train for, and a method that decodes with the result."""

    recipe: str
    family: str
    backbone: str
    method: Method[Any] | None

    def __str__(self) -> str:
        return f"{self.recipe}-{self.family}"


def family(name: str) -> str:
    """The family of a preset that has a stand-in."""
    spec = presets.resolve(name)
    kind = spec.params.get("family") or spec.params.get("architecture")
    if spec.adapter == "masked":
        kind = name.partition("-")[0]
    return str(kind or (causal_architecture(spec.params) if spec.adapter == "hf_causal" else spec.adapter))


@cache
def general_kinds() -> dict[str, list[str]]:
    """Return the recipes for any backbone by kind."""
    kinds: dict[str, list[str]] = {}
    for name, facts in discover.catalogue()["general_recipes"].items():
        kinds.setdefault(facts["kind"], []).append(name)
    return kinds


def stand_ins() -> dict[str, list[str]]:
    """Stand-ins by family; the smallest of a family first."""
    discover.declare_all()
    families: dict[str, list[str]] = {}
    for name in presets.by_name():
        if presets.has_stand_in(name):
            families.setdefault(family(name), []).append(f"{PREFIX}{name}")
    big = ("llama2-7b", "1024", "13b", "70b")  # of more layers or cells than others
    return {kind: sorted(names, key=lambda name: any(word in name for word in big)) for kind, names in families.items()}


def lessons(only: Collection[str] = ()) -> Iterator[Lesson]:
    """Every recipe for any backbone with a stand-in of each family that some method decodes with its result on.

    Args:
        only: lessons to look for, as they print, or nothing for all.
    """
    discover.declare_all()
    families = stand_ins()
    for kind, recipes in general_kinds().items():
        for recipe in recipes:
            for group, names in families.items():
                if not only or f"{recipe}-{group}" in only:
                    yield from _lesson(kind, recipe, group, names)


def _lesson(kind: str, recipe: str, group: str, names: list[str]) -> Iterator[Lesson]:
    tuning = discover.tunes(recipe)
    names = [name for name in names if not tuning or "lora" in presets.parameters(presets.resolve(name))]
    smaller = SMALLER.get(recipe, {})
    for name in [name for name in names if name in smaller] or names:
        backbone = f"{name}:lora={recipe}" if tuning else name
        for method in _users(kind, recipe, name):
            if Outcomes().of(method, presets.resolve(backbone)).word != "cannot":
                playable = kind != "samplers" or name in smaller
                yield Lesson(recipe, group, backbone, method if playable else None)
                return


def _users(kind: str, recipe: str, backbone: str) -> Iterator[Method[Any]]:
    """Methods that open a component of a kind, with this one in its place; the one of the recipe's name first."""
    named = sorted(contract.usable_methods(), key=lambda pair: pair[0] != recipe)
    for name_of_method, settings in named:
        method = contract.default_of(settings)
        for of_kind, name in method.components:
            keys = [field.name for field in fields(method) if getattr(method, field.name) == name]
            other = kind == "drafter" and recipe not in (name, name_of_method)
            if of_kind != kind or other or not keys:  # a method inside another has no field here
                continue
            own: dict[str, Any] = {keys[0]: recipe}
            if kind == "samplers":
                drafter = SMALLER[recipe].get(backbone, backbone)
                own |= {"drafter": drafter, "factor": 4 if "4x" in recipe else 2}
            yield replace(method, **own)


def train(recipe: str, backbone: str, steps: int) -> None:
    """Train a recipe, and what it starts from, for a backbone into the cache."""
    discover.load_recipes()
    base, built = discover.plain(backbone), {}
    data = replace(DATA[presets.resolve(base).modality()], dtype="fp32")
    settings = {**SMALL.get(recipe, {}), "steps": steps}
    for required in GENERAL_RECIPES.get(recipe).requires:
        built[required] = discover.trained(f"{required}-{base}")
        if not (built[required] / "config.json").is_file():
            train(required, base, steps)
    part = general(recipe, base, data, settings)
    result = loop.train(recipe, part, discover.trained(f"{recipe}-{base}"), built)
    assert result.finished and result.step == steps


def tokens_of(method: Method[Any], backbone: str, budget: int, temperature: float = 1.0) -> Any:
    """The output of a decode of the first prompt; of a picture at most ``budget`` tokens."""
    target = loaded(backbone)
    prompt = DATA[presets.resolve(discover.plain(backbone)).modality()].sides()[0][0]
    if grid := target.capabilities.grid:
        budget = min(budget, grid.length)

    def drafter(name: str) -> Any:
        return presets.drafter(target, name)

    run = open_run(target, drafter, prompt, Sampling(temperature), budget, SeededDraws(0, "stand-in", prompt.id, 0))
    return decode(method, run)


@contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    """Stand-ins and what is trained for them lie in a folder of their own meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRIDE_CACHE", str(folder))
        loaded.cache_clear()
        yield
        loaded.cache_clear()


@cache
def loaded(backbone: str) -> Any:
    """A stand-in in fp32."""
    return presets.load(backbone, "fp32")
