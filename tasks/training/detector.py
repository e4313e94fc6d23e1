"""The detector of emoji scenes: `stride train scorer emoji-detector`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.registry import RECIPES
from stridebench.harness.synthetic import emoji
from stridebench.harness.train.recipe import Recipe, save_bf16
from stridebench.tasks.metrics.detector import CELLS, SPLIT, Detector, find, prepare, shares, truth

BATCH = 24
SMALL = 0.2
"""Share of pictures drawn at 32 pixels."""
REBUILT = 0.5
"""Share of pictures that went through the tokenizer. Every picture of a model does."""
SHIFTED = 0.5
"""Share of batches moved by up to one cell: bad models put objects there, and scenes never do."""
BROKEN = 0.1
"""Share of pictures whose objects are shuffled token by token. No object is there, though each of its pieces is."""


class EmojiDetector(Recipe):
    """Heat has the penalty-reduced focal loss; kind and colour have cross-entropy at the true centres."""

    kind = "scorer"
    summary = "detector of emoji scenes: kind, colour and place of each object"
    source = "stridebench.harness.synthetic.emoji, from Noto Color Emoji (SIL OFL 1.1), and emoji-vq"
    requires = ("emoji-vq",)
    steps = 1000
    hours = 0.5
    rate = 2e-3
    warmup = 100
    fall = 0.7
    decay = 0.01
    average = 0.995

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        model = Detector()
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stubs lack it
        # Not a submodule, because it is neither trained nor shipped here.
        object.__setattr__(model, "tokenizer", RECIPES.get("emoji-vq").load(requirements["emoji-vq"]))
        return model

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        drawn = [emoji.scene(random, "train") for _ in range(BATCH)]
        shift = tuple(random.integers(-1, 2, 2).tolist()) if random.random() < SHIFTED else (0, 0)
        broken = random.random(BATCH) < BROKEN
        with torch.autocast("cpu", torch.bfloat16):
            pictures = _mixed(model, drawn, broken, random)
            logits = model(_moved(pictures, shift))
        return _loss(logits.float(), _targets(drawn, broken, shift))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        assert isinstance(model, Detector)
        drawn = emoji.scenes(2, "held-out", 1800)
        figures: dict[str, float] = {"scenes": len(drawn)}
        for size in emoji.SIZES:
            real = np.stack([emoji.render(scene, size) for scene in drawn])
            for name, pictures in (("real", real), ("rebuilt", _rebuilt(model, real))):
                detected = [objects for part in np.array_split(pictures, 36) for objects in find(model, part)]
                figures |= {f"{name}_{size}_{key}": value for key, value in shares(detected, drawn).items()}
        return figures

    def export(self, model: nn.Module, folder: Path) -> None:
        """Round to bf16 first, so that the measured weights are the shipped ones."""
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.copy_(tensor.bfloat16())
        save_bf16(model, folder)


def _rebuilt(model: nn.Module, pictures: UInt8[np.ndarray, "B H W 3"]) -> UInt8[np.ndarray, "B H W 3"]:
    """Encode and decode the pictures with the tokenizer."""
    tokenizer: Any = getattr(model, "tokenizer")  # noqa: B009  # set past nn.Module, which would not type it
    parts = np.array_split(pictures, max(1, len(pictures) // 50))
    return np.concatenate([tokenizer.decode(tokenizer.encode(part)).numpy() for part in parts])


def _mixed(
    model: nn.Module, drawn: Sequence[emoji.EmojiScene], broken: Bool[np.ndarray, " B"], random: np.random.Generator
) -> Float[Tensor, "B 3 64 64"]:
    """Return pictures of both sizes, as rendered or after the tokenizer."""
    small, rebuilt = int(SMALL * len(drawn)), int(REBUILT * len(drawn))
    order = random.permutation(len(drawn))
    parts: list[Tensor] = []
    for size, part in ((32, order[:small]), (64, order[small:])):
        real = np.stack([shuffled(drawn[i], size, random) if broken[i] else emoji.render(drawn[i], size) for i in part])
        through = round(rebuilt * len(part) / len(drawn))
        if through:
            real[:through] = _rebuilt(model, real[:through])
        parts.append(prepare(real))
    return torch.cat(parts)[torch.from_numpy(np.argsort(order))]


def shuffled(drawn: emoji.EmojiScene, size: int, random: np.random.Generator) -> UInt8[np.ndarray, "size size 3"]:
    """Render a scene and permute the 4x4 pixels of its objects' tokens."""
    cells = size // 4
    tiles = emoji.render(drawn, size).reshape(cells, 4, cells, 4, 3).swapaxes(1, 2).copy()
    objects = np.argwhere(emoji.regions(drawn, cells) == emoji.OBJECT)
    tiles[tuple(objects.T)] = tiles[tuple(random.permutation(objects).T)]
    return tiles.swapaxes(1, 2).reshape(size, size, 3)


def _moved(pixels: Float[Tensor, "B 3 64 64"], shift: tuple[int, ...]) -> Float[Tensor, "B 3 64 64"]:
    """Move pictures down and right by whole cells; edges are repeated."""
    wide = functional.pad(pixels, (4, 4, 4, 4), mode="replicate")
    top, left = 4 - 4 * shift[0], 4 - 4 * shift[1]
    return wide[:, :, top : top + 64, left : left + 64].contiguous(memory_format=torch.channels_last)


def _targets(
    drawn: Sequence[emoji.EmojiScene], broken: Bool[np.ndarray, " B"], shift: tuple[int, ...]
) -> Int[np.ndarray, "objects 5"]:
    """Return picture, row, column, kind and colour of each object that is not broken."""
    rows = [
        (
            *(index, int(thing.y) // 4 + shift[0], int(thing.x) // 4 + shift[1]),
            *(emoji.KINDS.index(thing.kind), emoji.COLOURS.index(thing.colour)),
        )
        for index, scene in enumerate(drawn)
        if not broken[index]
        for thing in truth(scene)
    ]
    return np.array(rows)


def _loss(logits: Float[Tensor, "B 13 16 16"], targets: Int[np.ndarray, "objects 5"]) -> Tensor:
    heat, kind, colour = torch.split(logits, list(SPLIT), 1)
    index, row, column, kinds, colours = torch.from_numpy(targets).T
    lattice = torch.arange(CELLS)
    squared_distance = (lattice[None, :, None] - row[:, None, None]) ** 2 + (
        lattice[None, None, :] - column[:, None, None]
    ) ** 2
    target = torch.zeros(len(logits), CELLS, CELLS)
    # Centres are eight cells apart, so the sum of their bumps equals the largest one.
    target.index_add_(0, index, torch.exp(-squared_distance.float()))
    centre = torch.zeros_like(target, dtype=torch.bool)
    centre[index, row, column] = True
    score, log_on, log_off = heat[:, 0].sigmoid(), *(functional.logsigmoid(s * heat[:, 0]) for s in (1, -1))
    on = -((1 - score) ** 2 * log_on)[centre].sum()
    off = -((1 - target.clamp_max(1)) ** 4 * score**2 * log_off)[~centre].sum()
    at_centres = [part[index, :, row, column] for part in (kind, colour)]
    attributes = functional.cross_entropy(at_centres[0], kinds) + functional.cross_entropy(at_centres[1], colours)
    return (on + off) / len(targets) + attributes


RECIPES.register("emoji-detector")(EmojiDetector())
