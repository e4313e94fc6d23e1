"""Which masked positions are filled next: the confidence of a model at each, and how many a schedule fills in a step.

Symbols: M masked positions, k of them filled, p their distributions, x drawn tokens.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draws import Draws
from stridebench.harness.core.sampling import Sampling, warp

Order = Literal["low_confidence", "random", "origin", "maskgit_plus", "topk_margin", "entropy"]
LLADA: tuple[Order, ...] = ("low_confidence", "random")
DREAM: tuple[Order, ...] = ("origin", "maskgit_plus", "topk_margin", "entropy")
BY_TOKEN: tuple[Order, ...] = ("low_confidence", "maskgit_plus")
"""Orders that depend on the token drawn, so that one is drawn at every masked position."""
EPSILON = 1e-3
"""The time at which Dream's schedule ends."""


def confidence(
    order: Order, logits: Float[Tensor, "M V"], x: Int[Tensor, " M"], sampling: Sampling
) -> Float[Tensor, " M"]:
    """The model's confidence at each position; larger is more confident.

    Args:
        logits: raw.
        x: the tokens drawn; read by the orders of ``BY_TOKEN`` only.
        sampling: top-k and top-p cut Dream's distributions, and T > 0 divides its logits. LLaDA's stay as they are.

    Returns:
        low_confidence, maskgit_plus: p(x). topk_margin: the largest p less the second. entropy: sum of p log p.

    Source: LLaDA, ``generate.py`` at ML-GSAI/LLaDA 41760b9; Dream, ``sample_tokens`` of its generation_utils.py.
    """
    if order == "low_confidence":
        return logits.double().softmax(-1).gather(1, x[:, None])[:, 0]
    p = warp(logits, Sampling(sampling.temperature or 1.0, sampling.top_k, sampling.top_p, sampling.order))
    if order == "topk_margin":
        top = p.topk(2).values
        return top[:, 0] - top[:, 1]
    return -torch.special.entr(p).sum(-1) if order == "entropy" else p.gather(1, x[:, None])[:, 0]


def most_confident(confidences: Float[Tensor, " M"], k: int, alg_temp: float, draws: Draws) -> Int[Tensor, " k"]:
    """The k most confident positions, ties to the first.

    With ``alg_temp`` > 0 they are drawn from softmax(confidences / alg_temp) without replacement.
    """
    if alg_temp > 0:
        return draws.distinct((confidences / alg_temp).softmax(-1)[None], k, "noise")[0]
    return confidences.sort(descending=True, stable=True).indices[:k]


def unmasked_fraction(step: int, steps: int) -> float:
    """1 - s / t, the share of the masked positions that Dream fills in a step, from step 0; all in the last.

    Source: Dream, ``_sample``: t runs evenly from 1 to 0.001 in S steps.
    """
    t, s = (1 - (1 - EPSILON) * at / steps for at in (step, step + 1))
    return 1.0 if step == steps - 1 else 1 - s / t
