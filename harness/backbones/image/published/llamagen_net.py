"""The forward of LlamaGen and of Tar's de-tokenizer over the slot cache.

Source: Sun et al. 2024, arXiv:2406.06525, section 2.3; FoundationVision/LlamaGen at ce98ec4, ``gpt.py``.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from stridebench.harness.backbones.image.published.llamagen_modules import GPT, Shape, vocabulary
from stridebench.harness.backbones.slots.net import Net, SlotInputs, SlotLayer
from stridebench.harness.backbones.slots.packed import PackedLayer, PackedWindow, layers
from stridebench.harness.backbones.slots.tapped import TappedNet
from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.cache import Rows
from stridebench.harness.errors import UsageError


@final
class LlamaGenNet(TappedNet):
    """The forward.

    Args:
        gpt: in evaluation mode.
        prompt: vectors of the first P positions, which replace the ids there.
        chosen: layers that run; None: all.
    """

    kind = "llamagen"

    def __init__(
        self, gpt: GPT, prompt: Float[Tensor, "P E"] | None = None, chosen: Sequence[int] | None = None
    ) -> None:
        self.gpt = gpt
        self._chosen = tuple(range(gpt.shape.layers)) if chosen is None else tuple(chosen)
        self.layers = len(self._chosen)
        self._prompt = prompt
        self._readers: Sequence[Any] = ()
        self._turns = _turns(gpt.shape, gpt.output.weight)

    def bind(self, prompt: Float[Tensor, "P E"]) -> LlamaGenNet:
        """The same weights with a prompt."""
        return LlamaGenNet(self.gpt, prompt, self._chosen)

    def pick(self, layers: Sequence[int]) -> LlamaGenNet:
        """The same weights with these layers only."""
        return LlamaGenNet(self.gpt, self._prompt, [self._chosen[index] for index in layers])

    def tied_embeddings(self) -> TiedEmbeddings:
        """Rows of codes, then of the prompt's ids: their vectors for classes, else zeros; the head has codes alone."""
        gpt, more = self.gpt, vocabulary(self.gpt.shape) - self.gpt.shape.codes
        embed, unembed = (functional.pad(w, (0, 0, 0, more)) for w in (gpt.tok_embeddings.weight, gpt.output.weight))
        if gpt.shape.kind == "c2i":
            embed[gpt.shape.codes :] = gpt.classes
        return TiedEmbeddings(embed, unembed)

    def joins(self, other: Net) -> bool:
        """The same layers, behind any prompt."""
        return isinstance(other, LlamaGenNet) and other.gpt is self.gpt and other._chosen == self._chosen

    def packed(self, tokens: Int[Tensor, " N"], positions: Int[Tensor, " N"], parts: Sequence[PackedWindow]) -> Rows:
        """Several sequences in one pass (see `packed`), each behind its own prompt."""
        joined = copy.copy(self)
        joined._readers = [part.net for part in parts]
        return joined._packed_rows(SlotInputs(tokens, positions, None, layers(parts, 1)), parts)

    def _normed(self, x: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        normed: Tensor = self.gpt.norm(x)
        return normed

    def _logits(self, last: Float[Tensor, "R E"]) -> Float[Tensor, "R V"]:
        """The head has no logits for ids of the prompt's entries, which get 0."""
        shape = self.gpt.shape
        return functional.pad(self.gpt.output(last), (0, vocabulary(shape) - shape.codes))

    def _through(self, inputs: SlotInputs, entering: dict[int, Tensor]) -> Float[Tensor, "N E"]:
        if not inputs.slots or not isinstance(inputs.slots[0], PackedLayer):
            starts = [self._start(inputs.tokens, inputs.positions)]
        else:
            split = (torch.split(rows, inputs.slots[0].counts) for rows in (inputs.tokens, inputs.positions))
            starts = [net._start(*rows) for net, *rows in zip(self._readers, *split, strict=True)]
        x, turns = (torch.cat(rows) for rows in zip(*starts, strict=True))
        for depth, (index, slot) in enumerate(zip(self._chosen, inputs.slots, strict=True)):
            if depth in entering:
                entering[depth] = x
            x = self._layer(index, x, turns, inputs.mask, slot)
        return x

    def _start(self, tokens: Int[Tensor, " n"], positions: Int[Tensor, " n"]) -> tuple[Tensor, Tensor]:
        """Vectors of new entries [n, E], and how they are turned [n, 1, D / 2, 2]; nothing where they are not."""
        prompt = self._prompt
        if prompt is None:
            raise UsageError("this model has no cache without a condition; open a prompt")
        place = (positions - len(prompt) + 1).clamp(0, self.gpt.shape.side**2)
        turns = positions.new_empty(0) if self._turns is None else self._turns[place][:, None]
        return self._embed(tokens, positions, prompt), turns

    def _embed(self, tokens: Tensor, positions: Tensor, prompt: Tensor) -> Float[Tensor, "N E"]:
        gpt = self.gpt
        cells = gpt.tok_embeddings(tokens.clamp_max(gpt.shape.codes - 1))
        x = torch.where((positions < len(prompt))[:, None], prompt[positions.clamp_max(len(prompt) - 1)], cells)
        if gpt.shape.kind == "tar":
            x = x + gpt.abs_pe[0, positions.clamp_max(gpt.abs_pe.shape[1] - 1)]
        return x

    def _layer(self, index: int, x: Tensor, turns: Tensor, mask: Tensor | None, slot: Any) -> Tensor:
        layer: Any = self.gpt.layers[index]
        count, heads = len(x), self.gpt.shape.heads
        query, key, value = layer.attention.wqkv(layer.attention_norm(x)).view(count, 3, heads, -1).unbind(1)
        if len(turns):
            query, key = _turn(query, turns), _turn(key, turns)
        rows = query, key, value
        if isinstance(slot, PackedLayer):
            split = (torch.split(part, slot.counts) for part in rows)
            attended = torch.cat([_attend(*own) for own in zip(*split, slot.masks, slot.slots, strict=True)])
        else:
            attended = _attend(*rows, mask, slot)
        x = x + layer.attention.wo(attended.reshape(count, -1))
        out: Tensor = x + layer.feed_forward(layer.ffn_norm(x))
        return out


def _attend(
    query: Float[Tensor, "n H D"], key: Tensor, value: Tensor, mask: Tensor | None, slot: SlotLayer
) -> Float[Tensor, "n H D"]:
    """Attention of one sequence, whose new keys and values go into its slots."""
    keys, values = slot.update(key.transpose(0, 1)[None], value.transpose(0, 1)[None])
    causal = mask is None and len(query) > 1
    attended = functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None], keys, values, attn_mask=mask, is_causal=causal
    )
    return attended[0].transpose(0, 1)


def _turns(shape: Shape, like: Tensor) -> Float[Tensor, "T+1 D/2 2"] | None:
    """Cosines and sines of each cell's row and column, half of the width each. Both are 0 in a prompt, as published."""
    if shape.kind == "tar":
        return None
    half = shape.width // shape.heads // 2
    rates = 1.0 / 10000 ** (torch.arange(0, half, 2)[: half // 2].float() / half)
    angles = torch.outer(torch.arange(shape.side).float(), rates)
    rows, columns = angles[:, None].expand(-1, shape.side, -1), angles[None].expand(shape.side, -1, -1)
    grid = torch.cat([rows, columns], -1).flatten(0, 1)
    cells = torch.stack([grid.cos(), grid.sin()], -1)
    return torch.cat([cells.new_zeros(1, *cells.shape[1:]), cells]).to(like.device)


def _turn(x: Float[Tensor, "N H D"], turns: Float[Tensor, "N 1 D/2 2"]) -> Float[Tensor, "N H D"]:
    """Rotate neighbours of the width, in fp32 at least."""
    turns = turns.to(torch.promote_types(x.dtype, torch.float32))
    first, second = x.to(turns.dtype).view(*x.shape[:-1], -1, 2).unbind(-1)
    cos, sin = turns.unbind(-1)
    turned = torch.stack([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.flatten(-2).to(x.dtype)
