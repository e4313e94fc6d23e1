"""A method from another package that imports the contract alone: one token a pass."""

from dataclasses import dataclass

from stridebench.harness.core import METHODS, Acceptance, Claim, Method, Path


@METHODS.register("one_by_one")
@dataclass(frozen=True)
class OneByOne(Method[None]):
    claim = Claim.SAME_LAW
    source = "tests/plugins"

    def start(self, run):
        return None

    def step(self, run, state):
        p = run.probs(run.target.forward())
        return Acceptance(Path.root(p), run.draws.categorical(p, "resid")[0])
