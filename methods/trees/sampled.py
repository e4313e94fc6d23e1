"""Trees of sampled tokens: each node has a fixed number of children, drawn from one drafter or several.

Symbols: q the drafter's distributions, K nodes, n nodes of a level, w children that a drafter draws below each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.run import Run
from stridebench.harness.core.session import Session
from stridebench.methods.trees.shapes import TreeShape, branching
from stridebench.methods.trees.structure import repeats, space, trie


class Siblings(NamedTuple):
    """Children of n nodes, in the order of their drawing, and the distribution of each given those before it."""

    tokens: Int[Tensor, "n w"]
    probs: Float[Tensor, "n w V"]


def siblings(q: Float[Tensor, "n V"], count: int, draws: Draws, replacement: bool) -> Siblings:
    """``count`` draws from each row; without replacement a row that runs out goes on with point masses, by id."""
    if replacement:
        probs = q.repeat_interleave(count, 0)
        return Siblings(draws.categorical(probs, "draft").view(-1, count), probs.view(-1, count, q.shape[1]))
    tokens = draws.distinct(q, count, "draft")
    drawn = torch.zeros_like(q)[:, None].expand(-1, count, -1).scatter(2, tokens[:, :, None], 1.0)
    left = q[:, None].where(drawn.cumsum(1) - drawn == 0, 0.0)
    mass = left.sum(2, keepdim=True)
    return Siblings(tokens, torch.where(mass > 0, left / mass, drawn))


@dataclass
class BranchingDrafter:
    """Grows a tree in as many passes of each drafter as it has levels.

    Args:
        sessions: of the drafters, on the same prompt.
        widths: w of each level.
        replacement: of a drafter's draws.
        continuations: k, which are merged where they begin alike; 0: a tree.
        shape: of the last tree, with all drafters' nodes.
    """

    sessions: list[Session]
    widths: tuple[int, ...]
    replacement: bool
    continuations: int = 0
    shape: TreeShape = field(init=False)

    def __post_init__(self) -> None:
        self._whole = branching([width * len(self.sessions) for width in self.widths]).on(self.sessions[0].device)
        self.shape = self._whole

    def propose(self, run: Run) -> Draft:
        """The tree, its levels cut to the room that is left; no child is dropped or moved for its value."""
        for session in self.sessions:
            session.sync(run.target.tokens)
        room = min(space(run), *(session.capabilities.context - len(session) for session in self.sessions))
        self.shape = self._whole.cut(run.room - 1, room)
        tokens: list[Tensor] = []
        probs: list[Tensor] = []
        parents = torch.split(self.shape.parents, list(self.shape.sizes))
        for level, width in enumerate(self.widths[: len(parents)]):
            above = Draft(tokens[-1], parents=parents[level - 1]) if level else None
            drawn = [self._drawn(run, session, above, width) for session in self.sessions]
            tokens.append(torch.cat([children.tokens for children in drawn], 1).reshape(-1))
            probs.append(torch.cat([children.probs for children in drawn], 1).flatten(0, 1))
        return self._joined(tokens, probs) if tokens else run.nothing

    def _drawn(self, run: Run, session: Session, above: Draft | None, width: int) -> Siblings:
        logits = session.forward() if above is None else session.grow(above)
        return siblings(run.probs(logits), width, run.draws, self.replacement)

    def _joined(self, tokens: Sequence[Tensor], probs: Sequence[Tensor]) -> Draft:
        ids, parents = torch.cat(list(tokens)), self.shape.parents
        if self.continuations:
            parents, first = trie(ids.view(-1, self.continuations))
            repeated = first != torch.arange(len(ids), device=first.device)
            return Draft(ids, torch.cat(list(probs)), parents, repeats=repeated)
        return Draft(ids, torch.cat(list(probs)), parents, repeats=repeats(ids, parents))
