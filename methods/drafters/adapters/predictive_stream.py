"""The predictive stream of Cross-Regression: gated rows beside the text that say what comes at the next places.

Symbols: S slots, of which the first M hold drafts carried over; Q the law that each slot's draft was drawn from, gamma
horizon. Row 0 of the stream is a second reading of the last token, row j reads what stands in slot j; row j gives Q of
slot j + 1. Slots without a draft are read as placeholders, which are drawn once a decode.
Source: Abulkhanov et al., Cross-Regression, section 4.1 and appendix E.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from harness.core.draft import Draft
from harness.core.run import Run


@dataclass
class PredictiveStream:
    """Drafts of one sequence, each with the whole law that it was drawn from, carried from step to step.

    Args:
        tokens, law: of the slots that hold a draft, the nearest first.
        placeholders: gamma - 1 ids, fewer where the budget is. top: a draft is one of so many likeliest tokens; 0: any.
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
    def held(self) -> int:
        """M."""
        return len(self.tokens)

    def cut(self, most: int) -> None:
        """Let go of all drafts but the nearest ``most``."""
        self.tokens, self.probs = self.tokens[:most], self.probs[:most]

    def read(self, slots: int) -> Int[Tensor, " n"]:
        """What stands in all S slots but the last: drafts, then placeholders."""
        return torch.cat([self.tokens, self.placeholders[self.held :]])[: slots - 1]

    def window(self, run: Run, control: Int[Tensor, " C"], slots: int, blank: bool = False) -> Draft:
        """C tokens behind the last one as the target reads them, and the S rows of the stream beside it, as probes.

        Args:
            blank: those read placeholders alone.
        """
        tokens = torch.cat([control, run.last, self.placeholders[: slots - 1] if blank else self.read(slots)])
        at = torch.arange(len(tokens), device=tokens.device)
        root, carried = len(control), at[: len(control)] < self.held
        reused = torch.cat([carried, torch.zeros_like(at[root:], dtype=torch.bool)])
        return Draft(tokens, parents=torch.where(at == root, -2, at - 1), reused=reused, probes=slots, gate=at >= root)

    def draw(self, run: Run, logits: Float[Tensor, "F V"]) -> None:
        """A draft for each of the next F = S - M slots, from the stream's rows there."""
        probs = run.probs(logits)
        if 0 < self.top < probs.shape[1]:
            best = probs.topk(self.top)
            probs = torch.zeros_like(probs).scatter_(1, best.indices, best.values / best.values.sum(1, keepdim=True))
        self.tokens = torch.cat([self.tokens, run.draws.categorical(probs, "draft")])
        self.probs = torch.cat([self.probs.to(probs.dtype), probs])

    def advance(self, emitted: int, carry: bool) -> None:
        """The drafts behind the tokens that were emitted become the first ones, or are let go."""
        self.tokens, self.probs = self.tokens[emitted:], self.probs[emitted:]
        if not carry:
            self.cut(0)
