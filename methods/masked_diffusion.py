"""Masked diffusion decoding: LLaDA's and Dream's.

Source: Nie et al. 2025, arXiv:2502.09992, with ``generate.py`` of ML-GSAI/LLaDA at 41760b9; Ye et al. 2025,
arXiv:2508.15487, with Dream's generation_utils.py.
Symbols: L positions of the canvas, S steps, b positions of a block, M masked positions that a step may fill, k filled.
All positions begin masked. Each pass reads the whole canvas, prompt included, and fills k of the masked positions. Each
is filled from its own distribution: given the rest of the canvas, but not given each other. Filled positions stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Fill
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import ContractError, UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.unmasking import (
    BY_TOKEN,
    DREAM,
    LLADA,
    Order,
    confidence,
    most_confident,
    unmasked_fraction,
)


@dataclass
class CanvasProgress:
    """How far the canvas is; ``done``: passes so far."""

    done: int = 0


@METHODS.register("masked_diffusion")
@dataclass(frozen=True)
class MaskedDiffusion(Method[CanvasProgress]):
    """Fill a masked canvas in S passes, the positions of highest confidence first.

    Args:
        order: which positions. LLaDA's fill L / S a step: ``low_confidence``, the tokens of largest probability;
            ``random``. Dream's fill 1 - s/t of those masked: ``origin``, each with that probability;
            ``maskgit_plus``, ``topk_margin``, ``entropy``, the most confident by probability, margin or entropy.
        steps: S; 0: one token a step, the reference. A step of Dream's schedule may fill nothing: that pass counts.
        block: b; blocks are filled from left to right (LLaDA); 0: the whole canvas is one block.
        alg_temp: temperature of Dream's choice of positions; 0: the most confident.
    """

    order: Order = "low_confidence"
    steps: int = 0
    block: int = 0
    alg_temp: float = 0.0

    claim = Claim.APPROXIMATE
    requirements = frozenset({Requirement.BIDIRECTIONAL})
    source = "arXiv:2502.09992; arXiv:2508.15487"
    exact_at = "steps = 0: one token a step, which is its reference"

    def __post_init__(self) -> None:
        if min(self.steps, self.block, self.alg_temp) < 0:
            raise UsageError("masked_diffusion: steps, block and alg_temp are 0 or more")
        if self.block and self.order in DREAM:
            raise UsageError(f"masked_diffusion: blocks are LLaDA's; order {self.order} fills the whole canvas")
        if self.alg_temp and self.order not in DREAM[1:]:
            raise UsageError(f"masked_diffusion: alg_temp is for {', '.join(DREAM[1:])}; order is {self.order}")

    @property
    def reference(self) -> MaskedDiffusion:
        return replace(self, steps=0)

    def start(self, run: Run) -> CanvasProgress:
        length, steps = run.canvas.end - run.canvas.start, self.steps or 1
        block = self.block or length
        if length % block:
            raise UsageError(f"masked_diffusion: blocks of {block} do not divide the canvas of {length} positions")
        if self.order in LLADA and (length % steps or (self.steps and steps % (length // block))):
            raise UsageError(
                f"masked_diffusion: {steps} steps do not divide the canvas of {length} positions in {length // block} "
                f"block(s): give a multiple of the blocks that divides {length}"
            )
        return CanvasProgress()

    def step(self, run: Run, state: CanvasProgress) -> Fill:
        canvas, positions = run.canvas, self._masked(run)
        while True:
            count = self._count(len(positions), state.done, canvas.end - canvas.start)
            logits = self._read(run, positions)
            state.done += 1
            chosen = self._chosen(run, logits, count)
            if len(chosen.tokens):
                return replace(chosen, positions=torch.tensor(positions, device=canvas.device)[chosen.positions])

    def _masked(self, run: Run) -> list[int]:
        """Positions of the first block that has masked ones."""
        canvas = run.canvas
        masked = [i for i in range(canvas.start, canvas.end) if i not in canvas.tokens]
        block = self.block or canvas.end - canvas.start
        end = canvas.start + ((masked[0] - canvas.start) // block + 1) * block
        return [i for i in masked if i < end]

    def _read(self, run: Run, positions: Sequence[int]) -> Float[Tensor, "M V"]:
        """Logits of these positions, from a pass over the whole canvas."""
        canvas, mask = run.canvas, run.capabilities.mask
        if mask is None:
            raise ContractError("masked_diffusion needs a masked model, and this backbone offers no mask id")
        ids = torch.tensor([canvas.tokens.get(i, mask) for i in range(canvas.end)], device=canvas.device)
        rows = canvas.read(ids, range(canvas.end), "all", rows=canvas.end - positions[0])
        return rows[[i - positions[0] for i in positions]]

    def _count(self, masked: int, done: int, length: int) -> float:
        """How many to fill; for ``origin``, the mean."""
        if not self.steps:
            return 1.0
        if self.order in LLADA:
            return float(length // self.steps)
        part = unmasked_fraction(done, self.steps)
        return part * masked if self.order == "origin" else float(int(part * masked))

    def _chosen(self, run: Run, logits: Float[Tensor, "M V"], count: float) -> Fill:
        """Indices among the masked positions, and their tokens."""
        p = run.probs(logits)
        if count and self.order in BY_TOKEN:
            x = run.draws.categorical(p, "draft")
            index = most_confident(
                confidence(self.order, logits, x, run.sampling), int(count), self.alg_temp, run.draws
            )
            return Fill(index, x[index])
        index = self._positions(run, logits, count)
        return Fill(index, run.draws.categorical(p[index], "draft"))

    def _positions(self, run: Run, logits: Float[Tensor, "M V"], count: float) -> Int[Tensor, " k"]:
        """Indices of positions that do not depend on the tokens drawn there."""
        size = len(logits)
        if self.order == "random" or (self.order == "origin" and not self.steps):
            return run.draws.distinct(logits.new_full((1, size), 1 / size), int(count), "noise")[0]
        if self.order == "origin":
            accept_probs = logits.new_tensor([1 - count / size, count / size]).clamp(0, 1)
            return run.draws.categorical(accept_probs.expand(size, 2), "accept").nonzero()[:, 0]
        x = torch.zeros(size, dtype=torch.long, device=logits.device)
        return most_confident(confidence(self.order, logits, x, run.sampling), int(count), self.alg_temp, run.draws)

    @classmethod
    def variants(cls) -> Sequence[MaskedDiffusion]:
        return (
            cls(steps=2),
            cls("random", steps=2),
            cls("random", steps=2, block=2),
            *(cls(order, steps=2) for order in DREAM),
            cls("entropy", steps=2, alg_temp=1.0),
        )
