"""Simulated samplers: random distributions, and tokens drawn from them or from others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from stridebench.harness.audit.bets import Gains, gains_of, mixture, newton_path
from stridebench.harness.audit.laws import laws_of, outcomes_of
from stridebench.harness.audit.outcomes import FloatArray, IntArray, TokenOutcomes
from stridebench.harness.core.sampling import Sampling


def simulated(tokens: int, vocabulary: int, seed: int = 0, drafter: bool = False, top_p: float = 1.0) -> TokenOutcomes:
    """The outcomes of so many tokens; each has a distribution of its own, and some have a continuation to copy."""
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=(tokens, vocabulary)) * 2.5)
    noise = torch.from_numpy(rng.normal(size=(tokens, vocabulary)))
    q = (logits + noise).softmax(-1) if drafter else None
    context = rng.integers(0, 5, size=tokens + 3).tolist()
    return outcomes_of(laws_of(logits, Sampling(1.0, top_p=top_p), 1e-6), context, 3, top_p, q)


def drawn(law: FloatArray, runs: int, seed: int = 1) -> IntArray:
    """Outcomes of each token in each run, [runs, N]."""
    rng = np.random.default_rng(seed)
    upto = law.cumsum(axis=1)
    coins = rng.random((len(law), runs)) * upto[:, -1:]
    return np.stack([np.searchsorted(row, coin, side="right") for row, coin in zip(upto, coins, strict=True)], axis=1)


def log_e(outcomes: TokenOutcomes, law: FloatArray, runs: int, seed: int = 1) -> FloatArray:
    """Log e-value after each token of samplers that draw from ``law``, [runs, N]."""
    gains: Gains = gains_of(outcomes)
    places, row = drawn(law, runs, seed), np.arange(len(law))
    return mixture(gains.log[row, places].cumsum(axis=1), newton_path(gains.tilts[row, places]))


def without_drafter(outcomes: TokenOutcomes) -> TokenOutcomes:
    return replace(outcomes, q=None)
