"""Checks that a trained drafter was made for the current target."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from harness.core.run import Run
from harness.errors import UsageError, WeightsError


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


def check_target(made_for: MadeFor, run: Run) -> None:
    """Reject a drafter of another backbone.

    Raises:
        UsageError: the target is guided, and the drafter has one branch.
        WeightsError: it was trained for another backbone.
    """
    if run.capabilities.branches > made_for.branches:
        raise UsageError(
            f"{run.backbone} is guided and its drafter was trained without guidance: take one trained with two "
            f"branches, or a target at guidance 1"
        )
    if made_for.fingerprint != run.fingerprint:
        raise WeightsError(
            f"the drafter was trained for {made_for.backbone} ({made_for.fingerprint[:12]}), and the target is "
            f"{run.backbone} ({run.fingerprint[:12]}): train one for it with `stride train drafter`"
        )
