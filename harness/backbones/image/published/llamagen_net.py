"""The forward of LlamaGen and of Tar's de-tokenizer over the slot cache.

Source: Sun et al. 2024, arXiv:2406.06525, section 2.3; FoundationVision/LlamaGen at ce98ec4, ``gpt.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from harness.backbones.image.published.llamagen_modules import GPT, Shape, vocabulary
from harness.backbones.slots.net import SlotInputs, SlotLayer
from harness.errors import UsageError


@final
class LlamaGenNet:
    """The forward.

    Args:
        gpt: in evaluation mode.
        prompt: vectors of the first P positions, which replace the ids there.
        layers: which run; None: all.
    """

    kind = "llamagen"

    def __init__(
        self, gpt: GPT, prompt: Float[Tensor, "P E"] | None = None, layers: Sequence[int] | None = None
    ) -> None:
        self.gpt = gpt
        self._chosen = tuple(range(gpt.shape.layers)) if layers is None else tuple(layers)
        self.layers = len(self._chosen)
        self._prompt = prompt
        self._turns = _turns(gpt.shape, gpt.output.weight)

    def bind(self, prompt: Float[Tensor, "P E"]) -> LlamaGenNet:
        """The same weights with a prompt."""
        return LlamaGenNet(self.gpt, prompt, self._chosen)

    def pick(self, layers: Sequence[int]) -> LlamaGenNet:
        """The same weights with these layers only."""
        return LlamaGenNet(self.gpt, self._prompt, [self._chosen[index] for index in layers])

    def __call__(self, inputs: SlotInputs, rows: int) -> Float[Tensor, "R V"]:
        """Logits of the last R rows. The head has no logits for ids of the prompt's entries, which get 0."""
        gpt, prompt, positions = self.gpt, self._prompt, inputs.positions
        if prompt is None:
            raise UsageError("this model has no cache without a condition; open a prompt")
        x = self._embed(inputs.tokens, positions, prompt)
        place = (positions - len(prompt) + 1).clamp(0, gpt.shape.side**2)
        turns = None if self._turns is None else self._turns[place][:, None]
        for index, slot in zip(self._chosen, inputs.slots, strict=True):
            x = self._layer(index, x, turns, inputs.mask, slot)
        logits = gpt.output(gpt.norm(x[len(x) - rows :]))
        return functional.pad(logits, (0, vocabulary(gpt.shape) - gpt.shape.codes))

    def _embed(self, tokens: Tensor, positions: Tensor, prompt: Tensor) -> Float[Tensor, "N E"]:
        gpt = self.gpt
        cells = gpt.tok_embeddings(tokens.clamp_max(gpt.shape.codes - 1))
        x = torch.where((positions < len(prompt))[:, None], prompt[positions.clamp_max(len(prompt) - 1)], cells)
        if gpt.shape.kind == "tar":
            x = x + gpt.abs_pe[0, positions.clamp_max(gpt.abs_pe.shape[1] - 1)]
        return x

    def _layer(self, index: int, x: Tensor, turns: Tensor | None, mask: Tensor | None, slot: SlotLayer) -> Tensor:
        layer: Any = self.gpt.layers[index]
        count, heads = len(x), self.gpt.shape.heads
        query, key, value = layer.attention.wqkv(layer.attention_norm(x)).view(count, 3, heads, -1).unbind(1)
        if turns is not None:
            query, key = _turn(query, turns), _turn(key, turns)
        keys, values = slot.update(key.transpose(0, 1)[None], value.transpose(0, 1)[None])
        causal = mask is None and count > 1
        attended = functional.scaled_dot_product_attention(
            query.transpose(0, 1)[None], keys, values, attn_mask=mask, is_causal=causal
        )
        x = x + layer.attention.wo(attended[0].transpose(0, 1).reshape(count, -1))
        out: Tensor = x + layer.feed_forward(layer.ffn_norm(x))
        return out


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
