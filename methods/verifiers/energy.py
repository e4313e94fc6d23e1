"""Tests of drafts by the ratio of two streams, or by its running mean: the exact rules and the printed ones.

Symbols: x drafted tokens; p the target's distributions; q the distribution each draft was drawn from;
E = log p(x) - log q(x) energy; rho its bias-corrected running mean; beta the memory of that mean; tau <= 0 threshold;
gamma horizon; k = 1, 2, ... position among the drafts.
Source: Abulkhanov et al., Cross-Regression, Algorithm 2 and section 4.3. Thresholds u_k are integrated out: each rule
gives the probability that rho passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Acceptance, Path
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.method import Mutant
from stridebench.harness.errors import UsageError
from stridebench.methods.verifiers.rejection import draft_probs, judge

Mode = Literal["std", "alg2", "det"]
Noise = Literal["logU", "uni"]
NEVER = -1e30
"""Energy of a token with p(x) = 0. It is finite, so that a weight of 0 cancels it."""


@dataclass(frozen=True)
class EnergyRule:
    """When a draft passes.

    Args:
        mode: std: rho >= log U(0, 1); with beta = 0 that is speculative sampling. alg2: Algorithm 2 as printed,
            rho >= max(tau sqrt(k / gamma), u_k). det: rho >= tau, without noise.
        beta: memory of the running mean.
        tau: threshold of alg2 and det.
        noise: distribution of u_k in alg2, whose LogUniform(tau, 0) has no values. logU: log U(e^tau, 1).
            uni: U(tau, 0).
        clip: energies above 0 count as 0, so that a good draft does not compensate a bad one.
        horizon: gamma.

    Raises:
        UsageError: beta is outside [0, 1), or tau above 0, infinite or given to a mode that has none.
    """

    mode: Mode = "std"
    beta: float = 0.0
    tau: float = 0.0
    noise: Noise = "logU"
    clip: bool = False
    horizon: int = 16

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise UsageError(f"beta is {self.beta:g}; it is the memory of a running mean, from 0 to below 1")
        if not -inf < self.tau <= 0:
            raise UsageError(
                f"tau is {self.tau:g}; it bounds energies from below: give a number up to 0 (-4 for threshold 4)"
            )
        if self.mode == "std" and self.tau:
            raise UsageError(f"tau is {self.tau:g} and mode std has no threshold; take alg2 or det, or leave tau out")

    @property
    def lossless(self) -> bool:
        """Whether it is rejection sampling."""
        return self.mode == "std" and self.beta == 0

    def passes(self, energy: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
        """Return the probability that each draft of these `energies` passes, given that it is reached."""
        rho = smoothed(energy.clamp_max(0.0) if self.clip else energy, self.beta)
        if self.mode == "std":
            return rho.clamp_max(0.0).exp()
        if self.mode == "det":
            return (rho >= self.tau).to(rho.dtype)
        position = torch.arange(1, len(energy) + 1, device=rho.device, dtype=rho.dtype)
        return self._below(rho).where(rho >= self.tau * (position / self.horizon).sqrt(), 0.0)

    def _below(self, rho: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
        """Return P(u_k <= rho). At tau = 0, u_k is 0: the strictest setting, not the lossless one."""
        if self.tau == 0:
            return (rho >= 0).to(rho.dtype)
        if self.noise == "uni":
            return (1 - rho / self.tau).clamp(0.0, 1.0)
        least = exp(self.tau)
        return ((rho.clamp_max(0.0).exp() - least) / (1 - least)).clamp_min(0.0)


def energies(x: Int[Tensor, " K"], q: Float[Tensor, "K V"], p: Float[Tensor, "R V"]) -> Float[Tensor, " K"]:
    """Return log p(x) - log q(x) of each draft.

    Args:
        p: row k is of the position of draft k. Rows behind the K-th are not read.

    Raises:
        ContractError: some q[k, x[k]] is 0, so it was not drawn from ``q`` (checked on a CPU only).
    """
    px = p[: len(x)].gather(1, x[:, None])[:, 0]
    return torch.where(px > 0, (px / draft_probs(x, q).to(p.dtype)).log(), NEVER)


def smoothed(energy: Float[Tensor, " K"], beta: float) -> Float[Tensor, " K"]:
    """Return rho_k = (1 - beta) sum_j beta^(k - j) E_j / (1 - beta^k), from k = 1 (Algorithm 2, lines 4 and 5)."""
    if beta == 0:
        return energy
    position = torch.arange(len(energy), device=energy.device)
    age = position[:, None] - position[None, :]
    weight = torch.where(age >= 0, beta ** age.clamp_min(0).to(energy.dtype), 0.0)
    return (weight / weight.sum(1, keepdim=True)) @ energy


def verify_energy(
    x: Int[Tensor, " K"], q: Float[Tensor, "K V"], p: Float[Tensor, "R V"], draws: Draws, rule: EnergyRule
) -> Acceptance:
    """Keep the drafts before the first that does not pass; then draw a correction token from (p - q)+.

    Args:
        p: R = K + 1 rows: if all drafts pass, the bonus token is drawn from the last one. R = K: no pass has read
            the last draft, which is then the last token of the step.
        draws: asked for one `path` of K probabilities and one categorical token.

    Returns:
        An acceptance with the energies of all K drafts, before clipping and smoothing.
    """
    energy = energies(x, q, p)
    if len(p) > len(x):
        return with_energies(judge(rule.passes(energy), x, q, p, draws), energy)
    acceptance = judge(rule.passes(energy), x, q, torch.cat([p, point_mass(x[-1:], p)]), draws)
    return with_energies(without_last_node(acceptance), energy)


def with_energies(acceptance: Acceptance, energy: Float[Tensor, " K"]) -> Acceptance:
    """Return the acceptance with energies for the record."""
    return Acceptance(acceptance.path, acceptance.token, passed=acceptance.passed, energies=energy)


def point_mass(x: Int[Tensor, " 1"], p: Float[Tensor, "R V"]) -> Float[Tensor, "1 V"]:
    """Return the distribution with x as its only token, so that drawing from it needs no randomness."""
    return torch.zeros_like(p[:1]).index_fill_(1, x, 1.0)


def without_last_node(acceptance: Acceptance) -> Acceptance:
    """Return the acceptance if no pass has read the last draft: it is in no path, and passed if the path is whole."""
    path, count = acceptance.path, len(acceptance.path.nodes)
    short = Path(path.nodes[: count - 1], path.stop.clamp_max(count - 1), path.expected)
    return Acceptance(short, acceptance.token, passed=path.stop == count)


# Bugs to inject, which `stride verify` must catch.

ONE_THRESHOLD_FOR_ALL = Mutant(
    f"{__name__}:EnergyRule.passes",
    "return rho.clamp_max(0.0).exp()",
    "return torch.cat([0 * rho[:1], rho.cumsum(0).clamp_max(0.0).cummin(0).values]).diff().exp()",
    "one threshold is drawn for all drafts and compared with the sum of their energies, as in the proof",
)
