"""Cross-Regression: with an adapter on, the target drafts several positions at once; without it, it verifies them.

Source: Abulkhanov et al., Cross-Regression, Algorithms 1 and 2, sections 4.1-4.3, appendix E.
Symbols: x drafted tokens, p the control stream's distributions (the target's), q the distribution each was drawn from
(the predictive stream's), gamma horizon, beta and tau of the test (`stridebench.methods.verifiers.energy`).
The paper's lossless setting is mode std with beta = 0. Algorithm 2 as printed accepts at tau = 0 only where
p(x) >= q(x), which gives another distribution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.method import Claim, Method, Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.verifiers.energy import (
    ONE_THRESHOLD_FOR_ALL,
    EnergyRule,
    Mode,
    Noise,
    energies,
    point_mass,
    verify_energy,
    with_energies,
    without_last_node,
)
from stridebench.methods.verifiers.rejection import CORRECTION_FROM_TARGET, residual

# The predictive stream of Cross-Regression: gated rows next to the text that predict the next positions.
# Symbols: S slots, of which the first M hold drafts carried over; Q the distribution that each slot's draft was
# drawn from; gamma horizon. Row 0 of the stream is a second reading of the last token; row j reads the content of
# slot j and gives Q of slot j + 1. Slots without a draft are read as placeholders, which are drawn once a decode.
# Source: Abulkhanov et al., Cross-Regression, section 4.1 and appendix E.


@dataclass
class PredictiveStream:
    """Drafts of one sequence, each with the whole distribution that it was drawn from, carried from step to step.

    Args:
        tokens, probs: of the slots that hold a draft, the nearest first.
        placeholders: gamma - 1 ids, fewer if the budget is smaller.
        top: a draft is one of the ``top`` most probable tokens; 0: any.
    """

    tokens: Int[Tensor, " M"]
    probs: Float[Tensor, "M V"]
    placeholders: Int[Tensor, " H"]
    top: int

    @classmethod
    def begin(cls, run: Run, horizon: int, top: int) -> PredictiveStream:
        """No drafts yet."""
        tokens = run.nothing.tokens
        probs = torch.zeros(0, run.capabilities.vocabulary, device=tokens.device)
        ids = run.draws.integers(min(horizon, run.room) - 1, run.capabilities.vocabulary, "init")
        return cls(tokens, probs, ids.to(tokens.device), top)

    @property
    def carried(self) -> int:
        """Return M, the number of drafts carried over."""
        return len(self.tokens)

    def cut(self, most: int) -> None:
        """Discard all drafts but the nearest ``most``."""
        self.tokens, self.probs = self.tokens[:most], self.probs[:most]

    def read(self, slots: int) -> Int[Tensor, " n"]:
        """Return the content of all S slots but the last: drafts, then placeholders."""
        return torch.cat([self.tokens, self.placeholders[self.carried :]])[: slots - 1]

    def window(self, run: Run, control: Int[Tensor, " C"], slots: int, blank: bool = False) -> Draft:
        """Return C tokens behind the last one as the target reads them, and the S rows of the stream as probes.

        Args:
            blank: the stream reads only placeholders.
        """
        tokens = torch.cat([control, run.last, self.placeholders[: slots - 1] if blank else self.read(slots)])
        index = torch.arange(len(tokens), device=tokens.device)
        root, carried = len(control), index[: len(control)] < self.carried
        reused = torch.cat([carried, torch.zeros_like(index[root:], dtype=torch.bool)])
        parents = torch.where(index == root, -2, index - 1)
        return Draft(tokens, parents=parents, reused=reused, probes=slots, gate=index >= root)

    def draw(self, run: Run, logits: Float[Tensor, "F V"]) -> None:
        """Draw a draft for each of the next F = S - M slots, from the stream's rows there."""
        probs = run.probs(logits)
        if 0 < self.top < probs.shape[1]:
            best = probs.topk(self.top)
            probs = torch.zeros_like(probs).scatter_(1, best.indices, best.values / best.values.sum(1, keepdim=True))
        self.tokens = torch.cat([self.tokens, run.draws.categorical(probs, "draft")])
        self.probs = torch.cat([self.probs.to(probs.dtype), probs])

    def advance(self, emitted: int, carry: bool) -> None:
        """Move the drafts behind the emitted tokens to the first slots, or discard them."""
        self.tokens, self.probs = self.tokens[emitted:], self.probs[emitted:]
        if not carry:
            self.cut(0)


# Bugs to inject into the predictive stream and its passes.


CARRIED_DRAFTS_RESCORED = Mutant(
    f"{__name__}:joint",
    "nearest = slice(carried, carried + 1)",
    "nearest, q = slice(carried, carried + 1), run.probs(z[1 + carried : 1 + 2 * carried])",
    "drafts carried over are judged by a distribution that they were not drawn from",
)
REJECTED_DRAFT_CARRIED_OVER = Mutant(
    f"{__name__}:PredictiveStream.advance",
    "self.tokens[emitted:], self.probs[emitted:]",
    "self.tokens[emitted - 1:], self.probs[emitted - 1:]",
    "the rejected draft is carried over",
)


Redraft = Literal["none", "drafts", "placeholders"]


class TestedDrafts(NamedTuple):
    """Drafts, their distributions and the target's: R = K + 1 rows, or K if the last draft was not read."""

    x: Int[Tensor, " K"]
    q: Float[Tensor, "K V"]
    p: Float[Tensor, "R V"]


def sequential(run: Run, state: PredictiveStream, horizon: int, bonus: bool) -> TestedDrafts:
    """Draft all slots in one pass and test them in another.

    Args:
        bonus: the second pass also reads the last draft, so that a bonus token can follow it.
    """
    slots = min(horizon, run.room - bonus)
    state.cut(slots)
    carried = state.carried
    if carried < slots:
        state.draw(run, run.target.forward(state.window(run, run.nothing.tokens, slots))[1 + carried :])
    read = slots if bonus else slots - 1
    draft = Draft(state.tokens[:read], reused=torch.arange(read, device=run.target.device) < carried)
    return TestedDrafts(state.tokens, state.probs, run.probs(run.target.forward(draft)))


def joint(run: Run, state: PredictiveStream, horizon: int, redraft: Redraft) -> TestedDrafts:
    """Test in one pass the drafts carried over and the nearest new one, whose row follows theirs; the others wait.

    Args:
        redraft: none: drafts are carried over as they are. Else all slots are drawn anew, from rows that read the old
            drafts or placeholders. The old ones are tested, and those behind a rejection are replaced by the new.
            Drafts are drawn before the test result is known, so the output distribution is unchanged.
    """
    state.cut(min(run.room, (run.space + 1) // 2) - 1)
    carried = state.carried
    slots = min(horizon, run.room, run.space - carried)
    x, q = state.tokens, state.probs
    z = run.target.forward(state.window(run, x, slots, blank=redraft == "placeholders"))
    if redraft != "none":
        state.cut(0)
    state.draw(run, z[1 + carried + state.carried :])
    nearest = slice(carried, carried + 1)
    x, q = torch.cat([x, state.tokens[nearest]]), torch.cat([q.to(state.probs.dtype), state.probs[nearest]])
    return TestedDrafts(x, q, run.probs(z[: carried + 1]))


def as_printed(run: Run, state: PredictiveStream, horizon: int, rule: EnergyRule) -> Acceptance:
    """Run Algorithm 1 to the letter.

    New drafts are tested by rows that read the slots' earlier content. The correction's q is that of another pass, not
    the one that the rejected draft was drawn from.
    """
    slots = min(horizon, run.room, (run.space + 1) // 2)
    state.cut(slots)
    carried = state.carried
    z = run.target.forward(state.window(run, state.read(slots), slots))  # line 3
    state.draw(run, z[slots + carried :])  # line 4
    x, p = state.tokens, run.probs(z[:slots])  # line 5
    energy = energies(x, state.probs, p)
    path = run.draws.path(rule.passes(energy))  # line 6
    stop = path.stop.reshape(1)
    index = torch.arange(-1, slots - 1, device=x.device)
    again = Draft(  # the drafts, and a second reading of the last accepted one
        torch.cat([x[:-1], torch.cat([run.last, x])[stop]]),
        parents=torch.cat([index[:-1], stop - 2]),
        reused=index + 1 < carried,
        probes=1,
        gate=index == slots - 2,
    )
    rows = run.probs(run.target.forward(again))  # line 10
    correction = residual(rows.index_select(0, stop.clamp_max(slots - 1)), rows[-1:])
    probs = torch.where(stop < slots, correction, point_mass(x[-1:], rows))
    return with_energies(without_last_node(Acceptance(path, run.draws.categorical(probs, "resid")[0])), energy)


Layout = Literal["sequential", "joint", "alg1_as_printed"]


@METHODS.register("cross_regression")
@dataclass(frozen=True)
class CrossRegression(Method[PredictiveStream]):
    """Draft with gated rows, keep the drafts whose energy passes, and carry over those behind a rejection.

    Args:
        adapter: a recipe's name, or a folder; see ``stride train adapter``.
        horizon: gamma, drafts at most.
        layout: sequential: a pass of the predictive stream, then one of the control stream. joint: both in one pass;
            of the new drafts only the nearest is tested in this step. alg1_as_printed: Algorithm 1 to the letter,
            which tests new drafts by rows that never read them, and corrects by a distribution that no draft was drawn
            from.
        mode, beta, tau, noise, clip: see `EnergyRule`.
        carry: keep drafts behind a rejection.
        redraft: joint draws all slots anew in each step, from rows that read the drafts so far, or placeholders; the
            paper does not.
        bonus: sequential draws a bonus token if all drafts pass; the paper does not.
        draft_top: a draft is one of the ``draft_top`` most probable tokens; 0: any.
    """

    adapter: str = "cross-regression"
    horizon: int = 16
    layout: Layout = "joint"
    mode: Mode = "std"
    beta: float = 0.0
    tau: float = 0.0
    noise: Noise = "logU"
    clip: bool = False
    carry: bool = True
    redraft: Redraft = "none"
    bonus: bool = True
    draft_top: int = 0

    source = "Cross-Regression, Algorithms 1 and 2"
    loads: ClassVar[Mapping[str, str]] = {"adapter": "adapter"}
    exact_at = "mode std with beta = 0, layouts sequential and joint; any mode of these at T = 0"
    requirements = frozenset({Requirement.TREE_MASK, Requirement.GATE})
    pinned = frozenset({"init"})
    mutants = (
        CORRECTION_FROM_TARGET,
        CARRIED_DRAFTS_RESCORED,
        REJECTED_DRAFT_CARRIED_OVER,
        ONE_THRESHOLD_FOR_ALL,
    )

    def __post_init__(self) -> None:
        if self.horizon < 1 or self.draft_top < 0:
            raise UsageError(
                f"cross_regression: horizon is {self.horizon} and draft_top {self.draft_top}; give 1 and 0 or more"
            )
        if self.layout == "joint" and not self.carry:
            raise UsageError(
                "cross_regression: joint tests drafts of an earlier step; take layout=sequential with carry=false"
            )
        if self.redraft != "none" and self.layout != "joint":
            raise UsageError(f"cross_regression: redraft={self.redraft} is of layout=joint; layout is {self.layout}")
        self.rule.lossless  # noqa: B018  # its parameters are checked when it is made

    @property
    def rule(self) -> EnergyRule:
        """Return the rule that a draft passes."""
        return EnergyRule(self.mode, self.beta, self.tau, self.noise, self.clip, self.horizon)

    @property
    def claim(self) -> Claim:
        return Claim.SAME_LAW if self.rule.lossless and self.layout != "alg1_as_printed" else Claim.APPROXIMATE

    def start(self, run: Run) -> PredictiveStream:
        if self.horizon >= run.capabilities.context:
            raise UsageError(
                f"cross_regression: horizon is {self.horizon} and the context of {run.backbone} "
                f"{run.capabilities.context}; take a shorter one"
            )
        run.adapt(self.adapter)
        return PredictiveStream.begin(run, self.horizon, self.draft_top)

    def step(self, run: Run, state: PredictiveStream) -> Acceptance:
        if self.layout == "alg1_as_printed":
            acceptance = as_printed(run, state, self.horizon, self.rule)
        else:
            if self.layout == "joint":
                tested = joint(run, state, self.horizon, self.redraft)
            else:
                tested = sequential(run, state, self.horizon, self.bonus)
            acceptance = verify_energy(*tested, run.draws, self.rule)
        state.advance(len(acceptance.read().path) + 1, self.carry)
        return acceptance

    @classmethod
    def variants(cls) -> Sequence[CrossRegression]:
        lossy = cls(horizon=2, layout="sequential")
        return (
            cls(horizon=2),
            cls(horizon=2, redraft="drafts"),
            cls(horizon=2, redraft="placeholders"),
            cls(horizon=2, layout="sequential"),
            cls(horizon=2, layout="sequential", carry=False, bonus=False),
            replace(lossy, beta=0.5),
            replace(lossy, mode="alg2"),
            replace(lossy, mode="alg2", tau=-1.0),
            replace(lossy, mode="alg2", tau=-4.0, noise="uni"),
            replace(lossy, mode="det", tau=-1.0, clip=True),
            cls(horizon=2, layout="alg1_as_printed", mode="alg2", tau=-4.0),
        )
