"""The terms of eq. 9 of MuLo-SD that need a net of their own: LPIPS and a discriminator."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from harness.errors import UsageError


class Made(NamedTuple):
    """What a direction made, and what it should have made."""

    vectors: Float[Tensor, "B C h w"]
    wanted: Int[Tensor, "B h w"]
    painted: Float[Tensor, "B 3 H W"]
    pixels: Float[Tensor, "B 3 H W"]


def adversarial(judge: nn.Module, made: Made, weight: float) -> Tensor:
    """Hinge losses of both players: the sampler sees the judge as it is, the judge a picture that is given."""
    frozen = {key: value.detach() for key, value in judge.named_parameters()}
    fooled: Tensor = -torch.func.functional_call(judge, frozen, made.painted).mean()
    real, fake = judge(made.pixels), judge(made.painted.detach())
    return weight * fooled + functional.relu(1 - real).mean() + functional.relu(1 + fake).mean()


def critic() -> nn.Module:
    """PatchGAN of three convolutions (Isola et al. 2017, arXiv:1611.07004), for pictures of four rows and more."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 64, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(64, 1, 3, padding=1),
    )


def perceptual() -> Callable[[Tensor, Tensor], Tensor]:
    """LPIPS on AlexNet, of pixels from -1 to 1.

    Raises:
        UsageError: the package lpips or its weights are not here.
    """
    try:
        found = importlib.import_module("lpips").LPIPS(net="alex", verbose=False)
    except ImportError as error:
        raise UsageError(f"the LPIPS term needs the package lpips ({error}); install it, or set lpips to 0") from error
    except OSError as error:
        raise UsageError(f"the LPIPS term needs AlexNet's weights ({error}); fetch them, or set lpips to 0") from error
    return cast(Callable[[Tensor, Tensor], Tensor], found.eval().requires_grad_(False))
