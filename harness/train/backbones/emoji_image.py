"""Models of emoji scenes, a token for 4x4 pixels: `stride train backbone emoji-image` and its relatives.

Every step draws and encodes new scenes, so nothing can be memorised. This takes a twentieth of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from stridebench.harness.backbones.image.adapter import PictureLayout
from stridebench.harness.backbones.image.vq import CODES, PATCH, VQ
from stridebench.harness.registry import RECIPES
from stridebench.harness.synthetic import emoji
from stridebench.harness.train.backbones.decoder import TrainableDecoder
from stridebench.harness.train.backbones.image_recipe import NATS_PER_BIT, PictureBatch, PictureRecipe, nats, sample

# Whether a model of emoji scenes reads its captions: the likelihood of the true word among all words.
# A real picture is kept, and one attribute of its caption takes every value. The model's probabilities of the
# picture under these captions, normalised, say how much it knows of the attribute. No picture is drawn, so this is
# cheap and tells more than samples do.


Encode = Callable[[Sequence[emoji.EmojiScene]], Int[Tensor, "B n"]]
"""Makes tokens of scenes."""


def colours(scene: emoji.EmojiScene) -> list[emoji.EmojiScene]:
    """The scene with its first object in every colour that the other objects leave; the true one comes first."""
    first, others = _first_and_others(scene)
    free = [colour for colour in emoji.COLOURS if colour not in {first.colour, *(thing.colour for thing in others)}]
    return [scene, *(_with_first(scene, replace(first, colour=colour)) for colour in free)]


def kinds(scene: emoji.EmojiScene) -> list[emoji.EmojiScene]:
    """The scene with its first object of every kind that the other objects leave; the true one comes first."""
    first, others = _first_and_others(scene)
    free = [kind for kind in emoji.KINDS if kind not in {first.kind, *(thing.kind for thing in others)}]
    return [scene, *(_with_first(scene, replace(first, kind=kind)) for kind in free)]


def numbers(scene: emoji.EmojiScene) -> list[emoji.EmojiScene]:
    """A scene of equal objects with one to four of them; the true number comes first."""
    others = [number for number in range(1, 5) if number != len(scene.things)]
    return [scene, *(replace(scene, things=scene.things[:1] * number) for number in others)]


def relations(scene: emoji.EmojiScene) -> list[emoji.EmojiScene]:
    """A scene of two different objects in every relation; the true one comes first."""
    return [scene, *(replace(scene, relation=other) for other in emoji.RELATIONS if other != scene.relation)]


ATTRIBUTES: dict[str, tuple[str, Callable[[emoji.EmojiScene], list[emoji.EmojiScene]]]] = {
    "colour": ("position", colours),
    "kind": ("position", kinds),
    "number": ("counting", numbers),
    "relation": ("position", relations),
}
"""Family of the scenes and the captions compared, by attribute."""


def _first_and_others(scene: emoji.EmojiScene) -> tuple[emoji.Thing, tuple[emoji.Thing, ...]]:
    return scene.things[0], scene.things[1:] if scene.relation else ()


def _with_first(scene: emoji.EmojiScene, thing: emoji.Thing) -> emoji.EmojiScene:
    things = (thing, *scene.things[1:]) if scene.relation else (thing,) * len(scene.things)
    return replace(scene, things=things)


@torch.no_grad()
def likelihoods(model: TrainableDecoder, layout: PictureLayout, encode: Encode, count: int) -> dict[str, float]:
    """Mean probability of the true value of each attribute, of ``count`` held-out scenes; all values are equally likely
    before the picture is seen.
    """
    means = {}
    for name, (family, alternatives) in ATTRIBUTES.items():
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
    """

    size: int = 64
    ground: float = 0.1
    level: float = 0.67

    source = "stridebench.harness.synthetic.emoji, from Noto Color Emoji (SIL OFL 1.1)"
    requires = (TOKENIZER,)
    fall = 0.5
    warmup = 100
    muon = 0.01

    @property
    def layout(self) -> PictureLayout:
        return PictureLayout(self.size // PATCH, self.size // PATCH, CODES, emoji.VOCABULARY, closed=True)

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
        return {"bits": float(bits.mean()), **by_region, **read, **self._copies(model, scenes)}

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
