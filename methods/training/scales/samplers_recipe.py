"""Parts that the recipes of MuLo-SD's samplers share: settings of the loss, both directions of a step, and the export.

Source: MuLo-SD, supplement 7, eq. 9: squared error + LPIPS + commitment + 0.25 GAN. The GAN term starts after 2/15 of
the steps.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int8
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.errors import UsageError
from stridebench.harness.registry import RECIPES
from stridebench.harness.synthetic import emoji
from stridebench.harness.train.recipe import ParameterGroup, Recipe, autocast, round_to_bf16, save_bf16
from stridebench.methods.drafters.scales import Pair, Samplers, SamplerShape, nearest_code, vectors

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
    """LPIPS on AlexNet by torchmetrics, for pixels in [-1, 1]."""
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

    def groups(self, model: nn.Module) -> list[ParameterGroup]:
        """The usual groups for the samplers; the discriminators have a higher rate."""
        assert isinstance(model, SamplerTraining)
        critics = ParameterGroup(params=list(model.critics.parameters()), weight_decay=0.0, scale=CRITIC_SCALE)
        return super().groups(model.pair) + [critics] * bool(model.critics)

    def both(self, model: SamplerTraining, scales: Mapping[str, Scale], rows: slice, step: int) -> Tensor:
        """The loss of both directions on some rows of the small scale's tokens.

        Args:
            scales: pictures at the size that each direction produces.
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


# The samplers of MuLo-SD for emoji scenes: `stride train samplers mulo-2x`.


# How close up- and down-sampled tokens are to those of the real picture.


CHUNK = 50
"""Scenes that are resampled at once."""


class ScaleComparison(NamedTuple):
    """For each token: whether it equals the real one, the squared error of its pixels in [0, 1], and its region."""

    same: Bool[Tensor, "B h w"]
    error: Float[Tensor, "B h w"]
    regions: Int8[Tensor, "B h w"]


def figures(pair: Pair, tokenizer: Any, drawn: Sequence[emoji.EmojiScene]) -> dict[str, float]:
    """``{direction}_{source}_same``, the share of tokens equal to the real ones, and ``_psnr`` in dB.

    Each figure is given for whole pictures and by region. The sources are the trained samplers, the untrained repeat,
    bilinear and average, and the real tokens, whose PSNR is the ceiling.
    """
    chunks = [_compared(pair, tokenizer, drawn[start : start + CHUNK]) for start in range(0, len(drawn), CHUNK)]
    shares = {}
    for key in chunks[0]:
        same, error, regions = (torch.cat(field) for field in zip(*(chunk[key] for chunk in chunks), strict=True))
        inside = {"": regions >= 0} | {f"_{name}": regions == region for name, region in emoji.REGIONS.items()}
        for region, tokens in inside.items():
            shares[f"{key}_same{region}"] = float(same[tokens].float().mean())
            shares[f"{key}_psnr{region}"] = -10 * math.log10(float(error[tokens].mean()))
    return shares


@torch.no_grad()
def _compared(pair: Pair, tokenizer: Any, drawn: Sequence[emoji.EmojiScene]) -> dict[str, ScaleComparison]:
    """The comparison of each direction and source."""
    book, scales = tokenizer.codebook, encoded(tokenizer, drawn)
    trained = Samplers.of(pair, book)
    repeat, bilinear = (Samplers.untrained(kind, book, trained.factor) for kind in ("repeat", "bilinear"))
    changes = {
        "up": {"trained": trained.up, "repeat": repeat.up, "bilinear": bilinear.up},
        "down": {"trained": trained.down, "average": repeat.down},
    }
    comparisons = {}
    for name, other in (("up", "down"), ("down", "up")):
        pixels, real = scales[name]
        regions = torch.from_numpy(np.stack([emoji.regions(scene, real.shape[1]) for scene in drawn]))
        resampled = {source: torch.stack([*map(change, scales[other].ids)]) for source, change in changes[name].items()}
        for source, ids in (resampled | {"real": real}).items():
            painted = tokenizer.decode(ids).permute(0, 3, 1, 2).float() / 127.5 - 1
            error = functional.avg_pool2d(((painted - pixels) / 2).square().mean(1), CELL)
            comparisons[f"{name}_{source}"] = ScaleComparison(ids == real, error, regions)
    return comparisons


TOKENIZER = "emoji-vq"
FACTOR = 2
CHECKED = 600
"""Held-out scenes of the figures."""


@dataclass(frozen=True, kw_only=True)
class MuLoSamplers(SamplersRecipe):
    """U_r and D_r together, on scenes drawn at both sizes and encoded by one tokenizer.

    The paper trains 20 M parameters for 150,000 steps of 32 pictures at a rate of 3e-4. These samplers have 0.8 M
    parameters and 400 steps.
    """

    batch: int = 32
    hours: float = 0.4
    rate: float = 2e-3

    source = "stridebench.harness.synthetic.emoji, from Noto Color Emoji (SIL OFL 1.1), and emoji-vq"
    requires = (TOKENIZER,)
    serves = ("embedded-image", "embedded-image-small")

    def build(self, requirements: Mapping[str, Path]) -> SamplerTraining:
        """New samplers, which equal the untrained control."""
        tokenizer = RECIPES.get(TOKENIZER).load(requirements[TOKENIZER]).requires_grad_(False)
        book: Tensor = tokenizer.codebook
        pair = Pair(SamplerShape(FACTOR, len(book), book.shape[1], self.width, self.blocks))
        pair.codebook.copy_(book)
        model = SamplerTraining(pair, self.critics(), Frozen(tokenizer, perceptual() if self.lpips else None))
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stubs lack it
        return model

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, SamplerTraining)
        scales = encoded(model.frozen.tokenizer, [emoji.scene(random, "train") for _ in range(self.batch)])
        count = scales["down"].ids.shape[1]
        rows = band(count, random) if random.random() < BANDS else slice(0, count)
        return self.both(model, scales, rows, step)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on held-out scenes, with the untrained samplers and the tokenizer's ceiling; see `figures`."""
        assert isinstance(model, SamplerTraining)
        return figures(model.pair, model.frozen.tokenizer, emoji.scenes(1, "held-out", CHECKED))


RECIPES.register("mulo-2x")(
    MuLoSamplers(summary="up- and down-sampler of MuLo-SD for emoji scenes, 8x8 and 16x16 tokens")
)
RECIPES.register("mulo-2x-gan")(
    MuLoSamplers(
        summary="the same with LPIPS and a discriminator, as published; needs the extra image",
        lpips=1.0,
        gan=0.25,
        hours=1.5,
    )
)
