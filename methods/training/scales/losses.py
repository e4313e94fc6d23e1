"""The terms of eq. 9 of MuLo-SD that need their own net: LPIPS and a discriminator."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.errors import UsageError
from stridebench.methods.drafters.scales.codes import nearest_code, vectors


class Resampled(NamedTuple):
    """What a sampler produced (vectors and the decoded picture), and the target (ids and pixels)."""

    vectors: Float[Tensor, "B C h w"]
    ids: Int[Tensor, "B h w"]
    painted: Float[Tensor, "B 3 H W"]
    pixels: Float[Tensor, "B 3 H W"]


class Weights(NamedTuple):
    """Weights of eq. 9's terms; the squared error of vectors has weight 1."""

    pixel: float
    commit: float
    lpips: float
    gan: float


def equation_9(
    weights: Weights,
    book: Float[Tensor, "V C"],
    resampled: Resampled,
    lpips: Callable[[Tensor, Tensor], Tensor] | None,
    critic: nn.Module | None,
) -> Tensor:
    """Squared error + LPIPS + commitment + GAN, and the loss of the discriminator.

    Args:
        weights: of the terms.
        book: the vectors of the codes.
        resampled: what a sampler produced.
        lpips: None: without that term. Bands of a picture are left out: its net cannot read a few rows.
        critic: None: without that term.
    """
    chosen = vectors(book, nearest_code(book, resampled.vectors.detach()))
    off = resampled.vectors - vectors(book, resampled.ids)
    total = off.square().sum(1).mean() + weights.commit * (resampled.vectors - chosen).square().sum(1).mean()
    total = total + weights.pixel * (resampled.painted - resampled.pixels).square().mean()
    if lpips is not None and resampled.pixels.shape[2] == resampled.pixels.shape[3]:
        total = total + weights.lpips * lpips(resampled.painted, resampled.pixels).mean()
    return total if critic is None else total + adversarial(critic, resampled, weights.gan)


def adversarial(critic: nn.Module, resampled: Resampled, weight: float) -> Tensor:
    """Hinge losses of both players. Each player's loss has no gradient for the other one's weights."""
    frozen = {key: value.detach() for key, value in critic.named_parameters()}
    sampler: Tensor = -torch.func.functional_call(critic, frozen, resampled.painted).mean()
    real, fake = critic(resampled.pixels), critic(resampled.painted.detach())
    return weight * sampler + functional.relu(1 - real).mean() + functional.relu(1 + fake).mean()


def new_critic() -> nn.Module:
    """A PatchGAN of three convolutions (Isola et al. 2017, arXiv:1611.07004), for pictures of at least four rows."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 64, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(64, 1, 3, padding=1),
    )


def perceptual() -> Callable[[Tensor, Tensor], Tensor]:
    """LPIPS on AlexNet, for pixels in [-1, 1].

    Raises:
        UsageError: the package lpips or its weights are not installed.
    """
    try:
        lpips = importlib.import_module("lpips").LPIPS(net="alex", verbose=False)
    except ImportError as error:
        raise UsageError(f"the LPIPS term needs the package lpips ({error}); install it, or set lpips to 0") from error
    except OSError as error:
        raise UsageError(f"the LPIPS term needs AlexNet's weights ({error}); fetch them, or set lpips to 0") from error
    return cast(Callable[[Tensor, Tensor], Tensor], lpips.eval().requires_grad_(False))
