"""The mesh decoder as a `Net` over slots: one object a condition, whose cross keys and values are made once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from harness.backbone import Ends
from harness.backbones.nets._mesh_decoder import Decoder
from harness.backbones.nets._mesh_parts import EPS, split_heads
from harness.backbones.nets._tapped import TappedNet
from harness.backbones.nets.mesh import NOWHERE, block_of, is_offset


@final
class MeshNet(TappedNet):
    """The forward for one point cloud.

    Args:
        decoder: the weights. latents: of the cloud, [K, E].

    The last slot layer holds position, token and place of the entries: so a row knows, in a tree as in a chain, which
    entry came before it, in which block it lies, and how far back an entry is.
    """

    kind = "mesh"

    def __init__(self, decoder: Decoder, latents: Float[Tensor, "K E"]) -> None:
        self.decoder = decoder
        self.latents = latents
        self.layers = len(decoder.layers) + 1
        pairs = [layer.cross_kv(latents).chunk(2, -1) for layer in decoder.layers]
        self._cross = [tuple(split_heads(part[None], decoder.heads).contiguous() for part in pair) for pair in pairs]

    @property
    def depth(self) -> int:
        """Without the layer of slots that holds no keys."""
        return len(self.decoder.layers)

    def ends(self) -> Ends:
        """The decoder's."""
        return self.decoder.ends()

    def pick(self, layers: Sequence[int]) -> MeshNet:
        """The same weights with these layers only."""
        return MeshNet(self.decoder.pick(layers), self.latents)

    def _logits(self, last: Float[Tensor, "R E"]) -> Float[Tensor, "R V"]:
        return self.decoder.head(last) if len(last) else last.new_empty(0, len(self.decoder.table))

    def _normed(self, x: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        return functional.layer_norm(x, x.shape[1:], self.decoder.norm, None, EPS)

    def _through(
        self,
        tokens: Int[Tensor, " N"],
        positions: Int[Tensor, " N"],
        mask: Float[Tensor, "N T"] | None,
        slots: Sequence[Any],
        entering: dict[int, Tensor],
    ) -> Float[Tensor, "N E"]:
        """All layers; ``entering`` takes what enters those that it has."""
        decoder = self.decoder
        x, mask = self._enter(tokens, positions, mask, slots)
        cos, sin = decoder.cos[positions], decoder.sin[positions]
        width = x.shape[1:]
        for at, (layer, (keys, values), slot) in enumerate(zip(decoder.layers, self._cross, slots, strict=False)):
            if at in entering:
                entering[at] = x
            qkv = layer.qkv(functional.layer_norm(x, width, layer.norm, None, EPS))
            x = layer.out(self._attend(qkv, cos, sin, mask, slot)).add_(x)
            query = layer.cross_q(functional.layer_norm(x, width, layer.norm_cross, None, EPS))
            seen = functional.scaled_dot_product_attention(split_heads(query[None], decoder.heads), keys, values)
            x = layer.cross_out(seen[0].transpose(0, 1).flatten(1)).add_(x)
            gate, up = layer.gate_up(functional.layer_norm(x, width, layer.norm_mlp, None, EPS)).chunk(2, 1)
            x = layer.down(functional.silu(gate).mul_(up)).add_(x)
        return x

    def _attend(self, qkv: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, slot: Any) -> Float[Tensor, "N E"]:
        heads = self.decoder.heads
        parts = qkv.view(len(qkv), 3 * heads, -1)
        turned = parts[:, : 2 * heads]
        turned = (turned * cos).addcmul_(turned.roll(turned.shape[-1] // 2, -1), sin).transpose(0, 1)[None]
        keys, values = slot.update(turned[:, heads:], parts[:, 2 * heads :].transpose(0, 1)[None])
        seen = functional.scaled_dot_product_attention(
            turned[:, :heads], keys, values, attn_mask=mask, is_causal=mask is None and len(qkv) > 1
        )
        return seen[0].transpose(0, 1).flatten(1)

    def _enter(
        self, tokens: Int[Tensor, " N"], positions: Int[Tensor, " N"], mask: Tensor | None, slots: Sequence[Any]
    ) -> tuple[Float[Tensor, "N E"], Tensor | None]:
        """What the rows bring in, and their mask without entries that lie out of reach."""
        decoder, count = self.decoder, len(tokens)
        new = torch.stack([positions, tokens, torch.full_like(tokens, NOWHERE)], 1).float()[None, None]
        notes = slots[-1].update(new, new)[0][0, 0]
        place, token = notes[:, 0].long(), notes[:, 1].long()
        seen = (
            place.new_ones(count, len(place), dtype=torch.bool).tril(len(place) - count) if mask is None else mask == 0
        )
        if decoder.window:
            seen = seen & (place > positions[:, None] - decoder.window)
            mask = decoder.table.new_zeros(seen.shape).masked_fill_(~seen, float("-inf"))
        blocks = block_of(token)
        named, last = torch.where(seen & (blocks >= 0), place, -1).max(1)
        within = torch.where(is_offset(tokens) & (named >= 0), blocks[last], NOWHERE)
        notes[len(place) - count :, 2] = within.to(notes)
        held, parent = torch.where(seen & (place < positions[:, None]), place, -1).max(1)
        x = functional.embedding(tokens, decoder.table) + functional.embedding(within, decoder.places)
        above = functional.embedding(token[parent], decoder.table)
        above += functional.embedding(notes[:, 2].long()[parent], decoder.places)
        return x.addcmul_(decoder.before(above), (held >= 0).to(x)[:, None]), mask
