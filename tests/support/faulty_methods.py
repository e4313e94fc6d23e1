"""Methods with a mistake each, which stand in the place of the correct `OneByOne`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance, Fill
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from tests.support.one_by_one import OneByOne


class DraftsWithTheTarget(OneByOne):
    """Reads the target once more in each step, under the name of a drafter."""

    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        run.open("self").forward()
        return super().token(run, p)


class ReusesNoise(OneByOne):
    """Draws every token by the noise of the first one."""

    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        return run.draws.race(p, [len(run.target) - run.emitted])[0]


class BiasedLate(OneByOne):
    """Right for six tokens, which is more than the fixed cases of three ids have; greedy from there on."""

    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        return super().token(run, p) if run.emitted < 6 or p.shape[-1] != 3 else p[0].argmax()


class WrongLate(OneByOne):
    """As `BiasedLate`, with the least probable token."""

    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        return super().token(run, p) if run.emitted < 6 or p.shape[-1] != 3 else p[0].argmin()


class RaisesOnToys(OneByOne):
    """Cannot be enumerated, and is wrong elsewhere."""

    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        if p.shape[-1] < 100:
            raise RuntimeError("not on a toy")
        return p[0].argmin()


@dataclass(frozen=True)
class CopiesLate(Method[list[int]]):
    """A canvas in raster order; behind twelve positions each token is copied to the next, which no pass has seen."""

    claim = Claim.SAME_LAW
    source = "tests/support"
    requirements = frozenset({Requirement.ANY_ORDER})

    def start(self, run: Run) -> list[int]:
        return [run.canvas.start - 1]

    def step(self, run: Run, state: list[int]) -> Fill:
        unread = torch.tensor([run.canvas.tokens[place] for place in state])
        p = run.probs(run.canvas.read(unread, state, rows=1))
        count = 1 if run.emitted < 12 else min(2, run.room)
        state[:] = range(state[-1] + 1, state[-1] + 1 + count)
        return Fill(torch.tensor(state), run.draws.categorical(p, "resid").expand(count))


class ReadsAnotherPrompt(OneByOne):
    """From its seventh token on it reads the text behind another first token, from a cache of its own making."""

    def step(self, run: Run, state: None) -> Acceptance:
        if run.emitted == 6:
            first, *text = run.target.tokens
            run.target.sync([(first + 1) % run.capabilities.vocabulary, *text])
        return super().step(run, state)


class ChangesWeights(OneByOne):
    """Computes with another final norm than the target has; a toy has none."""

    def start(self, run: Run) -> None:
        backbone: Any = run.models.backbone
        if not backbone.toy_drafters:
            backbone._net._norm.mul_(1.5)
