"""Drafts of a small model, token by token."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.run import Run
from stridebench.harness.core.session import Session


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
