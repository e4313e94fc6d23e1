"""Windows of a passage: what they read, what is right in them, and what each slot weighs.

Source: Abulkhanov et al., Cross-Regression, Algorithm 3 and appendix D.1.
Symbols: n windows of W tokens x; s_t the number of consecutive right guesses after token t.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stridebench.harness.train.teacher import Passage


def roots(passage: Passage, width: int, hop: int = 0) -> Int[Tensor, " n"]:
    """Positions of the windows' roots: the token before a window's first one, which the window reads again."""
    first, end = passage.start - 1, len(passage.tokens)
    return torch.arange(first, max(first, end - 1 if hop else end - width), hop or width)


def targets(passage: Passage, width: int, hop: int = 0) -> Int[Tensor, "n W"]:
    """The tokens of each window; past the end of the passage its last token is repeated."""
    return torch.tensor(passage.tokens)[_places(passage, width, hop).clamp_max(len(passage.tokens) - 1)]


def inside(passage: Passage, width: int, hop: int = 0) -> Bool[Tensor, "n W"]:
    """Which slots lie before the passage's end."""
    return _places(passage, width, hop) < len(passage.tokens)


def _places(passage: Passage, width: int, hop: int) -> Int[Tensor, "n W"]:
    return roots(passage, width, hop)[:, None] + torch.arange(1, width + 1)


def inputs(text: Int[Tensor, " N"], at: Int[Tensor, " n"], slots: Int[Tensor, "n W"]) -> Int[Tensor, "n W"]:
    """What the rows of each window read: the token at the root, then all slots except the last."""
    return torch.cat([text[at][:, None], slots[:, :-1]], 1)


def noised(
    slots: Int[Tensor, "n W"], vocabulary: int, random: np.random.Generator, least: float = 0.0
) -> Int[Tensor, "n W"]:
    """Replace ids by uniformly drawn ones. The paper does not name its noise.

    Args:
        slots: ids of the windows.
        vocabulary: number of ids.
        random: where draws come from.
        least: each window has a probability of replacement, drawn uniformly from here to 1. At 1 all ids are random,
            like placeholders.
    """
    share = least + (1 - least) * random.random((len(slots), 1))
    other = torch.from_numpy(random.integers(vocabulary, size=tuple(slots.shape)))
    return torch.where(torch.from_numpy(random.random(tuple(slots.shape)) < share), other, slots)


def weights(right: Bool[Tensor, "n W"]) -> Float[Tensor, "n W"]:
    """s_t + 1, where s_W = 0 and s_t = (s_{t+1} + 1) 1[guess t + 1 is right] (Algorithm 3, line 6)."""
    follow = torch.zeros(right.shape, device=right.device)
    for t in range(right.shape[1] - 2, -1, -1):
        follow[:, t] = (follow[:, t + 1] + 1) * right[:, t + 1]
    return follow + 1
