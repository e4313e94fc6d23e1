"""LANTERN++: what its factor changes."""

from __future__ import annotations

import pytest

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.loop import decode
from stridebench.harness.core.sampling import Sampling
from stridebench.methods.lanternpp import LanternPlusPlus
from tests.support.feature_toys import run_on

MODEL = Tabular("tabular", {"vocabulary": 9, "grid": (4, 4, 8), "sharpness": 2.0})


@pytest.mark.usefixtures("unchecked")
def test_more_is_accepted_with_a_larger_factor() -> None:
    def accepted(factor: float) -> float:
        method = LanternPlusPlus(tree="eagle_25", k=3, factor=factor)
        steps = []
        for seed in range(4):
            steps += decode(method, run_on(MODEL, Sampling(1.0), 20, (0, 1), seed)).steps
        return sum(step.accepted for step in steps) / len(steps)

    assert accepted(0.0) < accepted(4.0) <= accepted(50.0)
