"""Diffusion of uniform noise with an entropy bound: DiffusionGemma's sampler.

Source: DiffusionGemma (google/diffusiongemma-26B-A4B, June 2026), as ``generation_diffusion_gemma.py`` of transformers
has its sampler; the bound: Ben-Hamu et al. 2025, arXiv:2505.24857; reading the last logits (self-conditioning): Chen et
al. 2022, arXiv:2208.04202.
Symbols: B positions of a canvas, S steps of it, n the step from S down to 1, V ids, H_i entropy of position i, in nats.
A canvas begins as random ids. Each pass reads all of it and judges every position anew. Those of least entropy keep the
token that they draw, and all others become random again. Nothing is final before the last pass, whose most probable
tokens are the output: so noise is its only source of randomness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Fill
from stridebench.harness.core.method import Claim, Method, Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.blocks import sums_before


def below_bound(entropies: Float[Tensor, " B"], bound: float) -> Bool[Tensor, " B"]:
    """Mark the positions before which the smaller entropies sum to no more than ``bound``; the first one always.

    Source: Ben-Hamu et al. 2025, arXiv:2505.24857, eq. 9, without its last term.
    """
    ranked = entropies.sort(stable=True)
    smaller = sums_before(ranked.values)
    return torch.empty_like(entropies, dtype=torch.bool).scatter_(0, ranked.indices, smaller <= bound)


KEPT_OVER_THE_BOUND = Mutant(
    f"{__name__}:below_bound",
    "smaller <= bound)",
    "smaller + ranked.values <= bound)",
    "the bound holds the entropy of the position itself, so that none may be kept",
)
NOISE_EMITTED = Mutant(
    f"{__name__}:UniformDiffusion.step",
    "best = given.argmax(1)",
    "best = x",
    "the canvas that the last pass read is emitted, and not its most probable tokens",
)
LOGITS_FORGOTTEN = Mutant(
    f"{__name__}:UniformDiffusion.step",
    '"all", size, given)',
    '"all", size)',
    "a pass does not read the logits of the one before, as after a row of a batch was replaced",
)
REFUSED_KEPT = Mutant(
    f"{__name__}:UniformDiffusion.step",
    'x[~kept] = run.draws.integers(size - count, vocabulary, "noise")',
    "pass",
    "positions over the bound keep the token that they drew instead of a fresh one",
)
COOLED_BACKWARDS = Mutant(
    f"{__name__}:UniformDiffusion.step",
    "n / self.steps)",
    "(self.steps + 1 - n) / self.steps)",
    "the temperature rises from step to step",
)


@METHODS.register("uniform_diffusion")
@dataclass(frozen=True)
class UniformDiffusion(Method[None]):
    """Restore a canvas of random ids in at most S passes; positions of least entropy keep their tokens for the next.

    A canvas is a block of the model, which reads all earlier text once before it: that pass counts too.

    Args:
        steps: S.
        bound: of the sum of entropies of the positions before the last one that keeps its token.
        hot, cold: logits of step n are divided by cold + (hot - cold) n / S, before the temperature of the cell, which
            is 1 as published.
        stable: passes in a row whose most probable tokens must equal those of the pass before, to stop early.
        sure: mean entropy below which such a canvas stops.
    """

    steps: int = 48
    bound: float = 0.1
    hot: float = 0.8
    cold: float = 0.4
    stable: int = 1
    sure: float = 0.005

    claim = Claim.APPROXIMATE
    requirements = frozenset({Requirement.BIDIRECTIONAL, Requirement.LAST_LOGITS})
    source = "DiffusionGemma; arXiv:2505.24857"
    mutants = (KEPT_OVER_THE_BOUND, NOISE_EMITTED, LOGITS_FORGOTTEN, REFUSED_KEPT, COOLED_BACKWARDS)

    def __post_init__(self) -> None:
        if min(self.steps, self.stable) < 1 or min(self.bound, self.sure) < 0 or min(self.hot, self.cold) <= 0:
            raise UsageError(
                f"uniform_diffusion: steps {self.steps} and stable {self.stable} are 1 or more, hot {self.hot:g} and "
                f"cold {self.cold:g} above 0, bound {self.bound:g} and sure {self.sure:g} 0 or more"
            )

    def start(self, run: Run) -> None:
        run.canvas.read_full_blocks()

    def step(self, run: Run, state: None) -> Fill:
        run.canvas.read_full_blocks()
        canvas, block = run.canvas, run.canvas.open_block
        prompt = [canvas.tokens[i] for i in block if i in canvas.tokens]  # its last tokens may stand in the first block
        size, vocabulary = len(block) - len(prompt), run.capabilities.vocabulary
        x = run.draws.integers(size, vocabulary, "init")
        before = torch.tensor(prompt, dtype=torch.long, device=canvas.device)
        given: Float[Tensor, "B V"] | None = None
        best, alike = torch.full_like(x, -1), 0
        for n in range(self.steps, 0, -1):
            logits = canvas.read(torch.cat([before, x]), block, "all", size, given)
            given = logits / (self.cold + (self.hot - self.cold) * n / self.steps)
            entropies = torch.special.entr(given.double().softmax(1)).sum(1)
            kept, last = below_bound(entropies, self.bound), best
            best = given.argmax(1)
            same, sure, count = self._read_device(best == last, entropies, kept)
            alike = alike + 1 if same else 0
            if n == 1 or (alike >= self.stable and sure):
                break
            x = run.draws.categorical(run.probs(given), "draft")
            x[~kept] = run.draws.integers(size - count, vocabulary, "noise")
        return Fill(torch.arange(block.stop - size, block.stop, device=canvas.device), best)

    def _read_device(
        self, same: Bool[Tensor, " B"], entropies: Float[Tensor, " B"], kept: Bool[Tensor, " B"]
    ) -> Sequence[int]:
        """Return whether all are the same, whether the canvas is sure, and how many are kept: one device read."""
        seen: list[int] = torch.stack([same.all(), entropies.mean() < self.sure, kept.sum()]).tolist()
        return seen

    @classmethod
    def variants(cls) -> Sequence[UniformDiffusion]:
        return (
            cls(steps=1),
            cls(steps=2),
            cls(steps=2, bound=0.0),
            cls(steps=2, bound=9.0),
            cls(steps=3, bound=0.5, sure=9.0),
            cls(steps=2, hot=0.4, cold=0.8),
        )
