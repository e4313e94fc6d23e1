"""A method from another package: one token a pass."""

from dataclasses import dataclass

from stridebench.harness.contracts import Path, Verdict
from stridebench.harness.method import Claim, Method
from stridebench.harness.registry import METHODS


@METHODS.register("one_by_one")
@dataclass(frozen=True)
class OneByOne(Method[None]):
    claim = Claim.SAME_LAW
    source = "tests/plugins"

    def start(self, run):
        return None

    def step(self, run, state):
        p = run.law(run.target.forward())
        return Verdict(Path.root(p), run.draws.categorical(p, "resid")[0])
