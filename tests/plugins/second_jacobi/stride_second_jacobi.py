"""A method whose name is taken."""

from dataclasses import dataclass

from stridebench.harness.core import METHODS, Acceptance, Claim, Method, Path


@METHODS.register("jacobi")
@dataclass(frozen=True)
class SecondJacobi(Method[None]):
    claim = Claim.SAME_LAW
    source = "tests/plugins"

    def start(self, run):
        return None

    def step(self, run, state):
        p = run.probs(run.target.forward())
        return Acceptance(Path.root(p), run.draws.categorical(p, "resid")[0])
