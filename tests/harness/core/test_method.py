"""What a method declares beside `start` and `step`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from stridebench.harness.core.capabilities import Grid, Requirement
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.plan import presets
from stridebench.harness.plan.compatibility import incompatibility
from stridebench.harness.registry import METHODS
from stridebench.methods.mulo_sd import MuLoSD
from stridebench.methods.specinfer import SpecInfer
from stridebench.methods.speculative import Speculative


@dataclass(frozen=True)
class WithDrafter(Method[None]):
    """A plugin that declares its drafter by a field of that name and nothing else."""

    drafter: str = "smollm2-drafter"
    factor: float = 2.0

    claim = Claim.SAME_LAW
    requirements = frozenset({Requirement.DRAFTER})

    def start(self, run: Any) -> None:
        return None

    def step(self, run: Any, state: None) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("method", "drafters", "shrink"),
    [
        (WithDrafter(), ("smollm2-drafter",), 1),
        (WithDrafter(drafter=""), (), 1),
        (Speculative("self:layers=2"), ("self:layers=2",), 1),
        (SpecInfer("self", others=("toy", "other")), ("self", "toy", "other"), 1),
        (MuLoSD(factor=2), ("embedded-image-8x8",), 2),
        (METHODS.get("autoregressive")(), (), 1),
        (METHODS.get("lanternpp")(), (), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Method) else None,
)
def test_a_method_names_the_models_that_it_opens(method: Method[Any], drafters: tuple[str, ...], shrink: int) -> None:
    assert tuple(method.drafters()) == drafters
    assert method.drafter_shrink == shrink


@pytest.mark.parametrize("method", [WithDrafter("no-such-model"), SpecInfer("self", others=("no-such-model",))])
def test_each_drafter_is_checked_before_a_run(method: Method[Any]) -> None:
    reason = incompatibility(method, presets.resolve("smollm2-135m"))
    assert reason is not None and reason.startswith("drafter: ") and "no-such-model" in reason


def test_a_drafter_of_another_modality_is_refused_before_a_run() -> None:
    reason = incompatibility(WithDrafter("embedded-image"), presets.resolve("smollm2-135m"))
    assert reason == "the drafter embedded-image makes image, and the backbone text"


# A picture's cells, its forced tokens, and how they are counted.


def test_cells_in_raster_order_behind_the_prompt():
    grid = Grid(2, 3, start=5)
    assert [grid.cell(p) for p in range(4, 12)] == [None, (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), None]
    assert grid.length == 6 and all(grid.forced(p) is None for p in range(20))


def test_ends_of_rows_and_of_the_picture_are_forced():
    grid = Grid(2, 2, eol=9, tail=(7, 8), start=1)
    assert [grid.forced(p) for p in range(0, 10)] == [None, None, None, 9, None, None, 9, 7, 8, None]
    assert [grid.cell(p) for p in range(1, 9)] == [(0, 0), (0, 1), None, (1, 0), (1, 1), None, None, None]
    assert grid.length == 8
