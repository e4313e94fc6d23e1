"""The passes of a step of Cross-Regression: the predictive stream before the control stream, beside it, or as printed.

Symbols: x drafted tokens, q the law each was drawn from, p control stream's law, K drafts tested, S slots.
Source: Abulkhanov et al., Cross-Regression, Algorithm 1 and Table 15.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from harness.core.draft import Acceptance, Draft
from harness.core.run import Run
from methods.drafters.adapters.predictive_stream import PredictiveStream
from methods.trees.structure import space
from methods.verifiers.energy import EnergyRule, energies, point_mass, with_energies, without_last_node
from methods.verifiers.rejection import residual

Redraft = Literal["none", "drafts", "placeholders"]


class Tested(NamedTuple):
    """Drafts, their laws and the target's; R = K + 1 rows, or K where the last draft was not read."""

    x: Int[Tensor, " K"]
    q: Float[Tensor, "K V"]
    p: Float[Tensor, "R V"]


def sequential(run: Run, state: PredictiveStream, horizon: int, bonus: bool) -> Tested:
    """All slots are drafted in one pass and tested in another; ``bonus``: which also says what follows the last."""
    slots = min(horizon, run.room - bonus)
    state.cut(slots)
    carried = state.held
    if carried < slots:
        state.draw(run, run.target.forward(state.window(run, run.nothing.tokens, slots))[1 + carried :])
    read = slots if bonus else slots - 1
    draft = Draft(state.tokens[:read], reused=torch.arange(read, device=run.target.device) < carried)
    return Tested(state.tokens, state.probs, run.probs(run.target.forward(draft)))


def joint(run: Run, state: PredictiveStream, horizon: int, redraft: Redraft) -> Tested:
    """One pass: drafts carried over and the nearest new one, whose row follows theirs; the others wait for the next.

    Args:
        redraft: but for none, all slots are drawn anew, from rows that read the old drafts or placeholders; the old are
            tested, and those behind a refusal give way to the new. No law knew what a test would say: exact too.
    """
    state.cut(min(run.room, (space(run) + 1) // 2) - 1)
    carried = state.held
    slots = min(horizon, run.room, space(run) - carried)
    x, q = state.tokens, state.probs
    z = run.target.forward(state.window(run, x, slots, blank=redraft == "placeholders"))
    if redraft != "none":
        state.cut(0)
    state.draw(run, z[1 + carried + state.held :])
    nearest = slice(carried, carried + 1)
    x, q = torch.cat([x, state.tokens[nearest]]), torch.cat([q.to(state.probs.dtype), state.probs[nearest]])
    return Tested(x, q, run.probs(z[: carried + 1]))


def as_printed(run: Run, state: PredictiveStream, horizon: int, rule: EnergyRule) -> Acceptance:
    """Algorithm 1 to the letter: new drafts are tested by rows that read what stood there before, and the correction's
    q is that of another pass, not the one that the refused draft was drawn from."""
    slots = min(horizon, run.room, (space(run) + 1) // 2)
    state.cut(slots)
    carried = state.held
    z = run.target.forward(state.window(run, state.read(slots), slots))  # line 3
    state.draw(run, z[slots + carried :])  # line 4
    x, p = state.tokens, run.probs(z[:slots])  # line 5
    energy = energies(x, state.probs, p)
    path = run.draws.path(rule.passes(energy))  # line 6
    kept = path.stop.reshape(1)
    at = torch.arange(-1, slots - 1, device=x.device)
    again = Draft(  # the drafts, and a second reading of the last one kept
        torch.cat([x[:-1], torch.cat([run.last, x])[kept]]),
        parents=torch.cat([at[:-1], kept - 2]),
        reused=at + 1 < carried,
        probes=1,
        gate=at == slots - 2,
    )
    rows = run.probs(run.target.forward(again))  # line 10
    right = residual(rows.index_select(0, kept.clamp_max(slots - 1)), rows[-1:])
    probs = torch.where(kept < slots, right, point_mass(x[-1:], rows))
    return with_energies(without_last_node(Acceptance(path, run.draws.categorical(probs, "resid")[0])), energy)
