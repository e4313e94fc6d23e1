"""Training-time test: a feature drafter reads its own features, as it does in a tree.

Symbols: B sequences, N entries, H heads, D their width, E width.
In round i entry t reads token t + 1 + i and the output of round i - 1, and predicts row t + 1 + i. It attends to the
true pairs up to t, and to its own pairs of earlier rounds.
Source: EAGLE-3, arXiv:2503.01840, section 3.2; one round is EAGLE-1's training.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from stridebench.methods.drafters.eagle.net import FeatureNet


def unroll(
    net: FeatureNet,
    tokens: Float[Tensor, "B N E"],
    features: Float[Tensor, "B N J E"],
    visible: Bool[Tensor, "B one N N"],
    rounds: int,
) -> list[Float[Tensor, "B N E"]]:
    """The output of each round. The last i entries of round i have no meaning.

    Args:
        net: the drafter.
        tokens: embeddings of token t + 1.
        features: true rows t of the taps.
        visible: entries that each entry attends to.
        rounds: their number.
    """
    memory, outputs = _RoundKV(visible), []
    places = torch.arange(tokens.shape[1], device=tokens.device)
    for i in range(rounds):
        output = net(tokens.roll(-i, 1), features, places + i, memory)
        outputs.append(output)
        features = output[:, :, None]
    return outputs


class _RoundKV:
    """Keys and values of all rounds so far; a call is the attention of the next round."""

    def __init__(self, visible: Bool[Tensor, "B one N N"]) -> None:
        self._hidden = ~visible
        self._rounds: list[tuple[Tensor, Tensor]] = []

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor) -> Float[Tensor, "B H N D"]:
        share, count = query.shape[1] // keys.shape[1], query.shape[2]
        self._rounds.append((keys.repeat_interleave(share, 1), values.repeat_interleave(share, 1)))
        (first, true), *own = self._rounds
        scores = [(query @ first.transpose(2, 3)).masked_fill(self._hidden, float("-inf"))]
        scores += [(query * key).sum(-1, keepdim=True) for key, _ in own]
        weights = (torch.cat(scores, -1).float() * query.shape[-1] ** -0.5).softmax(-1).to(query.dtype)
        out: Tensor = weights[..., :count] @ true
        for place, (_, value) in enumerate(own):
            out = out + weights[..., count + place, None] * value
        return out
