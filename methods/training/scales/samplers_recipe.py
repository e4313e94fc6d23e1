"""Parts that the recipes of MuLo-SD's samplers share: settings of the loss, both directions of a step, and the export.

Source: MuLo-SD, supplement 7, eq. 9: squared error + LPIPS + commitment + 0.25 GAN. The GAN term starts after 2/15 of
the steps.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.errors import UsageError
from stridebench.harness.synthetic import emoji
from stridebench.harness.train.loop import Recipe, autocast, round_to_bf16, save_bf16
from stridebench.methods.drafters.scales.net import Pair, nearest_code, vectors

# Scenes at the two scales of MuLo-SD, as pixels and as tokens.


SIZES = {"up": 64, "down": 32}
"""Side in pixels of the picture that each direction produces."""
CELL = 4
"""Side of a token in pixels."""


class Scale(NamedTuple):
    """Pictures of one size, in [-1, 1], and their tokens."""

    pixels: Float[Tensor, "B 3 H W"]
    ids: Int[Tensor, "B h w"]

    def band(self, rows: slice, times: int) -> Scale:
        """The part of the pictures that some rows of the small scale's tokens cover.

        Args:
            rows: of the small scale's tokens.
            times: rows of this scale for one of these.
        """
        cell = self.pixels.shape[2] // self.ids.shape[1]
        first, last = rows.start * times, rows.stop * times
        return Scale(self.pixels[:, :, cell * first : cell * last], self.ids[:, first:last])


def encoded(tokenizer: Any, drawn: Sequence[emoji.EmojiScene]) -> dict[str, Scale]:
    """Scenes at the size that each direction produces."""
    scales = {}
    for name, size in SIZES.items():
        pictures = torch.from_numpy(np.stack([emoji.render(scene, size) for scene in drawn]))
        pixels = pictures.permute(0, 3, 1, 2).float() / 127.5 - 1
        scales[name] = Scale(pixels, tokenizer.encode(pictures))
    return scales


# The terms of eq. 9 of MuLo-SD that need a net of their kind: LPIPS and a discriminator.


class Resampled(NamedTuple):
    """A sampler's output (vectors and the decoded picture), and the target (ids and pixels)."""

    vectors: Float[Tensor, "B C h w"]
    ids: Int[Tensor, "B h w"]
    painted: Float[Tensor, "B 3 H W"]
    pixels: Float[Tensor, "B 3 H W"]


class LossWeights(NamedTuple):
    """Weights of eq. 9's terms; the squared error of vectors has weight 1."""

    pixel: float
    commit: float
    lpips: float
    gan: float


def equation_9(
    weights: LossWeights,
    book: Float[Tensor, "V C"],
    resampled: Resampled,
    lpips: Callable[[Tensor, Tensor], Tensor] | None,
    critic: nn.Module | None,
) -> Tensor:
    """Squared error + LPIPS + commitment + GAN, and the loss of the discriminator.

    Args:
        weights: of the terms.
        book: the vectors of the codes.
        resampled: a sampler's output.
        lpips: or None without that term. Bands of a picture are left out: its net cannot read a few rows.
        critic: or None without that term.
    """
    chosen = vectors(book, nearest_code(book, resampled.vectors.detach()))
    off = resampled.vectors - vectors(book, resampled.ids)
    total = off.square().sum(1).mean() + weights.commit * (resampled.vectors - chosen).square().sum(1).mean()
    total = total + weights.pixel * (resampled.painted - resampled.pixels).square().mean()
    if lpips is not None and resampled.pixels.shape[2] == resampled.pixels.shape[3]:
        total = total + weights.lpips * lpips(resampled.painted, resampled.pixels).mean()
    return total if critic is None else total + adversarial(critic, resampled, weights.gan)


def adversarial(critic: nn.Module, resampled: Resampled, weight: float) -> Tensor:
    """Hinge losses of both players. Each player's loss leaves the other one's weights without a gradient."""
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
    """LPIPS on AlexNet by torchmetrics, for pixels in [-1, 1].

    Raises:
        UsageError: torchmetrics, torchvision or AlexNet's weights are not installed.
    """
    try:
        lpips = importlib.import_module("torchmetrics.functional.image.lpips")._LPIPS(net="alex")
    except ImportError as error:
        raise UsageError(
            f"the LPIPS term needs torchmetrics ({error}); install stridebench[image], or set lpips to 0"
        ) from error
    except OSError as error:
        raise UsageError(f"the LPIPS term needs AlexNet's weights ({error}); fetch them, or set lpips to 0") from error
    return cast(Callable[[Tensor, Tensor], Tensor], lpips.eval().requires_grad_(False))


# The trained parts of MuLo-SD: both samplers, the frozen nets that the loss needs, and one pass to the other scale.


@dataclass(frozen=True)
class Frozen:
    """Nets that are only read: the tokenizer, and LPIPS or None."""

    tokenizer: Any
    lpips: Callable[[Tensor, Tensor], Tensor] | None


class SamplerTraining(nn.Module):
    """Both samplers, and the discriminators if there are any.

    Args:
        pair: the samplers to train and export.
        critics: the discriminators, one for each direction, which are trained too.
        frozen: kept out of the weights.
    """

    def __init__(self, pair: Pair, critics: nn.ModuleDict, frozen: Frozen) -> None:
        super().__init__()
        self.pair = pair
        self.critics = critics
        self.frozen = frozen


def resample(model: SamplerTraining, direction: str, source: Scale, target: Scale) -> Resampled:
    """``source`` at the other scale. The gradient passes through the rounding to codes unchanged."""
    tokenizer, book = model.frozen.tokenizer, model.pair.codebook
    net = model.pair.up if direction == "up" else model.pair.down
    with autocast():
        out = net(vectors(book, source.ids)).float()
    rounded = out + (vectors(book, nearest_code(book, out.detach())) - out).detach()
    with autocast():
        painted = tokenizer.paint(rounded.permute(0, 2, 3, 1)).float()
    return Resampled(out, target.ids, painted, target.pixels)


DIRECTIONS = ("up", "down")
BANDS = 0.5
"""Share of steps on a few rows of the picture, because a decoder samples bands of rows."""
CRITIC_SCALE = 5 / 3
"""Learning rate of the discriminators as a multiple of the samplers': 5e-4 to 3e-4."""


@dataclass(frozen=True, kw_only=True)
class SamplersRecipe(Recipe):
    """U_r and D_r together.

    Args:
        batch: pictures of a step.
        width: of the nets.
        blocks: of the nets.
        pixel: weight of the squared error of pixels; the squared error of vectors has weight 1.
        commit: weight of the commitment.
        lpips: weight of LPIPS, which needs the extra ``image``.
        gan: weight of the GAN term.
        gan_from: share of the steps before the GAN term starts.
    """

    summary: str
    batch: int
    width: int = 128
    blocks: int = 4
    pixel: float = 1.0
    commit: float = 1.0
    lpips: float = 0.0
    gan: float = 0.0
    gan_from: float = 2 / 15
    steps: int = 400

    kind = "samplers"
    fall = 0.8
    decay = 0.01
    average = 0.995

    def critics(self) -> nn.ModuleDict:
        """Return a new discriminator for each direction, or none if the GAN term has weight 0."""
        return nn.ModuleDict({name: new_critic() for name in DIRECTIONS} if self.gan else {})

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """The usual groups for the samplers; the discriminators have a higher rate."""
        assert isinstance(model, SamplerTraining)
        critics = {"params": list(model.critics.parameters()), "weight_decay": 0.0, "scale": CRITIC_SCALE}
        return super().groups(model.pair) + [critics] * bool(model.critics)

    def both(self, model: SamplerTraining, scales: Mapping[str, Scale], rows: slice, step: int) -> Tensor:
        """The loss of both directions on some rows of the small scale's tokens.

        Args:
            model: to be trained.
            scales: pictures at the size that each direction produces.
            rows: of the small scale's tokens.
            step: of the training.
        """
        parts = {"up": scales["up"].band(rows, model.pair.shape.factor), "down": scales["down"].band(rows, 1)}
        total = torch.zeros((), device=model.pair.codebook.device)
        for name, other in (DIRECTIONS, DIRECTIONS[::-1]):
            total = total + self.terms(model, name, resample(model, name, parts[other], parts[name]), step)
        return total

    def terms(self, model: SamplerTraining, direction: str, resampled: Resampled, step: int) -> Tensor:
        """Eq. 9, and the loss of the discriminator."""
        critic = model.critics[direction] if self.gan and step >= self.gan_from * self.steps else None
        weights = LossWeights(self.pixel, self.commit, self.lpips, self.gan)
        return equation_9(weights, model.pair.codebook, resampled, model.frozen.lpips, critic)

    def export(self, model: nn.Module, folder: Path) -> None:
        """Write both samplers, rounded to bf16, so that the measured samplers are the exported ones."""
        assert isinstance(model, SamplerTraining)
        round_to_bf16(model.pair.state_dict().values())
        save_bf16(model.pair, folder)
        model.pair.write_config(folder)


def band(count: int, random: np.random.Generator) -> slice:
    """Some rows of ``count``, at least one."""
    first, last = sorted(random.choice(count + 1, 2, replace=False).tolist())
    return slice(first, last)
