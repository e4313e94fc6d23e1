"""Models of emoji scenes, a token for 4x4 pixels: `stride train backbone emoji-image` and its relatives.

Every step draws and encodes new scenes, so nothing can be memorised. This takes a twentieth of the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor, nn

from stridebench.harness.backbones.image.adapter import PictureLayout
from stridebench.harness.backbones.image.vq import CODES, PATCH, VQ, to_signed
from stridebench.harness.registry import RECIPES
from stridebench.harness.synthetic import emoji
from stridebench.harness.train.backbones.decoder import TrainableDecoder
from stridebench.harness.train.backbones.image_recipe import NATS_PER_BIT, PictureBatch, PictureRecipe, nats, sample
from stridebench.harness.train.recipe import Recipe, autocast, round_to_bf16, save_bf16

# Whether a model of emoji scenes reads its captions: the likelihood of the true word among all words.
# A real picture is kept, and one attribute of its caption takes every value. The model's probabilities of the
# picture under these captions, normalised, say how much it knows of the attribute. No picture is drawn, so this is
# cheap and tells more than samples do.


Encode = Callable[[Sequence[emoji.EmojiScene]], Int[Tensor, "B n"]]
"""Makes tokens of scenes."""


@torch.no_grad()
def likelihoods(model: TrainableDecoder, layout: PictureLayout, encode: Encode, count: int) -> dict[str, float]:
    """Mean probability of the true value of each attribute, of ``count`` held-out scenes; all values are equally likely
    before the picture is seen.
    """
    means = {}
    for name, (family, alternatives) in emoji.ATTRIBUTES.items():
        scenes = emoji.scenes(3, "held-out", count, family)
        shares = []
        for scene, cells in zip(scenes, encode(scenes), strict=True):
            captions = [emoji.caption(other) for other in alternatives(scene)]
            cost = nats(model, layout, PictureBatch(captions, cells.expand(len(captions), -1))).double().sum(1)
            shares.append(float((-cost).softmax(0)[0]))
        means[f"reads_{name}"] = sum(shares) / len(shares)
    return means


TOKENIZER = "emoji-vq"
CHECKED = 360
"""Held-out scenes of the figures."""
DRAWN, KNOWN = 24, 2000
"""Pictures that are drawn, and training scenes that they are compared with."""
READ = 48
"""Held-out scenes an attribute, for which captions are compared."""
TRAINED = (*emoji.FAMILIES, "counting", "counting")
"""Families of a batch, in turn. Numbers are the hardest to learn, and only one family has them."""


@dataclass(frozen=True, kw_only=True)
class SceneRecipe(PictureRecipe):
    """Scenes with their captions, at one size.

    The ground fills most of a picture and follows from its neighbours or from nothing. An object is where the caption
    matters. So a cell of ground has a low weight at first. This changes the distribution, so all weights are equal in
    the last part of the training.

    Args:
        size: of the picture in pixels, 64 or 32.
        ground: weight of a cell of ground at first.
        level: share of the steps after which all cells have weight 1.
        queries: train an order-free model, whose rows are not closed.
    """

    size: int = 64
    ground: float = 0.1
    level: float = 0.67
    queries: bool = False

    source = "stridebench.harness.synthetic.emoji, from Noto Color Emoji (SIL OFL 1.1)"
    requires = (TOKENIZER,)
    fall = 0.5
    warmup = 100
    muon = 0.01

    @property
    def layout(self) -> PictureLayout:
        side = self.size // PATCH
        return PictureLayout(side, side, CODES, emoji.VOCABULARY, not self.queries, self.queries)

    def build(self, requirements: Mapping[str, Path]) -> TrainableDecoder:
        model = super().build(requirements)
        model.extra = _Tokenizer(VQ.load(requirements[TOKENIZER]))
        return model

    def draw(self, model: nn.Module, step: int, random: np.random.Generator) -> PictureBatch:
        scenes = [emoji.scene(random, "train", TRAINED[k % len(TRAINED)]) for k in range(self.batch)]
        objects = np.stack([emoji.regions(scene, self.size // PATCH) for scene in scenes]) == emoji.OBJECT
        ground = self.ground if step < self.level * self.steps else 1.0
        weights = torch.from_numpy(np.where(objects, 1.0, ground).astype(np.float32)).flatten(1)
        return PictureBatch([emoji.caption(scene) for scene in scenes], self.cells(model, scenes), weights)

    def cells(self, model: nn.Module, scenes: Sequence[emoji.EmojiScene]) -> Int[Tensor, "B n"]:
        """Tokens of scenes."""
        tokenizer = model.extra
        assert isinstance(tokenizer, _Tokenizer)
        pictures = np.stack([emoji.render(scene, self.size) for scene in scenes])
        return tokenizer.vq.encode(torch.from_numpy(pictures)).flatten(1)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Bits a token on held-out scenes, by region; the reading of captions; and copies.

        Copies are shares of tokens that drawn pictures have in common with training scenes.
        """
        assert isinstance(model, TrainableDecoder)
        scenes = emoji.scenes(1, "held-out", CHECKED)
        chunks = [scenes[start : start + 24] for start in range(0, CHECKED, 24)]
        bits = torch.cat(
            [
                nats(model, self.layout, PictureBatch([*map(emoji.caption, chunk)], self.cells(model, chunk)))
                for chunk in chunks
            ]
        )
        bits = bits / NATS_PER_BIT
        regions = torch.from_numpy(np.stack([emoji.regions(scene, self.size // PATCH) for scene in scenes])).flatten(1)
        by_region = {f"bits_{name}": float(bits[regions == region].mean()) for name, region in emoji.REGIONS.items()}
        read = likelihoods(model, self.layout, partial(self.cells, model), READ)
        copies = {} if self.queries else self._copies(model, scenes)
        return {"bits": float(bits.mean()), **by_region, **read, **copies}

    def _copies(self, model: TrainableDecoder, scenes: Sequence[emoji.EmojiScene]) -> dict[str, float]:
        """Share of tokens that a picture has in common with the most similar training scene."""
        random = np.random.default_rng(0)
        train = [emoji.scene(random, "train") for _ in range(KNOWN)]
        real = torch.cat([self.cells(model, train[start : start + 50]) for start in range(0, KNOWN, 50)])
        captions = [emoji.caption(scene) for scene in scenes[:DRAWN]]
        drawn = sample(model, self.layout, captions, random)
        held_out = self.cells(model, scenes[:DRAWN])
        return {"shared_drawn": _shared(drawn, real), "shared_held_out": _shared(held_out, real)}


class _Tokenizer:
    """Keeps the tokenizer out of the model's weights, which it would join as an attribute."""

    def __init__(self, vq: VQ) -> None:
        self.vq = vq


def _shared(pictures: Int[Tensor, "a n"], train: Int[Tensor, "b n"]) -> float:
    return float(torch.stack([(train == picture).float().mean(1).max() for picture in pictures]).mean())


LARGE = SceneRecipe(
    summary="emoji scenes of 64 pixels from captions, 16x16 tokens, 3.0 M parameters",
    width=192,
    inner=512,
    layers=6,
    heads=4,
    context=512,
    batch=16,
    steps=6000,
    level=0.75,
    hours=3.0,
    rate=2e-3,
    compiled=True,
    average=0.995,
)
RECIPES.register("emoji-image")(LARGE)
RECIPES.register("emoji-image-8x8")(
    replace(
        LARGE,
        summary="emoji scenes of 32 pixels from captions, 8x8 tokens, 3.0 M parameters",
        size=32,
        level=0.67,
        batch=48,
        steps=500,
        hours=2.0,
        average=0.99,
    )
)
RECIPES.register("emoji-image-8x8-queries")(
    replace(
        LARGE,
        summary="emoji scenes of 32 pixels, 8x8 tokens in any order and in groups, 1.9 M parameters: for lpd and par",
        size=32,
        level=0.67,
        width=160,
        inner=416,
        layers=5,
        heads=5,
        batch=32,
        steps=1000,
        hours=0.66,
        rate=3e-3,
        average=0.99,
        queries=True,
    )
)
RECIPES.register("emoji-image-small")(
    replace(
        LARGE,
        summary="emoji scenes of 64 pixels from captions, 16x16 tokens, 0.5 M parameters: a drafter",
        width=96,
        level=0.67,
        inner=256,
        layers=3,
        heads=2,
        steps=1000,
        hours=2.0,
        rate=3e-3,
        average=0.99,
    )
)


# The tokenizer of emoji scenes: `stride train backbone emoji-vq`.


# Figures of the tokenizer of emoji scenes: reconstruction, use of codes, and agreement of an object's tokens.


def figures(model: VQ, drawn: Sequence[emoji.EmojiScene]) -> dict[str, float]:
    """For both sizes: PSNR in dB, whole and by region; share of codes used and their perplexity; agreement."""
    shares: dict[str, float] = {}
    for size in emoji.SIZES:
        ids, errors = reconstruct(model, drawn, size)
        share = torch.bincount(ids.flatten(), minlength=CODES) / ids.numel()
        regions = np.stack([emoji.regions(scene, size // 4) for scene in drawn])
        shares[f"psnr_{size}"] = psnr(errors)
        for name, region in emoji.REGIONS.items():
            shares[f"psnr_{size}_{name}"] = psnr(errors[torch.from_numpy(regions == region)])
        shares[f"usage_{size}"] = float((share > 0).float().mean())
        shares[f"perplexity_{size}"] = math.exp(float(torch.special.entr(share).sum()))
        shares[f"object_agreement_{size}"] = agreement(drawn, ids, regions)
    return shares


@torch.no_grad()
def reconstruct(
    model: VQ, drawn: Sequence[emoji.EmojiScene], size: int
) -> tuple[Int[Tensor, "B h w"], Float[Tensor, "B h w"]]:
    """Ids, and mean squared error of each 4x4 patch with pixels in 0..1."""
    ids, errors = [], []
    for start in range(0, len(drawn), 50):
        pictures = np.stack([emoji.render(scene, size) for scene in drawn[start : start + 50]])
        ids.append(model.encode(pictures))
        off = (model.decode(ids[-1]).float() - torch.from_numpy(pictures).float()) / 255
        errors.append(nn.functional.avg_pool2d(off.square().mean(-1), 4))
    return torch.cat(ids), torch.cat(errors)


def psnr(errors: Float[Tensor, "*n"]) -> float:
    """Peak signal to noise ratio of mean squared errors of pixels in 0..1."""
    return -10 * math.log10(float(errors.mean()))


def agreement(
    drawn: Sequence[emoji.EmojiScene], ids: Int[Tensor, "B h w"], regions: Int8[np.ndarray, "B h w"]
) -> float:
    """How often an object's token is the most frequent one at its place for that kind and colour."""
    tokens_of: dict[tuple[str, str, int, int], list[int]] = {}
    step = ids.shape[1] * 2 // 16
    for scene, tokens, region in zip(drawn, ids.numpy(), regions, strict=True):
        for thing in scene.things:
            for row in range(thing.side * step):
                for column in range(thing.side * step):
                    cell = (thing.row * step + row, thing.column * step + column)
                    if region[cell] == emoji.OBJECT:
                        key = (thing.kind, thing.colour, row, column)
                        tokens_of.setdefault(key, []).append(int(tokens[cell]))
    most = sum(max(map(tokens.count, set(tokens))) for tokens in tokens_of.values())
    return most / sum(map(len, tokens_of.values()))


BATCH = {64: 12, 32: 16}
KEEP = 0.99
"""Decay of the moving sums; a code follows the encodings of about a hundred steps."""
COMMIT = 0.25
OBJECT_WEIGHT = 5.0
"""Weight of an object's patch in the error and in placing codes; a background's is 1. Backgrounds fill most of a
picture and would otherwise take most of the codebook."""
REVIVE_EVERY, REVIVE_UNTIL, DEAD = 25, 0.8, 0.1 / CODES


class EmojiVQ(Recipe):
    """Reconstruct scenes at both sizes. Codes are moving averages of encodings; unused codes restart at one."""

    summary = "VQ tokenizer of emoji scenes: 1024 codes, a token for 4x4 pixels"
    source = "stridebench.harness.synthetic.emoji, from Noto Color Emoji (SIL OFL 1.1)"
    steps = 2000
    hours = 0.5
    rate = 2e-3
    warmup = 100
    fall = 0.6
    decay = 0.0

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        model = VQ()
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stubs lack it
        return model

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, VQ)
        total = torch.zeros(())
        encodings, weights = [], []
        for size, count in BATCH.items():
            drawn = [emoji.scene(random, "train") for _ in range(count)]
            weight = _weights(drawn, size // 4)
            pictures = torch.from_numpy(np.stack([emoji.render(scene, size) for scene in drawn]))
            error, spread = _error(model, to_signed(pictures), weight)
            total = total + error / len(BATCH)
            encodings.append(spread.flatten(0, 2))
            weights.append(weight.flatten())
        _follow(model, torch.cat(encodings), torch.cat(weights), step, self.steps)
        return total

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        assert isinstance(model, VQ)
        return figures(model, emoji.scenes(1, "held-out", 2000))

    def export(self, model: nn.Module, folder: Path) -> None:
        round_to_bf16(model.state_dict().values())
        save_bf16(model, folder)

    def load(self, folder: Path) -> VQ:
        """A finished tokenizer, for recipes that require this one."""
        return VQ.load(folder)


def _weights(drawn: Sequence[emoji.EmojiScene], cells: int) -> Float[Tensor, "B h w"]:
    objects = np.stack([emoji.regions(s, cells) for s in drawn]) == emoji.OBJECT
    return 1 + (OBJECT_WEIGHT - 1) * torch.from_numpy(objects).float()


def _error(
    model: VQ, pixels: Float[Tensor, "B 3 H W"], weight: Float[Tensor, "B h w"]
) -> tuple[Tensor, Float[Tensor, "B h w C"]]:
    """Absolute and squared error of the pixels with the commitment's; and the encodings."""
    with autocast():
        spread = model.spread(pixels)
    # The nearest code is found in fp32: bf16 cannot tell close ones apart.
    codes = model.codebook[model.nearest(spread.detach())]
    with autocast():
        painted = model.paint(spread + (codes - spread).detach())
    share = weight / weight.sum()
    off = (painted.float() - pixels).abs()
    patch = nn.functional.avg_pool2d((off + 2 * off.square()).mean(1), 4)
    commit = (spread - codes).square().sum(-1)
    return (share * (patch + COMMIT * commit)).sum(), spread.detach()


@torch.no_grad()
def _follow(model: VQ, encodings: Float[Tensor, "n C"], weight: Float[Tensor, " n"], step: int, steps: int) -> None:
    """Move each code toward the encodings nearest to it. A code without any moves to an encoding drawn by weight."""
    if step == 0:
        model.book.copy_(encodings[torch.multinomial(weight, CODES)] / CODES)
    ids, share = model.nearest(encodings), weight / weight.sum()
    model.used.mul_(KEEP).index_add_(0, ids, share, alpha=1 - KEEP)
    model.book.mul_(KEEP).index_add_(0, ids, encodings * share[:, None], alpha=1 - KEEP)
    if step % REVIVE_EVERY == 0 and step < REVIVE_UNTIL * steps:
        dead = (model.used < DEAD).nonzero()[:, 0]
        if len(dead):
            model.book[dead] = encodings[torch.multinomial(weight, len(dead))] / CODES
            model.used[dead] = 1 / CODES


RECIPES.register("emoji-vq")(EmojiVQ())
