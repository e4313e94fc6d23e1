"""The cache of an hourglass: slots on every level, and for each entry the one above that it came from.

Positions and attention masks are kept on the host, because the positions of entries decide which go down a level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.backbones.mesh.published.deepmesh import FACTOR, DeepMesh, Pair
from stridebench.harness.backbones.slots.net import Slots
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.errors import ContractError

Places = npt.NDArray[np.int64]
Sight = npt.NDArray[np.bool_]
"""Row n of [N, T]: the entries, old and new, that the n-th new one attends to."""
TREE = 1024
"""Entries beyond a window: a tree of drafts has several at a position."""


@dataclass
class Level:
    """Entries of one level.

    Args:
        slots: keys and values of the level's layers; then its states before the level below, where there is one; then
            what it gave to the level above, where there is one.
        positions: of the entries.
        owners: the entries of the level above that they represent, ascending.
    """

    slots: Slots
    positions: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)

    def keep(self, entries: Sequence[int]) -> None:
        """Keep these entries, in this order."""
        place = 0
        while place < len(entries) and entries[place] == place:
            place += 1
        if place < len(entries):
            index = torch.tensor(entries[place:], device=self.slots.layers[0].keys.device)
            for layer in self.slots.layers:
                layer.gather(place, index)
        self.slots.length = len(entries)
        self.positions = [self.positions[entry] for entry in entries]
        self.owners = [self.owners[entry] for entry in entries] if self.owners else []


@dataclass(frozen=True, eq=False)
class Conditioned:
    """A model and one point cloud.

    Args:
        rotations: by position.
        cross: keys and values of a level's layers, before it shortens and behind.
    """

    model: DeepMesh
    rotations: Pair
    cross: Sequence[tuple[Sequence[Pair], Sequence[Pair]]]

    @staticmethod
    def of(model: DeepMesh, rotations: Pair, points: Float[Tensor, "n 6"]) -> Conditioned:
        """Run the encoder on a cloud."""
        latents = model.latents(points)
        cross = [
            ([block.consult(latents) for block in level.before()], [block.consult(latents) for block in level.behind()])
            for level in model.levels()
        ]
        return Conditioned(model, rotations, cross)


@final
class HourglassCache(Cache):
    """One stretch of a sequence; it may begin at any position (see `SlidingCache`).

    Args:
        net: the model for its point cloud.
    """

    def __init__(self, net: Conditioned) -> None:
        self._net = net
        sizes = net.model.sizes
        last = len(sizes.layers) - 1
        counts = [n + (n + 1 if at < last else 0) + (at > 0) for at, n in enumerate(sizes.layers)]
        entries = min(sizes.window + TREE, sizes.context)
        self._levels = [Level(Slots(n, -(-entries // FACTOR**at))) for at, n in enumerate(counts)]

    @torch.inference_mode()
    def extend(self, window: Window) -> Rows:
        """One pass after the cached entries; it reads the window's positions and mask on the host."""
        net, top, count = self._net, self._levels[0], len(window.tokens)
        length, context = top.slots.length, top.slots.context
        if length + count > context:
            raise ContractError(
                f"{length} entries are held and {count} more would pass the context of {context}: draft fewer tokens, "
                f"or give a smaller budget"
            )
        if not 0 <= window.base <= length:
            raise ContractError(f"a window has base {window.base} and the cache holds {length} entries")
        sight = np.tri(count, length + count, length, dtype=np.bool_)
        if window.sees is not None:
            sight[:, : window.base] = True
            sight[:, window.base :] = window.sees.cpu().numpy()
        model = net.model
        x = model.transformer["wte"](window.tokens)
        x = _Pass(net, self._levels).run(0, x, np.array(window.positions.tolist()), sight)
        top.slots.length += count
        return Rows(model.lm_head(model.transformer["ln_f"](x[count - window.rows :])))

    @torch.inference_mode()
    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """Each level keeps the entries whose owners the level above keeps."""
        count = self._levels[0].slots.length
        if not 0 <= length <= length + len(entries) <= count or any(not 0 <= e < count - length for e in entries):
            raise ContractError(f"keep({length}, {tuple(entries)}) names entries that are not among the {count} held")
        chosen = [*range(length), *(length + entry for entry in entries)]
        for level, below in zip(self._levels, [*self._levels[1:], None], strict=True):
            level.keep(chosen)
            if below is None:
                return
            places = {entry: place for place, entry in enumerate(chosen)}
            below.owners = [places.get(owner, -1) for owner in below.owners]
            chosen = sorted((e for e, owner in enumerate(below.owners) if owner >= 0), key=below.owners.__getitem__)


@dataclass(frozen=True, eq=False)
class _Pass:
    """One pass of new entries through the levels."""

    net: Conditioned
    levels: Sequence[Level]

    def run(self, at: int, x: Float[Tensor, "N E"], positions: Places, sight: Sight) -> Float[Tensor, "N E"]:
        """The entries of level ``at`` after its last layers; the caller sets the level's length."""
        level, module = self.levels[at], self.net.model.levels()[at]
        places = torch.from_numpy(positions).to(x.device)
        rotation = self.net.rotations[0][places], self.net.rotations[1][places]
        mask = _mask(sight, x)
        before, behind = self.net.cross[at]
        for block, cross, slot in zip(module.before(), before, level.slots.layers, strict=False):
            x = block(x, rotation, mask, cross, slot)
        if module.inner:
            x = x + self._below(at, x, positions, sight)
            for block, cross, slot in zip(module.behind(), behind, level.slots.layers[len(before) :], strict=False):
                x = block(x, rotation, mask, cross, slot)
        level.positions.extend(positions.tolist())
        return x

    def _below(self, at: int, x: Float[Tensor, "N E"], positions: Places, sight: Sight) -> Float[Tensor, "N E"]:
        """What the level below adds to each entry: the result of its own group of three, where that is earlier."""
        level, below, module = self.levels[at], self.levels[at + 1], self.net.model.levels()[at]
        states, _ = level.slots.layers[2 * len(module.pre_layer)].update(x[None, None], x[None, None, :, :0])
        every = np.concatenate([level.positions, positions]).astype(np.int64)
        heads = np.flatnonzero(positions % FACTOR == 0)
        if len(heads):
            below.owners.extend((level.slots.length + heads).tolist())
            pooled = module.downsample["proj"](_gather(states[0, 0], _triples(every, positions[heads], sight[heads])))
            down = self.run(at + 1, pooled, positions[heads] // FACTOR, sight[heads][:, below.owners])
            up = module.upsample["proj"](down)
            below.slots.layers[-1].update(up[None, None], up[None, None, :, :0])
            below.slots.length += len(heads)
        owners = np.array(below.owners)
        own = sight[:, owners] & (every[owners] == (positions - positions % FACTOR)[:, None])
        upsampled = below.slots.layers[-1].keys[0, 0]
        return upsampled.view(len(upsampled), FACTOR, -1)[
            torch.from_numpy(own.argmax(1)), torch.from_numpy(positions % FACTOR)
        ]


def _triples(every: Places, positions: Places, sight: Sight) -> Places:
    """For each row the entries two before, one before and at its position; -1 before the start."""
    entries = np.full((len(positions), FACTOR), -1)
    for back in range(FACTOR):
        own = sight & (every == (positions - back)[:, None])
        entries[:, FACTOR - 1 - back] = np.where(own.any(1), own.argmax(1), -1)
    return entries


def _gather(states: Float[Tensor, "T E"], entries: Places) -> Float[Tensor, "n F"]:
    """States of three entries side by side; zeros where there is none."""
    index = torch.from_numpy(entries).to(states.device)
    return (states[index.clamp(0)] * (index >= 0)[..., None]).flatten(1)


def _mask(sight: Sight, like: Tensor) -> Float[Tensor, "N T"] | None:
    """Additive; None where a single row attends to all entries, or a first window is causal."""
    count, total = sight.shape
    if (count == 1 and sight.all()) or (count == total and np.array_equal(sight, np.tri(count, dtype=np.bool_))):
        return None
    mask = like.new_zeros(count, total)
    return mask.masked_fill_(torch.from_numpy(~sight).to(like.device), float("-inf"))
