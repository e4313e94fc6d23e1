"""An autoregressive method whose children go wrong in one place, and its registration for one test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.draft import Path as TokenPath
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.registry import Registry


@dataclass(frozen=True)
class OneByOne(Method[None]):
    """Autoregressive decoding; what is wrong with each of its children stands in ``token``."""

    claim = Claim.SAME_LAW
    source = "this test"

    def start(self, run: Run) -> None:
        return None

    def step(self, run: Run, state: None) -> Acceptance:
        p = run.probs(run.target.forward())
        return Acceptance(TokenPath.root(p), self.token(run, p))

    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        return run.draws.categorical(p, "resid")[0]


@dataclass(frozen=True)
class RankedChoice(OneByOne):
    """Emits the token of this rank at every temperature; with rank 0 it is greedy, and wrong above T = 0."""

    rank: int = 0

    claim = Claim.SAME_GREEDY

    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        return p[0].argsort(descending=True)[self.rank]


def register(monkeypatch: pytest.MonkeyPatch, registry: Registry[Any], name: str, item: type[Any]) -> None:
    """Register a class until the end of the test."""
    assert name not in registry
    monkeypatch.setitem(registry._items, name, item)
    monkeypatch.setitem(registry._source, name, "this test")
