"""A method whose name is taken."""

from dataclasses import dataclass

from harness.contracts import Path, Verdict
from harness.method import Claim, Method

from harness.registry import METHODS


@METHODS.register("jacobi")
@dataclass(frozen=True)
class SecondJacobi(Method[None]):
    claim = Claim.SAME_LAW
    source = "tests/plugins"

    def start(self, run):
        return None

    def step(self, run, state):
        p = run.law(run.target.forward())
        return Verdict(Path.root(p), run.draws.categorical(p, "resid")[0])
