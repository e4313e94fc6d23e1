"""Drafts of a small model, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.method import Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.core.session import Session
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.methods.drafters.tree_shapes import TreeShape, branching
from stridebench.methods.verifiers.tree import repeats, trie


@dataclass
class ModelDrafter:
    """Draws ``gamma`` tokens from a drafter's distribution, warped as the target's.

    Args:
        session: of the drafter, on the same prompt.
        gamma: drafts a step, fewer near the end.
        coupled: draw by the clocks of each position, as a target does that is verified by them.
    """

    session: Session
    gamma: int
    coupled: bool = False

    def propose(self, run: Run) -> Draft:
        """Draft in gamma passes of the drafter; the whole distribution of each draft is kept."""
        self.session.sync(run.target.tokens)
        tokens, probs = [], []
        room = self.session.capabilities.context - len(self.session)
        for _ in range(min(self.gamma, run.room - 1, room)):
            q = run.probs(self.session.forward())
            x = run.draws.race(q, [len(self.session)]) if self.coupled else run.draws.categorical(q, "draft")
            self.session.append(x)
            tokens.append(x)
            probs.append(q)
        return Draft(torch.cat(tokens), torch.cat(probs)) if tokens else run.nothing


@runtime_checkable
class MadeFor(Protocol):
    """The target of a drafter, by its configuration."""

    @property
    def backbone(self) -> str:
        """Return the name of the target."""

    @property
    def fingerprint(self) -> str:
        """Return the hash of its weights and of the settings of its distributions, guidance included."""

    @property
    def branches(self) -> int:
        """Return the number of branches of guidance: 1 or 2."""


def check_shapes(folder: Path, run: Run, width: int, vocabulary: int) -> None:
    """Reject a published drafter whose sizes are not the target's.

    Args:
        width: of the rows that it reads.
        vocabulary: ids that it knows; 0: any.

    Raises:
        WeightsError: says which size is another.
    """
    own = run.capabilities
    if width != own.width:
        raise WeightsError(
            f"the drafter in {folder} reads rows of width {width}, and those of {run.backbone} have {own.width}: take "
            f"the drafter that was published for it"
        )
    if vocabulary not in (0, own.vocabulary):
        raise WeightsError(
            f"the drafter in {folder} has a vocabulary of {vocabulary} ids, and {run.backbone} of {own.vocabulary}: "
            f"take the drafter that was published for it"
        )


def check_target(made_for: MadeFor, run: Run) -> None:
    """Reject a drafter of another backbone; a published one names none, and its shapes are held against the target's.

    Raises:
        UsageError: the target is guided, and the drafter has one branch.
        WeightsError: it was trained for another backbone.
    """
    if run.capabilities.branches > made_for.branches:
        raise UsageError(
            f"{run.backbone} is guided and its drafter was trained without guidance: take one trained with two "
            f"branches, or a target at guidance 1"
        )
    if made_for.fingerprint and made_for.fingerprint != run.fingerprint:
        raise WeightsError(
            f"the drafter was trained for {made_for.backbone} ({made_for.fingerprint[:12]}), and the target is "
            f"{run.backbone} ({run.fingerprint[:12]}): train one for it with `stride train drafter`"
        )


# Bugs to inject, which `stride verify` must catch.

OTHER_PROBS_RECORDED = Mutant(
    f"{__name__}:ModelDrafter.propose",
    "probs.append(q)",
    "probs.append((q + 0.1) / (q + 0.1).sum())",
    "the recorded distribution is not the one that was sampled",
)


class Siblings(NamedTuple):
    """Children of n nodes, in the order of their drawing, and the distribution of each given those before it."""

    tokens: Int[Tensor, "n w"]
    probs: Float[Tensor, "n w V"]


def siblings(q: Float[Tensor, "n V"], count: int, draws: Draws, replacement: bool) -> Siblings:
    """Draw ``count`` tokens from each row; without replacement a row that runs out goes on with point masses, by id."""
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
        continuations: k, which are merged as far as they begin alike; 0 for a tree.
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
        """Return the tree, its levels cut to the room that is left; no child is dropped or moved for its value."""
        for session in self.sessions:
            session.sync(run.target.tokens)
        room = min(run.space, *(session.capabilities.context - len(session) for session in self.sessions))
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


EARLIER_SIBLINGS_NOT_REMOVED = Mutant(
    f"{__name__}:siblings",
    "left = q[:, None].where(drawn.cumsum(1) - drawn == 0, 0.0)",
    "left = q[:, None].expand_as(drawn)",
    "siblings without replacement are recorded with the whole distribution",
)
MOST_PROBABLE_SIBLINGS = Mutant(
    f"{__name__}:siblings",
    'draws.distinct(q, count, "draft")',
    "q.topk(count).indices",
    "the ratio test on the k best tokens, which nobody drew",
)
SIBLINGS_SORTED_BY_CONFIDENCE = Mutant(
    f"{__name__}:siblings",
    'draws.distinct(q, count, "draft")',
    '(lambda t: t.gather(1, q.gather(1, t).argsort(1, descending=True)))(draws.distinct(q, count, "draft"))',
    "sampled siblings are put in the order of their confidence",
)
