"""The passes of a step of Cross-Regression: predictive stream and control stream in two passes, in one, or as printed.

Symbols: x drafted tokens, q the distribution each was drawn from, p the control stream's distributions, K drafts
tested, S slots.
Source: Abulkhanov et al., Cross-Regression, Algorithm 1 and Table 15.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.run import Run
from stridebench.methods.drafters.adapters.predictive_stream import PredictiveStream
from stridebench.methods.trees.structure import space
from stridebench.methods.verifiers.energy import EnergyRule, energies, point_mass, with_energies, without_last_node
from stridebench.methods.verifiers.rejection import residual

Redraft = Literal["none", "drafts", "placeholders"]


class Tested(NamedTuple):
    """Drafts, their distributions and the target's: R = K + 1 rows, or K where the last draft was not read."""

    x: Int[Tensor, " K"]
    q: Float[Tensor, "K V"]
    p: Float[Tensor, "R V"]


def sequential(run: Run, state: PredictiveStream, horizon: int, bonus: bool) -> Tested:
    """All slots are drafted in one pass and tested in another.

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
    return Tested(state.tokens, state.probs, run.probs(run.target.forward(draft)))


def joint(run: Run, state: PredictiveStream, horizon: int, redraft: Redraft) -> Tested:
    """One pass tests the drafts carried over and the nearest new one, whose row follows theirs; the others wait.

    Args:
        redraft: none: drafts are carried over as they are. Else all slots are drawn anew, from rows that read the old
            drafts or placeholders. The old ones are tested, and those behind a rejection are replaced by the new.
            Drafts are drawn before the test result is known, so the output distribution is unchanged.
    """
    state.cut(min(run.room, (space(run) + 1) // 2) - 1)
    carried = state.carried
    slots = min(horizon, run.room, space(run) - carried)
    x, q = state.tokens, state.probs
    z = run.target.forward(state.window(run, x, slots, blank=redraft == "placeholders"))
    if redraft != "none":
        state.cut(0)
    state.draw(run, z[1 + carried + state.carried :])
    nearest = slice(carried, carried + 1)
    x, q = torch.cat([x, state.tokens[nearest]]), torch.cat([q.to(state.probs.dtype), state.probs[nearest]])
    return Tested(x, q, run.probs(z[: carried + 1]))


def as_printed(run: Run, state: PredictiveStream, horizon: int, rule: EnergyRule) -> Acceptance:
    """Algorithm 1 to the letter.

    New drafts are tested by rows that read the slots' earlier content. The correction's q is that of another pass, not
    the one that the rejected draft was drawn from.
    """
    slots = min(horizon, run.room, (space(run) + 1) // 2)
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
