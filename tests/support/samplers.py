"""Simulated samplers: random distributions, and tokens drawn from them or from others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from stridebench.harness.audit.bets import Bets, Gains, bet, gains_of, mixture, newton_path
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


def bets_on(outcomes: TokenOutcomes, law: FloatArray, seed: int = 1) -> Bets:
    """Return the bets on one token of each distribution of ``law``."""
    row, places = np.arange(len(outcomes)), drawn(law, 1, seed)[0]
    return bet(outcomes, outcomes.ids[row, places], np.zeros(len(outcomes), dtype=np.int64), outcomes.p[row, places])


def log_e(outcomes: TokenOutcomes, law: FloatArray, runs: int, seed: int = 1) -> FloatArray:
    """Log e-value after each token of samplers that draw from ``law``, [runs, N]."""
    gains: Gains = gains_of(outcomes)
    places, row = drawn(law, runs, seed), np.arange(len(law))
    return mixture(gains.log[row, places].cumsum(axis=1), newton_path(gains.tilts[row, places]))


def without_drafter(outcomes: TokenOutcomes) -> TokenOutcomes:
    return replace(outcomes, q=None)


class Decode(NamedTuple):
    """An output of a simulated speculative decode, as the place of each token among its outcomes.

    Args:
        emitted: tokens of each step.
    """

    places: IntArray
    emitted: list[int]


def decoded_in_steps(
    outcomes: TokenOutcomes, seed: int, gamma: int = 4, biased: Callable[[int, int], FloatArray | None] | None = None
) -> Decode:
    """Simulate speculative decoding.

    Args:
        gamma: drafts a step.
        biased: returns another distribution to draw from, or None, for a token and its offset in a step; the offset is
            negative behind a step, by the number of drafts that the step accepted, less one.
    """
    assert outcomes.q is not None
    rng, places, emitted, accepted = np.random.default_rng(seed), [], [], 0
    for row, (p, q) in enumerate(zip(outcomes.p, outcomes.q, strict=True)):
        law = None if biased is None else biased(row, accepted if accepted else -1 - (emitted or [1])[-1])
        x = int(rng.choice(len(p), p=q / q.sum()))
        if accepted < gamma and rng.random() * q[x] < p[x]:
            accepted += 1
        else:
            above = p if accepted == gamma else np.maximum(p - q, 0)
            x = int(rng.choice(len(p), p=above / above.sum()))
            emitted.append(accepted + 1)
            accepted = 0
        places.append(x if law is None else int(rng.choice(len(p), p=law / law.sum())))
    return Decode(np.array(places), [*emitted, accepted] if accepted else emitted)
