"""Parts that the recipes of image models share: prompts, the loss, and a sampler for their figures."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.backbones.image.adapter import PictureLayout
from stridebench.harness.registry import RECIPES
from stridebench.harness.synthetic import digits
from stridebench.harness.train.backbones.decoder import DecoderShape, Memory, TrainableDecoder
from stridebench.harness.train.recipe import ParameterGroup, Recipe

NATS_PER_BIT = float(np.log(2))
PAD = 32
"""Batches are padded to a multiple of this length: the layers are compiled once for each of few lengths."""


class PictureBatch(NamedTuple):
    """Captions and pictures, and the weight of each cell in the loss, or None if all weigh the same."""

    captions: Sequence[str]
    cells: Int[Tensor, "B n"]
    weights: Float[Tensor, "B n"] | None = None


@dataclass(frozen=True, kw_only=True)
class PictureRecipe(Recipe):
    """A decoder of captions and pictures.

    Args:
        empty: share of captions that are left out, for guidance.
        compiled: whether layers are compiled for training, which pays off after about a hundred steps.
    """

    width: int
    inner: int
    layers: int
    heads: int
    context: int
    batch: int
    empty: float = 0.1
    dropout: float = 0.0
    compiled: bool = False
    summary: str
    steps: int
    hours: float
    rate: float
    average: float

    betas = (0.9, 0.95)
    decay = 0.1

    @property
    @abstractmethod
    def layout(self) -> PictureLayout:
        """Ids and size of the pictures."""

    @abstractmethod
    def draw(self, model: nn.Module, step: int, random: np.random.Generator) -> PictureBatch:
        """The pictures of a step."""

    def build(self, requirements: Mapping[str, Path]) -> TrainableDecoder:
        sizes = (self.width, self.inner, self.layers, self.heads, self.context)
        model = TrainableDecoder(DecoderShape(self.layout.vocabulary, *sizes), self.layout.config(), self.dropout)
        if self.compiled:
            model.quicken()
        return model

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, TrainableDecoder)
        captions, cells, weights = self.draw(model, step, random)
        dropped = random.random(len(captions)) < self.empty
        prompts = ["" if drop else caption for drop, caption in zip(dropped, captions, strict=True)]
        losses = nats(model, self.layout, PictureBatch(prompts, cells), random)
        return losses.mean() if weights is None else (losses * weights).sum() / weights.sum()

    def hidden(self, model: nn.Module) -> list[nn.Parameter]:
        """Every matrix of the layers."""
        assert isinstance(model, TrainableDecoder)
        return [weight for weight in model.layers.parameters() if weight.ndim == 2]

    def groups(self, model: nn.Module) -> list[ParameterGroup]:
        """Matrices decay. The embedding does not, because most of its rows are not in a batch."""
        assert isinstance(model, TrainableDecoder)
        hidden = {id(p) for p in self.hidden(model)}
        rest = [p for p in model.parameters() if id(p) not in hidden]
        plain = [p for p in rest if p.ndim < 2 or p is model.embed]
        matrices = [p for p in rest if p.ndim >= 2 and p is not model.embed]
        return [{"params": matrices, "weight_decay": self.decay}, {"params": plain, "weight_decay": 0.0}]

    def export(self, model: nn.Module, folder: Path) -> None:
        """Write the decoder, and round the model to the written values."""
        assert isinstance(model, TrainableDecoder)
        model.export(folder)


def nats(
    model: TrainableDecoder, layout: PictureLayout, batch: PictureBatch, random: np.random.Generator | None = None
) -> Float[Tensor, "B n"]:
    """Cross-entropy of each cell, in nats, given the caption and the cells before it.

    Args:
        random: draws orders and groups of a model with queries, whose cells know those of earlier groups. Without it
            all pictures have one order, and each cell is a group.
    """
    prompts = [layout.prompt("", caption) for caption in batch.captions]
    if layout.queries:
        return _nats_by_query(model, layout, prompts, batch.cells, random)
    written, places = layout.written(batch.cells), layout.places()
    read = int(places[-1])
    rows, length = len(prompts), -(-(max(map(len, prompts)) + read) // PAD) * PAD
    ids = torch.full((rows, length), layout.empty)
    for row, (prompt, tokens) in enumerate(zip(prompts, written, strict=True)):
        ids[row, : len(prompt)] = torch.tensor(prompt)
        ids[row, len(prompt) : len(prompt) + read] = tokens[:read]
    first = torch.tensor([len(prompt) - 1 for prompt in prompts])
    states = model(ids)[torch.arange(rows)[:, None], first[:, None] + places]
    logits = model.logits(states, layout.codes)
    return functional.cross_entropy(logits.flatten(0, 1), batch.cells.flatten(), reduction="none").view(rows, -1)


def _nats_by_query(
    model: TrainableDecoder,
    layout: PictureLayout,
    prompts: Sequence[Sequence[int]],
    cells: Int[Tensor, "B n"],
    random: np.random.Generator | None,
) -> Float[Tensor, "B n"]:
    """Cross-entropy of each cell as its query predicts it, in one pass over prompt, cells and queries.

    A cell attends to the prompt and to the cells of groups up to its own; a query to the prompt, the cells of earlier
    groups and the queries of its group. Source: arXiv:2507.01957, section 3.2.
    """
    lengths = torch.tensor([len(prompt) for prompt in prompts])[:, None]
    rows, count = cells.shape
    first = -(-(int(lengths.max()) + 2 * count) // PAD) * PAD - 2 * count
    ids = torch.full((rows, first), layout.empty)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt)
    queries = torch.arange(layout.query, layout.vocabulary)
    places = torch.arange(first).expand(rows, -1)
    behind = lengths + torch.arange(count)
    if random is None:
        groups = torch.from_numpy(np.random.default_rng(0).permutation(count)).expand(rows, -1)
    else:
        groups = torch.from_numpy(np.stack([random_groups(random, count) for _ in range(rows)]))
    # Kinds of columns, in the order of the rows: entries of the prompt (group -1), cells, queries.
    before = torch.where(places < lengths, -1, count)  # padding is in a group behind all others
    keys, query = torch.cat([before, groups], 1)[:, None], groups[:, :, None]
    known = torch.cat([keys <= query, torch.zeros(rows, count, count, dtype=torch.bool)], 2)
    asked = torch.cat([keys < query, groups[:, None] == query], 2)
    begun = torch.ones(first, first + 2 * count, dtype=torch.bool).tril().expand(rows, -1, -1)
    sees = torch.cat([begun, known, asked], 1)
    read = torch.cat([ids, cells, queries.expand(rows, -1)], 1)
    states = model(read, places=torch.cat([places, behind, behind], 1), sees=sees)[:, -count:]
    logits = model.logits(states, layout.codes)
    return functional.cross_entropy(logits.flatten(0, 1), cells.flatten(), reduction="none").view(rows, -1)


def random_groups(random: np.random.Generator, cells: int) -> Int64[np.ndarray, " n"]:
    """Return the group of each cell, in a random order: an eighth as many groups as cells, up to as many.

    The logarithm of the number of groups is uniform, and so are the places where they part.
    """
    count = round(float(np.exp(random.uniform(np.log(max(1, cells / 8)), np.log(cells)))))
    ends = np.sort(random.choice(np.arange(1, cells), count - 1, replace=False))
    groups = np.empty(cells, dtype=np.int64)
    groups[random.permutation(cells)] = np.searchsorted(ends, np.arange(cells), side="right")
    return groups


@torch.no_grad()
def sample(
    model: TrainableDecoder,
    layout: PictureLayout,
    captions: Sequence[str],
    random: np.random.Generator,
    scale: float = 1.0,
) -> Int[Tensor, "B n"]:
    """Draw pictures of captions at temperature 1, with guidance.

    The prompts of a batch must have one length, so captions are grouped by length.
    """
    groups: dict[int, list[int]] = {}
    for index, caption in enumerate(captions):
        groups.setdefault(len(caption.split()), []).append(index)
    pictures = torch.zeros(len(captions), layout.cells, dtype=torch.long)
    for members in groups.values():
        prompt = torch.tensor([layout.prompt("", captions[index]) for index in members])
        pictures[members] = _sample(model, layout, prompt, random, scale)
    return pictures


def _sample(
    model: TrainableDecoder,
    layout: PictureLayout,
    prompt: Int[Tensor, "B P"],
    random: np.random.Generator,
    scale: float,
) -> Int[Tensor, "B n"]:
    branches = [prompt, torch.tensor([layout.prompt("", "")] * len(prompt))][: 1 + (scale != 1.0)]
    memories = [[Memory() for _ in model.layers] for _ in branches]
    cells = torch.zeros(len(prompt), layout.cells, dtype=torch.long)
    places = layout.places().tolist()
    for place in range(layout.cells):
        since = places[place - 1] if place else 0
        new = [layout.written(cells)[:, since : places[place]] if place else branch for branch in branches]
        rows = [model(ids, memory)[:, -1] for ids, memory in zip(new, memories, strict=True)]
        logits = [model.logits(row, layout.codes) for row in rows]
        mixed = logits[0] if scale == 1.0 else torch.lerp(logits[1], logits[0], scale)
        sums = mixed.double().softmax(-1).cumsum(-1)
        uniform = torch.from_numpy(random.random(len(prompt)))[:, None]
        cells[:, place] = torch.searchsorted(sums, uniform * sums[:, -1:]).clamp_max(layout.codes - 1)[:, 0]
    return cells


def nearest(pictures: Float[Tensor, "a n"], train: Float[Tensor, "b n"]) -> Float[Tensor, " a"]:
    """Root mean square difference of each picture to the nearest training picture."""
    distance: Tensor = torch.cdist(pictures.flatten(1), train.flatten(1)).amin(1)
    return distance / math.sqrt(pictures.shape[1])


# Models of handwritten digits, a token a pixel: `stride train backbone digits-s` and `digits-l`.


LAYOUT = PictureLayout(digits.SIDE, digits.SIDE, digits.LEVELS, digits.VOCABULARY)
CHECKED = 200
"""Pictures that are drawn for the figures on memorising."""


@dataclass(frozen=True, kw_only=True)
class DigitRecipe(PictureRecipe):
    """Real digits, captioned with their class. A share of ``moved`` is shifted by a pixel, against memorising."""

    moved: float = 0.5

    source = "scikit-learn digits (UCI, CC BY 4.0)"

    @property
    def layout(self) -> PictureLayout:
        return LAYOUT

    def draw(self, model: nn.Module, step: int, random: np.random.Generator) -> PictureBatch:
        train = digits.load("train")
        chosen = random.integers(len(train.labels), size=self.batch)
        levels = train.levels[chosen].copy()
        for row in np.flatnonzero(random.random(self.batch) < self.moved):
            levels[row] = _moved(levels[row], int(random.integers(2)), int(random.choice((-1, 1))))
        return PictureBatch([digits.caption(int(label)) for label in train.labels[chosen]], _cells(levels))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        assert isinstance(model, TrainableDecoder)
        train, held_out = digits.load("train"), digits.load("held-out")
        cells = {"train": _cells(train.levels[: len(held_out.labels)]), "held_out": _cells(held_out.levels)}
        labels = {"train": train.labels[: len(held_out.labels)], "held_out": held_out.labels}
        bits = {
            f"bits_{name}": float(
                nats(model, LAYOUT, PictureBatch([digits.caption(c) for c in labels[name]], x)).mean() / NATS_PER_BIT
            )
            for name, x in cells.items()
        }
        captions = [digits.caption(index % digits.CLASSES) for index in range(CHECKED)]
        drawn = sample(model, LAYOUT, captions, np.random.default_rng(0))
        real = _cells(train.levels).float()
        near, usual = nearest(drawn.float(), real), nearest(_cells(held_out.levels).float(), real)
        copies = float((near == 0).float().mean())
        return {**bits, "copies": copies, "nearest_drawn": float(near.mean()), "nearest_held_out": float(usual.mean())}


def _cells(levels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Tensor:
    return torch.from_numpy(levels.reshape(len(levels), -1).astype(np.int64))


def _moved(
    levels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], axis: int, by: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Shift a picture by a pixel if the line that leaves it is empty; return it unchanged otherwise."""
    leaving = levels.take(-1 if by > 0 else 0, axis)
    return np.roll(levels, by, axis) if leaving.max() == 0 else levels


SMALL = DigitRecipe(
    summary="digits of 8x8 pixels, a token a pixel, 0.34 M parameters",
    width=96,
    inner=256,
    layers=3,
    heads=3,
    context=256,
    batch=64,
    dropout=0.15,
    steps=900,
    hours=0.5,
    rate=3e-3,
    average=0.99,
)
RECIPES.register("digits-s")(SMALL)
RECIPES.register("digits-l")(
    replace(
        SMALL,
        summary="digits of 8x8 pixels, a token a pixel, 1.2 M parameters",
        width=160,
        inner=416,
        layers=4,
        heads=5,
        dropout=0.2,
        steps=1000,
        hours=1.0,
        rate=2e-3,
    )
)
