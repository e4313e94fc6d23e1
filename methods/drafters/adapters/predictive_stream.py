"""The predictive stream of Cross-Regression: gated rows beside the text that predict the next positions.

Symbols: S slots, of which the first M hold drafts carried over; Q the distribution that each slot's draft was drawn
from; gamma horizon. Row 0 of the stream is a second reading of the last token; row j reads the content of slot j and
gives Q of slot j + 1. Slots without a draft are read as placeholders, which are drawn once a decode.
Source: Abulkhanov et al., Cross-Regression, section 4.1 and appendix E.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.run import Run


@dataclass
class PredictiveStream:
    """Drafts of one sequence, each with the whole distribution that it was drawn from, carried from step to step.

    Args:
        tokens, probs: of the slots that hold a draft, the nearest first.
        placeholders: gamma - 1 ids, fewer where the budget is smaller.
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
        """M, drafts carried over."""
        return len(self.tokens)

    def cut(self, most: int) -> None:
        """Discard all drafts but the nearest ``most``."""
        self.tokens, self.probs = self.tokens[:most], self.probs[:most]

    def read(self, slots: int) -> Int[Tensor, " n"]:
        """The content of all S slots but the last: drafts, then placeholders."""
        return torch.cat([self.tokens, self.placeholders[self.carried :]])[: slots - 1]

    def window(self, run: Run, control: Int[Tensor, " C"], slots: int, blank: bool = False) -> Draft:
        """C tokens behind the last one as the target reads them, and the S rows of the stream, as probes.

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
