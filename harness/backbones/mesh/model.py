"""A decoder of meshes with cross-attention to the latents of a point cloud, as it is trained and stored.

Blocks are Llama's (norms before, rotary positions, SiLU-gated) with a cross-attention between self-attention and the
gated layer, as in BPT's decoder (Weng et al. 2024, arXiv:2411.07025, section 3.3). The input of an entry is the sum of
its token, the block that an offset lies in, and both of the entry before. So a row identifies a vertex whose block is
left out, and one layer can look up what followed it. Without these sums no vertex was copied after 800 steps.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.backbones.mesh import bpt_tokens as mesh
from stridebench.harness.backbones.mesh.layers import Gated, Sizes, angles, attend, consult, norm, split_heads, turn
from stridebench.harness.backbones.mesh.point_encoder import PointEncoder

NOWHERE = mesh.OFFSETS
"""The place of an entry that is no offset: the number after the last block."""


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
        """The table."""
        blocks, offsets = _grid(self.blocks), _grid(self.steps)
        special = self.own.new_zeros(mesh.VOCABULARY - mesh.EOS, self.own.shape[1])
        sums = torch.cat([blocks + self.kinds[0], offsets + self.kinds[1], blocks + self.kinds[2], special])
        return sums + self.own

    def coordinates(self) -> Float[Tensor, "3 S E"]:
        """Rows of the steps of each axis: the sum of a block's row and of a step's within it."""
        return (self.blocks[:, :, None] + self.steps[:, None]).flatten(1, 2)

    def places(self) -> Float[Tensor, "P E"]:
        """What is added to an offset for the block that it lies in; zeros for ``NOWHERE``."""
        return torch.cat([_grid(self.within), self.within.new_zeros(1, self.within.shape[2])])


def block_of(tokens: Int[Tensor, "... N"]) -> Int[Tensor, "... N"]:
    """The block that a token names, -1 where it names none."""
    centre = (tokens >= mesh.CENTRES) & (tokens < mesh.EOS)
    named = torch.where(centre, tokens - mesh.CENTRES, tokens)
    return torch.where(named < mesh.OFFSETS, named, -1)


def is_offset(tokens: Int[Tensor, "... N"]) -> Bool[Tensor, "... N"]:
    """Whether a token is an offset."""
    return (tokens >= mesh.OFFSETS) & (tokens < mesh.CENTRES)


def _grid(axes: Float[Tensor, "3 n E"]) -> Float[Tensor, "m E"]:
    """Rows of all n^3 cells, x slowest."""
    return (axes[0][:, None, None] + axes[1][None, :, None] + axes[2][None, None]).flatten(0, 2)


class Block(nn.Module):
    """A decoder layer."""

    def __init__(self, sizes: Sizes) -> None:
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
        """Causal over whole sequences; ``mask`` [N, N] in place of the causal one."""
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

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.codes = Codes(sizes.width)
        self.before = nn.Linear(sizes.width, sizes.width, bias=False)
        self.encoder = PointEncoder(sizes)
        self.layers = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = norm(sizes.width)
        for name, weight in self.named_parameters():
            if weight.ndim == 2 and name.endswith((".out.weight", "_out.weight", "down.weight")):
                weight.data.mul_((2 * sizes.layers) ** -0.5)

    def forward(self, tokens: Int[Tensor, "B N"], points: Float[Tensor, "B n 6"]) -> Float[Tensor, "B N V"]:
        """Logits after each token of whole sequences, or of pieces of them: only distances of positions matter."""
        table = self.codes()
        return functional.linear(self.states(tokens, points, table), table)

    def latents(self, points: Float[Tensor, "B n 6"]) -> Float[Tensor, "B K E"]:
        """What the decoder reads of point clouds."""
        latents: Tensor = self.encoder(points, self.codes.coordinates() if self.sizes.shared_coordinates else None)
        return latents

    def states(
        self, tokens: Int[Tensor, "B N"], points: Float[Tensor, "B n 6"], table: Float[Tensor, "V E"]
    ) -> Float[Tensor, "B N E"]:
        """The rows that the table is multiplied with."""
        sizes, count = self.sizes, tokens.shape[1]
        latents = self.latents(points)
        x = functional.embedding(tokens, table) + functional.embedding(
            _whereabouts(tokens, sizes.window), self.codes.places()
        )
        x = x + functional.pad(self.before(x[:, :-1]), (0, 0, 1, 0))
        cos, sin = angles(count, sizes.width // sizes.heads)
        mask = _near(count, sizes.window) if 0 < sizes.window < count else None
        for layer in self.layers:
            x = layer(x, latents, cos, sin, mask)
        out: Tensor = self.norm(x)
        return out


def _whereabouts(tokens: Int[Tensor, "B N"], window: int) -> Int[Tensor, "B N"]:
    """The block that each offset lies in: the last one named within reach; ``NOWHERE`` for other tokens."""
    blocks, here = block_of(tokens), torch.arange(tokens.shape[1])
    last = torch.where(blocks >= 0, here, -1).cummax(1).values
    in_reach = (last >= 0) & (here - last < (window or len(here)))
    return torch.where(is_offset(tokens) & in_reach, blocks.gather(1, last.clamp_min(0)), NOWHERE)


def _near(count: int, window: int) -> Tensor:
    """True where a row attends to a row: itself and the ``window`` - 1 before it."""
    ahead = torch.arange(count)[:, None] - torch.arange(count)
    return (ahead >= 0) & (ahead < window)
