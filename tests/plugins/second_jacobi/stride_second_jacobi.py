"""A method whose name is taken."""

from dataclasses import dataclass

from stridebench.harness.contracts import Path, Verdict
from stridebench.harness.method import Claim, Method
from stridebench.harness.registry import METHODS


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
