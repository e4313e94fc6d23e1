"""DeepMesh's decoder in the layout of its published checkpoint, an hourglass that shortens by three, twice; its tokens.

A level runs its first layers over all of its entries. Every third entry, with the two before it, becomes one entry of
the level below. The result is added to that entry and to the two after it, and the level runs its last layers. So no
entry attends to later ones. All layers also attend to the latents of the point cloud.

Tokens are vertices as patch, block and offset ids on 512 steps an axis, in fans around a centre. A vertex is a patch id
(0 to 63), a block id in it (64 to 575) and an offset id in that (576 to 4671); patch and block are left out if they
repeat. A patch id written as 4672 to 4735 starts a fan. The vertex after its centre names all three again.

Source: Zhao et al. 2025, arXiv:2503.15265; `lit_gpt/model_cache.py`, `sample.py` and `sft/datasets/serializaiton.py` of
zhaorw02/DeepMesh at 5c8ac4e.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.backbones.mesh.bpt import Conditioner, EncoderSizes, heads_of, joined
from stridebench.harness.backbones.mesh.network import angles, turn
from stridebench.harness.backbones.slots.net import Slots, check_kept, check_window
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.errors import OutputError
from stridebench.harness.record.outputs import Mesh

PATCHES, BLOCKS, STEPS = 4, 8, 16
"""An axis is cut into patches, these into blocks, these into steps."""
SIZE = PATCHES * BLOCKS * STEPS
"""Steps an axis: 512, nine bits."""
FIRST_BLOCK = PATCHES**3
FIRST_OFFSET = FIRST_BLOCK + BLOCKS**3
FIRST_CENTRE = FIRST_OFFSET + STEPS**3
SOS = FIRST_CENTRE + PATCHES**3
"""The token before every sequence: 4736."""
EOS = SOS + 1
VOCABULARY = EOS + 1
Vertex = tuple[int, int, int]


def decode(tokens: Sequence[int]) -> Mesh:
    """Return the mesh of a sequence, vertices float64 in the middle of their steps in [-1, 1]; the end token closes it.

    Axes are those of the points that the model reads. The released sampler turns points (x, y, z) into (z, x, y) and
    its output (a, b, c) into (c, b, a). So (a, b, c) here is (a, c, b) in the frame of the points. Raises OutputError.
    """
    ids = [int(token) for token in tokens]
    if EOS not in ids:
        raise OutputError(f"the mesh has no end token in {len(ids)} tokens, so it is cut; allow more tokens")
    fans = list(_fans(ids[: ids.index(EOS)]))
    corners = np.array([(fan[0], fan[k], fan[k + 1]) for fan in fans for k in range(1, len(fan) - 1)]).reshape(-1, 3)
    vertices, merged = np.unique(corners, axis=0, return_inverse=True)
    faces = merged.reshape(-1, 3)
    faces = faces[(faces != np.roll(faces, 1, axis=1)).all(1)]
    if not len(faces):
        raise OutputError(f"the {len(ids)} tokens hold no face with three different corners")
    _, first = np.unique(np.sort(faces, 1), axis=0, return_index=True)
    used, places = np.unique(faces[np.sort(first)], return_inverse=True)
    return Mesh(((vertices[used] + 0.5) / SIZE * 2 - 1)[:, [0, 2, 1]], places.reshape(-1, 3))


def _fans(ids: Sequence[int]) -> Iterator[list[Vertex]]:
    """Yield centre and fan of each patch, as steps."""
    fan: list[Vertex] = []
    patch = block = -1
    expected = "patch"
    for place, token in enumerate(ids):
        kind = _kind(token)
        if expected not in (kind, "any") or kind == "special":
            raise OutputError(f"token {place} of the mesh is {token}, where {_ONE_OF[expected]} has to stand")
        if kind == "patch":
            if token >= FIRST_CENTRE and place:
                yield _checked(fan, place)
                fan = []
            patch, expected = token % FIRST_CENTRE, "block"
        elif kind == "block":
            block, expected = token - FIRST_BLOCK, "offset"
        else:
            fan.append(_steps(patch, block, token - FIRST_OFFSET))
            expected = "any"
    if expected != "any":
        raise OutputError(f"the {len(ids)} tokens of the mesh end where {_ONE_OF[expected]} has to stand")
    yield _checked(fan, len(ids))


_ONE_OF = {"patch": "a patch", "block": "a block", "offset": "an offset", "any": "a patch, a block or an offset"}


def _kind(token: int) -> str:
    if token < 0 or token >= SOS:
        return "special"
    if token < FIRST_BLOCK or token >= FIRST_CENTRE:
        return "patch"
    return "block" if token < FIRST_OFFSET else "offset"


def _checked(fan: list[Vertex], place: int) -> list[Vertex]:
    if len(fan) < 3:
        raise OutputError(f"the fan that ends before token {place} has {len(fan)} vertices; a face needs three")
    return fan


def _steps(patch: int, block: int, offset: int) -> Vertex:
    steps = [
        (patch // PATCHES**place % PATCHES) * BLOCKS * STEPS
        + (block // BLOCKS**place % BLOCKS) * STEPS
        + offset // STEPS**place % STEPS
        for place in (2, 1, 0)
    ]
    return steps[0], steps[1], steps[2]


EPS = 1e-5
FACTOR = 3
"""Entries that become one."""
Pair = tuple[Tensor, Tensor]
"""Keys and values [1, H, K, D] of a cross-attention."""


@dataclass(frozen=True)
class DeepMeshSizes:
    """Sizes of a DeepMesh; as published for 0.5 B by default.

    Args:
        layers: of each level, before it shortens; every level but the last has as many again after.
        window: entries, after which the released sampler forgets half of them (see `published.SlidingCache`).
        context: tokens of a mesh, as the released script has them.
    """

    width: int = 1280
    heads: int = 10
    hidden: int = 5120
    layers: tuple[int, ...] = (4, 4, 5)
    window: int = 9000
    context: int = 90_000
    points: int = 16_384
    encoder: EncoderSizes = field(default_factory=EncoderSizes)


class DeepMesh(nn.Module):
    """The parameters, named as in the checkpoint."""

    prompt = SOS
    eos = EOS
    vocabulary = VOCABULARY

    def __init__(self, sizes: DeepMeshSizes) -> None:
        super().__init__()
        self.sizes = sizes
        width = sizes.width
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)
        parts = {
            "wte": nn.Embedding(VOCABULARY, width),
            "h": Hourglass(sizes),
            "ln_f": nn.RMSNorm(width, eps=EPS),
        }
        self.transformer = nn.ModuleDict(parts)
        self.conditioner = Conditioner(sizes.encoder)
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(sizes.encoder.out, width)

    def levels(self) -> list[Hourglass]:
        levels: list[Any] = [self.transformer["h"]]
        while levels[-1].inner:
            levels.append(levels[-1].hourglass)
        return levels

    def latents(self, points: Float[Tensor, "n 6"]) -> Float[Tensor, "K E"]:
        out: Tensor = self.norm(self.linear(self.conditioner(points)))
        return out

    def rotations(self) -> Pair:
        """Return cosines and sines [T, D], through bf16 as in the released code."""
        cos, sin = angles(self.sizes.context, self.sizes.width // self.sizes.heads)
        like = self.lm_head.weight
        return cos.bfloat16().to(like), sin.bfloat16().to(like)


class Hourglass(nn.Module):
    """A level and those below it."""

    def __init__(self, sizes: DeepMeshSizes, level: int = 0) -> None:
        super().__init__()
        width, count = sizes.width, sizes.layers[level]
        self.pre_layer = nn.ModuleList(DeepMeshBlock(sizes) for _ in range(count))
        self.inner: bool = level + 1 < len(sizes.layers)
        if self.inner:
            self.downsample = nn.ModuleDict({"proj": nn.Linear(FACTOR * width, width)})
            self.upsample = nn.ModuleDict({"proj": nn.Linear(width, FACTOR * width)})
            self.hourglass = Hourglass(sizes, level + 1)
            self.post_layer = nn.ModuleList(DeepMeshBlock(sizes) for _ in range(count))

    def before(self) -> Iterable[Any]:
        return self.pre_layer

    def behind(self) -> Iterable[Any]:
        return self.post_layer if self.inner else ()


class DeepMeshBlock(nn.Module):
    """A layer: self-attention, attention to the point cloud, SiLU-gated; each added to its input."""

    def __init__(self, sizes: DeepMeshSizes) -> None:
        super().__init__()
        width = sizes.width
        self.heads = sizes.heads
        self.norm_1, self.norm_cross, self.norm_2 = (nn.RMSNorm(width, eps=EPS) for _ in range(3))
        self.attn = _linears({"attn": (width, 3 * width), "proj": (width, width)})
        self.cross_attn = _linears(
            {"q_proj": (width, width), "kv_proj": (width, 2 * width), "out_proj": (width, width)}
        )
        gated = {"w1": (width, sizes.hidden), "w2": (width, sizes.hidden), "w3": (sizes.hidden, width)}
        self.mlp = nn.ModuleDict({"swiglu": _linears(gated)})

    def consult(self, latents: Float[Tensor, "K E"]) -> Pair:
        keys, values = self.cross_attn["kv_proj"](latents).chunk(2, -1)
        return heads_of(keys, self.heads), heads_of(values, self.heads)

    def forward(
        self, x: Float[Tensor, "N E"], rotation: Pair, mask: Float[Tensor, "N T"] | None, cross: Pair, slot: Any
    ) -> Float[Tensor, "N E"]:
        q, k, v = heads_of(self.attn["attn"](self.norm_1(x)), self.heads).chunk(3, -1)
        q, k = turn(q, *rotation), turn(k, *rotation)
        keys, values = slot.update(k, v)
        causal = mask is None and len(x) > 1
        attended = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=causal)
        x = x + self.attn["proj"](joined(attended))
        query = heads_of(self.cross_attn["q_proj"](self.norm_cross(x)), self.heads)
        x = x + self.cross_attn["out_proj"](joined(functional.scaled_dot_product_attention(query, *cross)))
        gated: Any = self.mlp["swiglu"]
        normed = self.norm_2(x)
        out: Tensor = x + gated["w3"](functional.silu(gated["w1"](normed)) * gated["w2"](normed))
        return out


def _linears(widths: dict[str, tuple[int, int]]) -> nn.ModuleDict:
    return nn.ModuleDict({name: nn.Linear(*width, bias=False) for name, width in widths.items()})


Places = npt.NDArray[np.int64]
Sight = npt.NDArray[np.bool_]
"""Row n of [N, T]: the entries, old and new, that the n-th new one attends to."""
TREE = 1024
"""Entries beyond a window: a tree of drafts has several at a position."""


@dataclass
class HourglassLevel:
    """Entries of one level, and the entries of the level above that they represent, ascending (owners).

    The slots hold keys and values of the level's layers; then its states before the level below, if there is one; then
    its results for the level above, if there is one.
    """

    slots: Slots
    positions: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)

    def keep(self, entries: Sequence[int]) -> None:
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
    """A model and one point cloud: rotations by position, and cross keys and values of layers before and behind."""

    model: DeepMesh
    rotations: Pair
    cross: Sequence[tuple[Sequence[Pair], Sequence[Pair]]]

    @staticmethod
    def of(model: DeepMesh, rotations: Pair, points: Float[Tensor, "n 6"]) -> Conditioned:
        latents = model.latents(points)
        cross = [
            ([block.consult(latents) for block in level.before()], [block.consult(latents) for block in level.behind()])
            for level in model.levels()
        ]
        return Conditioned(model, rotations, cross)


@final
class HourglassCache(Cache):
    """One stretch of a sequence; it may begin at any position (see `published.SlidingCache`)."""

    def __init__(self, net: Conditioned) -> None:
        self._net = net
        sizes = net.model.sizes
        last = len(sizes.layers) - 1
        counts = [n + (n + 1 if at < last else 0) + (at > 0) for at, n in enumerate(sizes.layers)]
        entries = min(sizes.window + TREE, sizes.context)
        self._levels = [HourglassLevel(Slots(n, -(-entries // FACTOR**at))) for at, n in enumerate(counts)]

    @torch.inference_mode()
    def extend(self, window: Window) -> Rows:
        net, top, count = self._net, self._levels[0], len(window.tokens)
        length = top.slots.length
        check_window(window, length, top.slots.context)
        sight = np.tri(count, length + count, length, dtype=np.bool_)
        if window.sees is not None:
            sight[:, : window.base] = True
            sight[:, window.base :] = window.sees.cpu().numpy()
        model = net.model
        x = model.transformer["wte"](window.tokens)
        x = _HourglassPass(net, self._levels).run(0, x, np.array(window.positions.tolist()), sight)
        top.slots.length += count
        return Rows(model.lm_head(model.transformer["ln_f"](x[count - window.rows :])))

    @torch.inference_mode()
    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        check_kept(length, entries, self._levels[0].slots.length)
        chosen = [*range(length), *(length + entry for entry in entries)]
        for level, below in zip(self._levels, [*self._levels[1:], None], strict=True):
            level.keep(chosen)
            if below is None:
                return
            places = {entry: place for place, entry in enumerate(chosen)}
            below.owners = [places.get(owner, -1) for owner in below.owners]
            chosen = sorted((e for e, owner in enumerate(below.owners) if owner >= 0), key=below.owners.__getitem__)


@dataclass(frozen=True, eq=False)
class _HourglassPass:
    net: Conditioned
    levels: Sequence[HourglassLevel]

    def run(self, at: int, x: Float[Tensor, "N E"], positions: Places, sight: Sight) -> Float[Tensor, "N E"]:
        """Return the entries of level ``at`` after its last layers; the caller sets the level's length."""
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
        """Return the addition of the level below to each entry: the result of its group of three, if earlier."""
        level, below, module = self.levels[at], self.levels[at + 1], self.net.model.levels()[at]
        states, _ = level.slots.layers[2 * len(module.pre_layer)].update(x[None, None], x[None, None, :, :0])
        every = np.concatenate([level.positions, positions]).astype(np.int64)
        heads = np.flatnonzero(positions % FACTOR == 0)
        if len(heads):
            below.owners.extend((level.slots.length + heads).tolist())
            index = torch.from_numpy(_triples(every, positions[heads], sight[heads])).to(states.device)
            triples = states[0, 0][index.clamp(0)] * (index >= 0)[..., None]  # zeros before the start
            pooled = module.downsample["proj"](triples.flatten(1))
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
    """Return for each row the entries two before, one before and at its position; -1 before the start."""
    entries = np.full((len(positions), FACTOR), -1)
    for back in range(FACTOR):
        own = sight & (every == (positions - back)[:, None])
        entries[:, FACTOR - 1 - back] = np.where(own.any(1), own.argmax(1), -1)
    return entries


def _mask(sight: Sight, like: Tensor) -> Float[Tensor, "N T"] | None:
    """Return an additive mask, or None if a single row attends to all entries, or a first window is causal."""
    count, total = sight.shape
    if (count == 1 and sight.all()) or (count == total and np.array_equal(sight, np.tri(count, dtype=np.bool_))):
        return None
    mask = like.new_zeros(count, total)
    return mask.masked_fill_(torch.from_numpy(~sight).to(like.device), float("-inf"))
