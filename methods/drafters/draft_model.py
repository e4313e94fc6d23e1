"""Drafts of a small model, token by token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.run import Run
from stridebench.harness.core.session import Session
from stridebench.harness.errors import UsageError, WeightsError


@dataclass
class ModelDrafter:
    """Draws ``gamma`` tokens from a drafter's own distribution, warped as the target's.

    Args:
        session: of the drafter, on the same prompt.
        gamma: drafts a step, fewer near the end.
    """

    session: Session
    gamma: int

    def propose(self, run: Run) -> Draft:
        """gamma passes of the drafter; the whole distribution of each draft is kept."""
        self.session.sync(run.target.tokens)
        tokens, probs = [], []
        room = self.session.capabilities.context - len(self.session)
        for _ in range(min(self.gamma, run.room - 1, room)):
            q = run.probs(self.session.forward())
            x = run.draws.categorical(q, "draft")
            self.session.append(x)
            tokens.append(x)
            probs.append(q)
        return Draft(torch.cat(tokens), torch.cat(probs)) if tokens else run.nothing


# Checks that a trained drafter was made for the current target.


@runtime_checkable
class MadeFor(Protocol):
    """What the configuration of a drafter says of its target."""

    @property
    def backbone(self) -> str:
        """Name of the target."""

    @property
    def fingerprint(self) -> str:
        """Hash of the weights and of what else determines its distributions, guidance included."""

    @property
    def branches(self) -> int:
        """Branches of guidance: 1 or 2."""


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
