"""Muon (Jordan 2024): momentum whose matrices are made orthogonal, as `torch.optim.Muon`, in the type of `precision`.

torch's own iterates in bf16. Here matrices of equal shape are iterated together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from stridebench.harness.train.precision import PRODUCTS

QUINTIC = (3.4445, -4.7750, 2.0315)
STEPS = 5
MOMENTUM = 0.95


class Muon(torch.optim.Optimizer):
    """For matrices only. States and learning rates are those of `torch.optim.Muon` by its defaults, without decay."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # of a closure's loss
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    shapes[weight.shape].append(weight)
            for shape, weights in shapes.items():
                rate = group["lr"] * max(1, shape[0] / shape[1]) ** 0.5
                for weight, update in zip(weights, orthogonal(self._momentum(weights)), strict=True):
                    weight.add_(update.to(weight.dtype), alpha=-rate)

    def _momentum(self, weights: list[Tensor]) -> Float[Tensor, "K R C"]:
        """Nesterov's momentum of matrices of one shape."""
        updates = []
        for weight in weights:
            assert weight.grad is not None
            state = self.state[weight]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(weight)
            buffer = state["momentum_buffer"].lerp_(weight.grad, 1 - MOMENTUM)
            updates.append(weight.grad.lerp(buffer, MOMENTUM))
        return torch.stack(updates)


def orthogonal(matrices: Float[Tensor, "K R C"]) -> Float[Tensor, "K R C"]:
    """The quintic Newton-Schulz iteration: singular values come near 1 (0.7 to 1.2)."""
    a, b, c = QUINTIC
    x = matrices.to(PRODUCTS)
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
