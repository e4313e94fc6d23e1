"""The weights of a mesh decoder for decoding: fused products, the table, rotations by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from stridebench.harness.backbones.mesh.layers import angles
from stridebench.harness.backbones.mesh.model import Block, MeshModel
from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.packed_linear import Product, product


@dataclass(frozen=True, eq=False)
class Layer:
    """Norms [E] and products of a decoder layer."""

    norm: Tensor
    qkv: Product
    out: Product
    norm_cross: Tensor
    cross_q: Product
    cross_out: Product
    norm_mlp: Tensor
    gate_up: Product
    down: Product
    cross_kv: Product


@dataclass(frozen=True, eq=False)
class FusedWeights:
    """Weights for decoding: table [V, E], places [P, E], rotations [T, 1, D], layers.

    Args:
        heads: of all attentions.
        window: number of last positions whose entries a row attends to; 0: all.
    """

    table: Tensor
    places: Tensor
    before: Product
    head: Product
    norm: Tensor
    cos: Tensor
    sin: Tensor
    layers: tuple[Layer, ...]
    heads: int
    window: int

    @staticmethod
    def of(model: MeshModel) -> FusedWeights:
        """The weights of a trained model, in its type and on its device."""
        sizes, table = model.sizes, model.codes().detach()
        cos, sin = (part[:, None].to(table) for part in angles(sizes.context, sizes.width // sizes.heads))
        layers = tuple(_layer(block) for block in model.layers if isinstance(block, Block))
        return FusedWeights(
            table=table,
            places=model.codes.places().detach(),
            before=product(model.before.weight.data),
            head=product(table),
            norm=model.norm.weight.data,
            cos=cos,
            sin=sin,
            layers=layers,
            heads=sizes.heads,
            window=sizes.window,
        )

    def tied_embeddings(self) -> TiedEmbeddings:
        """The table, as both."""
        return TiedEmbeddings(self.table, self.table)

    def pick(self, layers: Sequence[int]) -> FusedWeights:
        """The same weights with these layers only."""
        return replace(self, layers=tuple(self.layers[index] for index in layers))


def _layer(block: Block) -> Layer:
    linears = (block.qkv, block.out, block.cross_q, block.cross_out, block.mlp.gate_up, block.mlp.down, block.cross_kv)
    qkv, out, cross_q, cross_out, gate_up, down, cross_kv = (product(linear.weight.data) for linear in linears)
    norms = (block.norm.weight.data, block.norm_cross.weight.data, block.mlp.norm.weight.data)
    return Layer(norms[0], qkv, out, norms[1], cross_q, cross_out, norms[2], gate_up, down, cross_kv)
