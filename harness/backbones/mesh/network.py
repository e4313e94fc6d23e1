"""A decoder of meshes with cross-attention to the latents of a point cloud, as it is trained and stored.

Blocks are Llama's (norms before, rotary positions, SiLU-gated) with a cross-attention between self-attention and the
gated layer, as in BPT's decoder (Weng et al. 2024, arXiv:2411.07025, section 3.3). The input of an entry is the sum of
its token, the block that an offset lies in, and both of the entry before. So a row identifies a vertex whose block is
left out, and one layer can look up what followed it. Without these sums no vertex was copied after 800 steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.backbones.base import LayeredAdapter
from stridebench.harness.backbones.mesh import bpt_tokens as mesh
from stridebench.harness.core.cache import Cache
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError, WeightsError

POINT = 6
"""Numbers a point: position and unit normal."""


class PointCloudAdapter(LayeredAdapter):
    """An adapter whose prompts are points in [-1, 1] with unit normals."""

    @classmethod
    def modality(cls, params: Mapping[str, Any]) -> str:
        return "mesh"

    @classmethod
    def reads_text(cls, params: Mapping[str, Any]) -> bool:
        return False

    def cache(self) -> Cache:
        raise UsageError(f"the backbone {self.name!r} needs a point cloud: open a prompt of a mesh task")

    def _points(self, prompt: Prompt, dtype: torch.dtype, count: int | None = None) -> Float[Tensor, "n 6"]:
        """Return the points of a prompt; UsageError if they are missing, of another shape or number, or not finite."""
        points = prompt.condition
        if (
            points is None
            or points.ndim != 2
            or points.shape[1] != POINT
            or not len(points)
            or len(points) != (count or len(points))
        ):
            condition = "no condition" if points is None else f"a condition of shape {points.shape}"
            advice = "Use a mesh task." if count is None else f"Give the mesh task points={count}."
            raise UsageError(
                f"the backbone {self.name!r} reads points [{count or 'n'}, {POINT}] (position and normal); the prompt "
                f"{prompt.id!r} has {condition}. {advice}"
            )
        cloud = torch.as_tensor(points, dtype=dtype, device=self.device)
        if not bool(cloud.isfinite().all()):  # reads the device, once a prompt
            raise UsageError(f"the points of the prompt {prompt.id!r} are not all finite; leave that prompt out")
        return cloud


EPS = 1e-6


@dataclass(frozen=True)
class MeshSizes:
    """Sizes of a mesh model.

    Args:
        window: number of last positions, its position included, whose entries a row attends to, or 0 for all.
        shared_coordinates: whether the encoder adds to a point the decoder's rows of its quantised coordinates, which
            are weighted by the normal.
    """

    width: int = 128
    layers: int = 12
    heads: int = 4
    hidden: int = 384
    latents: int = 96
    encoder_layers: int = 2
    context: int = 1024
    window: int = 0
    shared_coordinates: bool = False

    @staticmethod
    def read(name: str, fields: Mapping[str, Any]) -> MeshSizes:
        """Return the sizes in a configuration file, or raise WeightsError."""
        names = set(MeshSizes.__dataclass_fields__)
        whole = all(isinstance(value, int) for value in fields.values())
        if set(fields) | {"shared_coordinates"} != names or not whole:
            raise WeightsError(
                f"{name}: the configuration of a mesh model gives {', '.join(sorted(names))} as whole numbers; found "
                f"{dict(fields)}"
            )
        return MeshSizes(**fields)


def split_heads(x: Float[Tensor, "B N W"], heads: int) -> Float[Tensor, "B H N D"]:
    """Split rows into heads."""
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


def attend(
    q: Float[Tensor, "B H N D"], k: Float[Tensor, "B H N D"], v: Float[Tensor, "B H N D"], mask: Tensor | None
) -> Float[Tensor, "B N E"]:
    """Compute causal or masked attention in fp32, because a CPU runs its backward pass in half the time of bf16."""
    with torch.autocast("cpu", enabled=False):
        attended = functional.scaled_dot_product_attention(
            q.float(), k.float(), v.float(), attn_mask=mask, is_causal=mask is None
        )
    return attended.transpose(1, 2).flatten(2)


def consult(
    q: Float[Tensor, "B H N D"], k: Float[Tensor, "B H M D"], v: Float[Tensor, "B H M D"], bias: Tensor | None = None
) -> Float[Tensor, "B N E"]:
    """Attend to all of few entries by plain products, whose backward pass is ten times faster than the fused one."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    weights = (scores if bias is None else scores + bias).softmax(-1)
    attended: Tensor = weights.to(v.dtype) @ v
    return attended.transpose(1, 2).flatten(2)


def turn(x: Float[Tensor, "... D"], cos: Float[Tensor, "... D"], sin: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
    """Rotate pairs (d, d + D/2)."""
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def angles(context: int, size: int) -> tuple[Float[Tensor, "T D"], Float[Tensor, "T D"]]:
    """Return cosines and signed sines for `turn`, by position."""
    rate = 10_000.0 ** (-torch.arange(0, size, 2).float() / size)
    angle = torch.arange(context).float()[:, None] * rate
    return torch.cat([angle.cos()] * 2, 1), torch.cat([-angle.sin(), angle.sin()], 1)


def norm(width: int) -> nn.LayerNorm:
    """Return a LayerNorm without bias: its backward pass is one kernel on a CPU, a fifth of the time of RMSNorm's."""
    return nn.LayerNorm(width, EPS, bias=False)


class Gated(nn.Module):
    """A norm and a SiLU-gated layer, added to its input."""

    def __init__(self, sizes: MeshSizes) -> None:
        super().__init__()
        self.norm = norm(sizes.width)
        self.gate_up = nn.Linear(sizes.width, 2 * sizes.hidden, bias=False)
        self.down = nn.Linear(sizes.hidden, sizes.width, bias=False)

    def forward(self, x: Float[Tensor, "B N E"]) -> Float[Tensor, "B N E"]:
        gate, up = self.gate_up(self.norm(x)).chunk(2, -1)
        out: Tensor = x + self.down(functional.silu(gate) * up)
        return out


OCTAVES = 6
"""Frequencies of a position's sines: pi to 32 pi."""
REACH = (0.1, 0.2, 0.4, 0.8)
"""Widths of the heads' neighbourhoods before training, in the units of positions."""


class PointEncoder(nn.Module):
    """Points to latents, which do not depend on the points' order.

    A latent starts from a point, as in the point queries of Zhang et al. 2023 (arXiv:2301.11445), so that it knows
    the surface exactly. The decoder did not use learned queries alone after 1,000 steps.
    """

    def __init__(self, sizes: MeshSizes) -> None:
        super().__init__()
        width = sizes.width
        self.heads, self.latents = sizes.heads, sizes.latents
        self.lift = nn.Sequential(
            nn.Linear(POINT + 6 * OCTAVES, 2 * width), nn.SiLU(), nn.Linear(2 * width, width), norm(width)
        )
        reach = torch.tensor([REACH[head % len(REACH)] for head in range(sizes.heads)])
        self.narrow = nn.Parameter(-2 * reach.log())
        self.read_q = nn.Linear(width, width, bias=False)
        self.read_kv = nn.Linear(width, 2 * width, bias=False)
        self.read_out = nn.Linear(width, width, bias=False)
        self.mlp = Gated(sizes)
        self.layers = nn.ModuleList(_LatentMixer(sizes) for _ in range(sizes.encoder_layers))
        self.norm = norm(width)
        self.coordinates = norm(width) if sizes.shared_coordinates else None

    def forward(
        self, points: Float[Tensor, "B n 6"], coordinates: Float[Tensor, "3 S E"] | None = None
    ) -> Float[Tensor, "B K E"]:
        """Return the latents of each cloud, whose points are fp32 for weights of any type.

        ``coordinates`` are rows of the steps of each axis, for an encoder that shares them with the decoder.
        """
        chosen = spread_out(points[..., :3], self.latents)
        features = self.lift(waves(points).to(self.read_q.weight))
        if self.coordinates is not None and coordinates is not None:
            features = features + self.coordinates(facing_rows(points, coordinates))
        anchors = points.gather(1, chosen[..., None].expand(-1, -1, POINT))
        x = features.gather(1, chosen[..., None].expand(-1, -1, features.shape[-1]))
        distances = torch.cdist(anchors[..., :3], points[..., :3]).square()
        bias = (-0.5 * self.narrow.exp()[:, None, None] * distances[:, None]).to(x)
        keys, values = (split_heads(part, self.heads) for part in self.read_kv(features).chunk(2, -1))
        x = x + self.read_out(consult(split_heads(self.read_q(x), self.heads), keys, values, bias))
        x = self.mlp(x)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.norm(x)
        return out


def spread_out(places: Float[Tensor, "B n 3"], count: int) -> Int[Tensor, "B K"]:
    """Sample the farthest points: the one farthest from the centre, then always the one farthest from those chosen."""
    distances = (places - places.mean(1, keepdim=True)).square().sum(-1)
    chosen = [distances.argmax(1)]
    distances = torch.full_like(distances, torch.inf)
    rows = torch.arange(len(places), device=places.device)
    while len(chosen) < count:
        last = places[rows, chosen[-1]]
        distances = torch.minimum(distances, (places - last[:, None]).square().sum(-1))
        chosen.append(distances.argmax(1))
    return torch.stack(chosen, 1)


def waves(points: Float[Tensor, "... 6"]) -> Float[Tensor, "... F"]:
    """Return position and normal, and sines of the position in octaves."""
    rates = torch.pi * 2.0 ** torch.arange(OCTAVES, device=points.device)
    phase = (points[..., :3, None] * rates.to(points)).flatten(-2)
    return torch.cat([points, phase.sin(), phase.cos()], -1)


def facing_rows(points: Float[Tensor, "B n 6"], coordinates: Float[Tensor, "3 S E"]) -> Float[Tensor, "B n E"]:
    """Return the sum over the axes of the row of a point's step, weighted by how much its face looks along the axis.

    On a face that looks along an axis, this is the row of that face's coordinate, as tokens of its corners have it.
    """
    size = coordinates.shape[1]
    steps = ((points[..., :3] + 1) / 2 * size - 0.5).round().long().clamp(0, size - 1)
    weights = points[..., 3:].abs().to(coordinates)
    rows = [weights[..., axis, None] * coordinates[axis][steps[..., axis]] for axis in range(3)]
    return rows[0] + rows[1] + rows[2]


class _LatentMixer(nn.Module):
    def __init__(self, sizes: MeshSizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.norm = norm(sizes.width)
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width, bias=False)
        self.out = nn.Linear(sizes.width, sizes.width, bias=False)
        self.mlp = Gated(sizes)

    def forward(self, x: Float[Tensor, "B K E"]) -> Float[Tensor, "B K E"]:
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(self.norm(x)).chunk(3, -1))
        out: Tensor = self.mlp(x + self.out(consult(q, k, v)))
        return out


NOWHERE = mesh.OFFSETS
"""The place of an entry that is not an offset: the number after the last block."""


class Codes(nn.Module):
    """One table for input and output. A token's row is the sum of the rows of its digits, of its kind and of itself.

    Sixteen steps an axis give offsets a common geometry, which 4,096 free rows would have to find one by one.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.blocks = nn.Parameter(0.05 * torch.randn(3, mesh.BLOCKS, width))
        self.steps = nn.Parameter(0.05 * torch.randn(3, mesh.STEPS, width))
        self.kinds = nn.Parameter(0.05 * torch.randn(3, width))
        self.own = nn.Parameter(torch.zeros(mesh.VOCABULARY, width))
        self.within = nn.Parameter(0.05 * torch.randn(3, mesh.BLOCKS, width))
        with torch.no_grad():
            self.own[mesh.EOS :].normal_(std=0.05)

    def forward(self) -> Float[Tensor, "V E"]:
        blocks, offsets = _grid(self.blocks), _grid(self.steps)
        special = self.own.new_zeros(mesh.VOCABULARY - mesh.EOS, self.own.shape[1])
        sums = torch.cat([blocks + self.kinds[0], offsets + self.kinds[1], blocks + self.kinds[2], special])
        return sums + self.own

    def coordinates(self) -> Float[Tensor, "3 S E"]:
        """Return the rows of the steps of each axis: the sum of a block's row and of a step's within it."""
        return (self.blocks[:, :, None] + self.steps[:, None]).flatten(1, 2)

    def places(self) -> Float[Tensor, "P E"]:
        """Return the row that is added to an offset for the block that it lies in; zeros for ``NOWHERE``."""
        return torch.cat([_grid(self.within), self.within.new_zeros(1, self.within.shape[2])])


def block_of(tokens: Int[Tensor, "... N"]) -> Int[Tensor, "... N"]:
    """Return the block that a token names, or -1 if it names none."""
    centre = (tokens >= mesh.CENTRES) & (tokens < mesh.EOS)
    named = torch.where(centre, tokens - mesh.CENTRES, tokens)
    return torch.where(named < mesh.OFFSETS, named, -1)


def is_offset(tokens: Int[Tensor, "... N"]) -> Bool[Tensor, "... N"]:
    """Return whether a token is an offset."""
    return (tokens >= mesh.OFFSETS) & (tokens < mesh.CENTRES)


def _grid(axes: Float[Tensor, "3 n E"]) -> Float[Tensor, "m E"]:
    """Return the rows of all n^3 cells, x slowest."""
    return (axes[0][:, None, None] + axes[1][None, :, None] + axes[2][None, None]).flatten(0, 2)


class MeshBlock(nn.Module):
    """A decoder layer."""

    def __init__(self, sizes: MeshSizes) -> None:
        super().__init__()
        width = sizes.width
        self.heads = sizes.heads
        self.norm = norm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm_cross = norm(width)
        self.cross_q = nn.Linear(width, width, bias=False)
        self.cross_kv = nn.Linear(width, 2 * width, bias=False)
        self.cross_out = nn.Linear(width, width, bias=False)
        self.mlp = Gated(sizes)

    def forward(self, x: Tensor, latents: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """Run the layer causally over whole sequences, or with ``mask`` [N, N] in place of the causal one."""
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(self.norm(x)).chunk(3, -1))
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        x = x + self.out(attend(q, k, v, mask))
        query = split_heads(self.cross_q(self.norm_cross(x)), self.heads)
        keys, values = (split_heads(part, self.heads) for part in self.cross_kv(latents).chunk(2, -1))
        x = x + self.cross_out(consult(query, keys, values))
        out: Tensor = self.mlp(x)
        return out


class MeshModel(nn.Module):
    """Encoder and decoder as they are trained and stored."""

    def __init__(self, sizes: MeshSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.codes = Codes(sizes.width)
        self.before = nn.Linear(sizes.width, sizes.width, bias=False)
        self.encoder = PointEncoder(sizes)
        self.layers = nn.ModuleList(MeshBlock(sizes) for _ in range(sizes.layers))
        self.norm = norm(sizes.width)
        for name, weight in self.named_parameters():
            if weight.ndim == 2 and name.endswith((".out.weight", "_out.weight", "down.weight")):
                weight.data.mul_((2 * sizes.layers) ** -0.5)

    def forward(self, tokens: Int[Tensor, "B N"], points: Float[Tensor, "B n 6"]) -> Float[Tensor, "B N V"]:
        """Return logits after each token of whole sequences, or of pieces: only distances of positions matter."""
        table = self.codes()
        return functional.linear(self.states(tokens, points, table), table)

    def latents(self, points: Float[Tensor, "B n 6"]) -> Float[Tensor, "B K E"]:
        latents: Tensor = self.encoder(points, self.codes.coordinates() if self.sizes.shared_coordinates else None)
        return latents

    def states(
        self, tokens: Int[Tensor, "B N"], points: Float[Tensor, "B n 6"], table: Float[Tensor, "V E"]
    ) -> Float[Tensor, "B N E"]:
        sizes, count = self.sizes, tokens.shape[1]
        latents = self.latents(points)
        x = functional.embedding(tokens, table) + functional.embedding(
            _whereabouts(tokens, sizes.window), self.codes.places()
        )
        x = x + functional.pad(self.before(x[:, :-1]), (0, 0, 1, 0))
        cos, sin = angles(count, sizes.width // sizes.heads)
        mask = None
        if 0 < sizes.window < count:  # a row attends to itself and the ``window`` - 1 rows before it
            ahead = torch.arange(count)[:, None] - torch.arange(count)
            mask = (ahead >= 0) & (ahead < sizes.window)
        for layer in self.layers:
            x = layer(x, latents, cos, sin, mask)
        out: Tensor = self.norm(x)
        return out


def _whereabouts(tokens: Int[Tensor, "B N"], window: int) -> Int[Tensor, "B N"]:
    """Return the block that each offset lies in: the last one named within reach; ``NOWHERE`` for other tokens."""
    blocks, here = block_of(tokens), torch.arange(tokens.shape[1])
    last = torch.where(blocks >= 0, here, -1).cummax(1).values
    in_reach = (last >= 0) & (here - last < (window or len(here)))
    return torch.where(is_offset(tokens) & in_reach, blocks.gather(1, last.clamp_min(0)), NOWHERE)
