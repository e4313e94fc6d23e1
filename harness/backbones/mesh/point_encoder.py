"""The encoder of point clouds: some distant points gather their surroundings and then attend to one another."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from stridebench.harness.backbones.mesh.layers import Gated, Sizes, consult, norm, split_heads
from stridebench.harness.backbones.mesh.point_cloud import POINT

OCTAVES = 6
"""Frequencies of a position's sines: pi to 32 pi."""
REACH = (0.1, 0.2, 0.4, 0.8)
"""Widths of the heads' neighbourhoods before training, in the units of positions."""


class PointEncoder(nn.Module):
    """Points to latents, which do not depend on the points' order.

    A latent starts from a point, as in the point queries of Zhang et al. 2023 (arXiv:2301.11445), so that it knows
    exactly where the surface is. The decoder did not use learned queries alone after 1,000 steps.
    """

    def __init__(self, sizes: Sizes) -> None:
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
        self.layers = nn.ModuleList(_Mixer(sizes) for _ in range(sizes.encoder_layers))
        self.norm = norm(width)
        self.coordinates = norm(width) if sizes.shared_coordinates else None

    def forward(
        self, points: Float[Tensor, "B n 6"], coordinates: Float[Tensor, "3 S E"] | None = None
    ) -> Float[Tensor, "B K E"]:
        """Latents of each cloud.

        Args:
            points: in fp32 for weights of any type.
            coordinates: rows of the steps of each axis, for an encoder that shares them with the decoder.
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
    """Farthest-point sampling: the point farthest from the centre, then always the one farthest from those chosen."""
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
    """Position and normal, and sines of the position in octaves."""
    rates = torch.pi * 2.0 ** torch.arange(OCTAVES, device=points.device)
    phase = (points[..., :3, None] * rates.to(points)).flatten(-2)
    return torch.cat([points, phase.sin(), phase.cos()], -1)


def facing_rows(points: Float[Tensor, "B n 6"], coordinates: Float[Tensor, "3 S E"]) -> Float[Tensor, "B n E"]:
    """Sum over the axes of the row of a point's step, weighted by how much its face looks along the axis.

    On a face that looks along an axis, this is the row of the face's own coordinate, as tokens of its corners have it.
    """
    size = coordinates.shape[1]
    steps = ((points[..., :3] + 1) / 2 * size - 0.5).round().long().clamp(0, size - 1)
    weights = points[..., 3:].abs().to(coordinates)
    rows = [weights[..., axis, None] * coordinates[axis][steps[..., axis]] for axis in range(3)]
    return rows[0] + rows[1] + rows[2]


class _Mixer(nn.Module):
    """A layer of self-attention among latents."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.norm = norm(sizes.width)
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width, bias=False)
        self.out = nn.Linear(sizes.width, sizes.width, bias=False)
        self.mlp = Gated(sizes)

    def forward(self, x: Float[Tensor, "B K E"]) -> Float[Tensor, "B K E"]:
        """Input and output of equal shape."""
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(self.norm(x)).chunk(3, -1))
        out: Tensor = self.mlp(x + self.out(consult(q, k, v)))
        return out
