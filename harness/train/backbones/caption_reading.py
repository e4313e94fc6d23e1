"""Whether a model of emoji scenes reads its captions: the likelihood of the true word among all words.

A real picture is kept, and one attribute of its caption takes every value. The model's probabilities of the picture
under these captions, normalised, say how much it knows of the attribute. No picture is drawn, so this is cheap and
tells more than samples do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from stridebench.harness.backbones.image.layout import Layout
from stridebench.harness.synthetic import emoji
from stridebench.harness.train.backbones.decoder import Decoder
from stridebench.harness.train.backbones.image_recipe import Batch, nats

Encode = Callable[[Sequence[emoji.Scene]], Int[Tensor, "B n"]]
"""Makes tokens of scenes."""


def colours(scene: emoji.Scene) -> list[emoji.Scene]:
    """The scene with its first object in every colour that the other objects leave; the true one comes first."""
    first, others = _first_and_others(scene)
    free = [colour for colour in emoji.COLOURS if colour not in {first.colour, *(thing.colour for thing in others)}]
    return [scene, *(_with_first(scene, replace(first, colour=colour)) for colour in free)]


def kinds(scene: emoji.Scene) -> list[emoji.Scene]:
    """The scene with its first object of every kind that the other objects leave; the true one comes first."""
    first, others = _first_and_others(scene)
    free = [kind for kind in emoji.KINDS if kind not in {first.kind, *(thing.kind for thing in others)}]
    return [scene, *(_with_first(scene, replace(first, kind=kind)) for kind in free)]


def numbers(scene: emoji.Scene) -> list[emoji.Scene]:
    """A scene of equal objects with one to four of them; the true number comes first."""
    others = [number for number in range(1, 5) if number != len(scene.things)]
    return [scene, *(replace(scene, things=scene.things[:1] * number) for number in others)]


def relations(scene: emoji.Scene) -> list[emoji.Scene]:
    """A scene of two different objects in every relation; the true one comes first."""
    return [scene, *(replace(scene, relation=other) for other in emoji.RELATIONS if other != scene.relation)]


ATTRIBUTES: dict[str, tuple[str, Callable[[emoji.Scene], list[emoji.Scene]]]] = {
    "colour": ("position", colours),
    "kind": ("position", kinds),
    "number": ("counting", numbers),
    "relation": ("position", relations),
}
"""Family of the scenes and the captions compared, by attribute."""


def _first_and_others(scene: emoji.Scene) -> tuple[emoji.Thing, tuple[emoji.Thing, ...]]:
    return scene.things[0], scene.things[1:] if scene.relation else ()


def _with_first(scene: emoji.Scene, thing: emoji.Thing) -> emoji.Scene:
    things = (thing, *scene.things[1:]) if scene.relation else (thing,) * len(scene.things)
    return replace(scene, things=things)


@torch.no_grad()
def likelihoods(model: Decoder, layout: Layout, encode: Encode, count: int) -> dict[str, float]:
    """Mean probability of the true value of each attribute, of ``count`` held-out scenes; all values are equally likely
    before the picture is seen.
    """
    means = {}
    for name, (family, alternatives) in ATTRIBUTES.items():
        scenes = emoji.scenes(3, "held-out", count, family)
        shares = []
        for scene, cells in zip(scenes, encode(scenes), strict=True):
            captions = [emoji.caption(other) for other in alternatives(scene)]
            cost = nats(model, layout, Batch(captions, cells.expand(len(captions), -1))).double().sum(1)
            shares.append(float((-cost).softmax(0)[0]))
        means[f"reads_{name}"] = sum(shares) / len(shares)
    return means
