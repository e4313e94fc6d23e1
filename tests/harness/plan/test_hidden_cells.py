"""Methods that read hidden rows, on every published model of pictures: each decodes on its stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stridebench.harness import discover
from stridebench.harness.backbones.tiny import PREFIX
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.method import Method
from stridebench.harness.plan import contract, presets
from stridebench.harness.plan.compatibility import Outcomes
from tests.support import stand_ins

FEW = 8
"""Output tokens of a decode, and one step more."""


def methods() -> dict[str, Method[Any]]:
    """Those that need hidden rows and no encoder's condition."""
    discover.declare_all()
    defaults = {name: contract.default_of(settings) for name, settings in contract.usable_methods()}
    needs = {name: method.requirements for name, method in defaults.items()}
    return {
        name: method
        for name, method in defaults.items()
        if Requirement.HIDDEN in needs[name] and Requirement.CONDITION not in needs[name]
    }


def pictures() -> list[str]:
    """The published models of pictures."""
    discover.declare_all()
    return [name for name, spec in presets.by_name().items() if spec.adapter == "real_image"]


def cells() -> list[tuple[str, str]]:
    """A pair of each method and model."""
    return [(method, backbone) for backbone in pictures() for method in methods()]


def test_there_are_96_cells_or_more_and_none_is_impossible() -> None:
    outcomes, methods_ = Outcomes(), methods()
    words = {
        (method, backbone): outcomes.of(methods_[method], presets.resolve(backbone)).word
        for method, backbone in cells()
    }
    drafted = {pair: word for pair, word in words.items() if pair[0] != "hydra"}
    assert len(drafted) >= 96 and set(drafted.values()) <= {"runs", "needs a part", "needs weights"}
    hydra = "published heads are read, and no recipe trains them"
    assert {word for pair, word in words.items() if pair[0] == "hydra"} <= {"cannot"}, hydra


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Components that learn for a step, each once a model."""
    with stand_ins.cache_in(tmp_path_factory.mktemp("cache")):
        yield


@pytest.mark.audit
@pytest.mark.parametrize(("method", "backbone"), cells())
def test_a_cell_decodes_a_few_tokens(method: str, backbone: str, cache: None) -> None:
    chosen, name = methods()[method], f"{PREFIX}{backbone}"
    for kind, component in chosen.components:
        if discover.general(kind, component) is None:
            pytest.skip(f"no recipe trains {component}; its importer has tests of its own")
        if discover.find_component(component, name) is None:
            stand_ins.train(component, name, 1)
    for temperature in (0.0, 1.0):
        result = stand_ins.tokens_of(chosen, name, FEW, temperature)
        assert len(result.tokens) == FEW and any(step.drafted for step in result.steps)
