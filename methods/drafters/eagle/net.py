"""The net of a feature drafter: a decoder layer that predicts the target's next hidden row.

Symbols: E width, H heads, D their width, J tapped layers, B or G branches or sequences, N entries, T stored and new
ones, R rows with logits, V vocabulary, K ids proposed. Entry i
is the pair of token i + 1 and the target's row i. Its output stands for row i + 1, and gives token i + 2.
Sources: EAGLE-1, arXiv:2401.15077, section 3.1; EAGLE-3, arXiv:2503.01840, section 3.2; the released ``cnets``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast, final

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.capabilities import Capabilities, Tap
from stridebench.harness.errors import ContractError, WeightsError
from stridebench.harness.kernels import int8
from stridebench.harness.kernels.packed_linear import Product, product
from stridebench.methods.drafters import checkpoint
from stridebench.methods.drafters.eagle import published
from stridebench.methods.drafters.eagle.published import FeatureNetShape, N


class Packed(nn.Module):
    """A linear layer for inference, by `product`."""

    def __init__(self, weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None) -> None:
        super().__init__()
        self._product: Product = product(weight, bias)
        self._out = len(weight)

    def forward(self, x: Float[Tensor, "B N I"]) -> Float[Tensor, "B N O"]:
        shape = (*x.shape[:2], self._out)
        return self._product(x.flatten(0, 1)).reshape(shape) if x.numel() else x.new_empty(shape)


class RootMeanSquareNorm(nn.Module):
    """Root mean square norm."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class HeadNorm(nn.Module):
    """A norm of each head's query or key.

    Args:
        heads: H; 1: one weight for all heads, by root mean square.
        width: D.
    """

    def __init__(self, heads: int, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(heads, 1, width))
        self.bias = nn.Parameter(torch.zeros(heads, 1, width)) if heads > 1 else None

    def forward(self, x: Float[Tensor, "B H N D"]) -> Float[Tensor, "B H N D"]:
        if self.bias is None:
            return functional.rms_norm(x, x.shape[-1:], eps=self.eps) * self.weight.to(x.dtype)
        return functional.layer_norm(x, x.shape[-1:]) * self.weight.to(x.dtype) + self.bias.to(x.dtype)


def rotate(
    x: Float[Tensor, "B H N D"], positions: Int[Tensor, " N"], rates: Float[Tensor, " R"], sharpness: float = 1.0
) -> Float[Tensor, "B H N D"]:
    """Rotate by positions as Llama does: dimension j with j + D / 2, by ``rates[j]`` a position."""
    angles = positions[:, None] * rates
    cos, sin = (angles.cos() * sharpness).to(x.dtype), (angles.sin() * sharpness).to(x.dtype)
    left, right = x.chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def rotate_cells(
    x: Float[Tensor, "B H N D"], places: Int[Tensor, " N"], side: int, theta: float
) -> Float[Tensor, "B H N D"]:
    """Rotate as LlamaGen: neighbouring dimensions, half by a cell's row, half by its column; 0 before the first cell.

    Args:
        places: of the cells in raster order, negative in the prompt.
        side: cells a side.
    """
    half = x.shape[-1] // 2
    rates = theta ** (-torch.arange(0, half, 2, device=x.device) / half)
    cells = places.clamp_min(0)
    angles = torch.cat([(cells // side)[:, None] * rates, (cells % side)[:, None] * rates], -1)
    inside = ((places >= 0) & (places < side * side))[:, None]
    cos, sin = ((inside * table).to(x.dtype) for table in (angles.cos(), angles.sin()))
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)


EAGLE3_TAPS: tuple[Tap, ...] = (2, "middle", -4)
"""Layers of the target that EAGLE-3 reads if a drafter's configuration names none."""


def taps_of(features: str) -> tuple[Tap, ...]:
    """Return the target's layers that an EAGLE-3 drafter reads: those that a published folder names, or EAGLE-3's.

    A folder that cannot be read has EAGLE-3's; `read` says why.
    """
    try:
        config = json.loads((Path(features).expanduser() / "config.json").read_text(encoding="utf-8"))
        return checkpoint.layers_of(config) or EAGLE3_TAPS
    except (OSError, ValueError, TypeError, AttributeError):
        return EAGLE3_TAPS


def read(folder: Path, make: Callable[[FeatureNetShape], N]) -> N:
    """Return the net in a folder, in fp32.

    Raises:
        WeightsError: ``config.json`` or ``model.safetensors`` is missing, damaged or of another net.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if "hidden_size" in config or "transformer_layer_config" in config:
            return published.read(folder, config, make)
        fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in config.items()}
        net = make(FeatureNetShape(**fields))
        net.load_state_dict(int8.read(folder / "model.safetensors"))
        checkpoint.check_finite(folder, net)
    except (OSError, SafetensorError, RuntimeError, TypeError, ValueError) as error:
        raise WeightsError(
            f"{folder} holds no feature drafter ({error}). Make one: `stride train drafter` lists the recipes"
        ) from error
    return net


Attend = Callable[..., Tensor]
"""From queries [B, H, N, D], keys and values [B, H_kv, N, D] of new entries to attention outputs [B, H, N, D]; of a
layer behind the first one, with its number as ``layer``."""


class FeatureDrafterNet(nn.Module):
    """The weights; ``ids`` are the ids that it proposes, empty if it proposes all.

    ``mask_hidden`` [J, F] stands for the hidden rows that masks do not have.
    """

    ids: Int[Tensor, " K"]

    def __init__(self, shape: FeatureNetShape) -> None:
        super().__init__()
        self.shape, width, heads, kv = shape, shape.width, shape.heads, shape.kv_heads
        eagle3 = shape.kind == "eagle3"
        taken = shape.taps * shape.target_width if eagle3 else 2 * width
        if shape.joined:
            self.join = nn.Linear(taken, width, bias=shape.joined_bias and not eagle3)
        if eagle3:
            self.unembed = nn.Linear(width, shape.kept, bias=False)
        if eagle3 or shape.pair_norm:
            self.norm_token, self.norm_feature = (
                RootMeanSquareNorm(width, shape.eps),
                RootMeanSquareNorm(width, shape.eps),
            )
        if eagle3 or shape.normed_output:
            self.norm = RootMeanSquareNorm(width, shape.eps)
        if shape.entry_norm:
            self.norm_entry = RootMeanSquareNorm(width, shape.eps)
        if shape.tap_norm:
            sizes = [taken] if shape.tap_norm == "all" else [shape.target_width] * shape.taps
            self.norm_taps = nn.ModuleList(RootMeanSquareNorm(size, shape.eps) for size in sizes)
        if shape.head_norm:
            whole = shape.head_norm == "whole"
            self.norm_q, self.norm_k = (HeadNorm(n if whole else 1, shape.depth, shape.eps) for n in (heads, kv))
        self.qkv = nn.Linear((1 + eagle3) * width, (heads + 2 * kv) * shape.depth, bias=shape.qkv_bias)
        self.out = nn.Linear(heads * shape.depth, width, bias=shape.out_bias)
        self.norm_inner = RootMeanSquareNorm(width, shape.eps)
        self.gate_up = nn.Linear(width, 2 * shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, width, bias=False)
        self.embed = nn.Parameter(torch.zeros(shape.vocabulary, width)) if shape.vocabulary else None
        if shape.mask >= 0:
            self.mask_hidden = nn.Parameter(torch.randn(shape.taps, shape.target_width))
        self.deeper = nn.ModuleList(FeatureDrafterNet(shape.behind) for _ in range(shape.deeper))
        self._packed_unembedding: Packed | None = None
        self.register_buffer("ids", torch.zeros(shape.kept, dtype=torch.long))

    @classmethod
    def load(cls, folder: Path) -> FeatureDrafterNet:
        """Return the net in a folder, in fp32."""
        return read(folder, cls).eval().requires_grad_(False)

    def packed(self) -> FeatureDrafterNet:
        """Return this net for inference, its products packed for a few rows. It keeps no weights to train or save."""
        for name, layer in list(self.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(self, name, Packed(layer.weight.data, None if layer.bias is None else layer.bias.data))
        for behind in self.deeper:
            cast(FeatureDrafterNet, behind).packed()
        return self

    def forward(
        self,
        tokens: Float[Tensor, "B N E"],
        features: Float[Tensor, "B N J F"],
        positions: Int[Tensor, " N"],
        attend: Attend,
    ) -> Float[Tensor, "B N E"]:
        """Return the next features.

        Args:
            features: the target's taps, or the net's output (J = 1).
        """
        if self.shape.kind == "eagle1":
            pair = [tokens, features[:, :, 0]]
            if self.shape.pair_norm:
                pair = [self.norm_token(pair[0]), self.norm_feature(pair[1])]
            x = kept = self.join(torch.cat(pair, -1)) if self.shape.joined else pair[1]
            read = self.norm_entry(x) if self.shape.entry_norm else x
        else:
            x = features[:, :, 0] if features.shape[2] == 1 else self.join(self._normed(features).flatten(2))
            feature = self.norm_feature(x)
            read, kept = torch.cat([self.norm_token(tokens), feature], -1), feature if self.shape.normed_residual else x
        x = kept + self.out(self._attended(self.qkv(read), positions, attend))
        gate, up = self.gate_up(self.norm_inner(x)).chunk(2, -1)
        x = x + self.down(functional.silu(gate) * up)
        for number, behind in enumerate(self.deeper, 1):
            x = behind(tokens, x[:, :, None], positions, partial(attend, layer=number))
        return cast(Tensor, self.norm(x) if self.shape.normed_output else x)

    def _normed(self, taps: Float[Tensor, "B N J F"]) -> Float[Tensor, "B N J F"]:
        if self.shape.tap_norm == "all":
            return cast(Tensor, self.norm_taps[0](taps.flatten(2)).view(taps.shape))
        if self.shape.tap_norm == "each":
            return torch.stack([norm(taps[:, :, j]) for j, norm in enumerate(self.norm_taps)], 2)
        return taps

    def logits(self, features: Float[Tensor, "B N E"], unembed: Float[Tensor, "U E"]) -> Float[Tensor, "B N K"]:
        """Return the logits of the ids proposed; those of eagle1 by ``unembed``, the target's rows of those ids."""
        return functional.linear(features, unembed) if self.shape.kind == "eagle1" else self.headed(features)

    def headed(self, features: Float[Tensor, "B N E"]) -> Float[Tensor, "B N K"]:
        """Return the logits by the head of eagle3."""
        return cast(Tensor, self.unembed(features if self.shape.normed_output else self.norm(features)))

    def head(self, tied: TiedEmbeddings) -> Callable[[Tensor], Tensor]:
        """Return `logits` for inference, for a net with one target: the unembedding is packed once."""
        if self.shape.kind == "eagle3":
            return self.headed
        if self._packed_unembedding is None:
            self._packed_unembedding = Packed(tied.unembed[self.ids] if self.shape.kept else tied.unembed)
        product, lift = self._packed_unembedding, tied.lift
        return product if lift is None else lambda rows: product(lift(rows))

    def _attended(self, qkv: Tensor, positions: Tensor, attend: Attend) -> Float[Tensor, "B N E"]:
        shape, heads, kv = self.shape, self.shape.heads, self.shape.kv_heads
        split = qkv.view(*qkv.shape[:2], heads + 2 * kv, -1).transpose(1, 2)
        turned = split[:, : heads + kv]
        if shape.head_norm:
            turned = torch.cat([self.norm_q(turned[:, :heads]), self.norm_k(turned[:, heads:])], 1)
        if shape.side:
            turned = rotate_cells(turned, positions, shape.side, shape.theta)
        else:
            turned = rotate(turned, positions, self._rates(turned), shape.sharpness)
        out = attend(turned[:, :heads], turned[:, heads:], split[:, heads + kv :])
        return out.transpose(1, 2).flatten(2)

    def _rates(self, like: Tensor) -> Float[Tensor, " R"]:
        if self.shape.rates:
            return torch.tensor(self.shape.rates, device=like.device)
        half = self.shape.depth // 2
        return self.shape.theta ** (-torch.arange(half, device=like.device) / half)


FIRST = 512
"""Entries allocated at first; a full buffer doubles."""


@final
class FeatureCache(Cache):
    """One sequence over the target's tokens but the first.

    The branch without the condition reads of the prompt what the shape's ``unconditional`` says, and attends to no
    earlier entry. Its features there are zeros, or the target's rows of that branch.

    Args:
        net: in the type of ``embed``.
        negative: tokens of the prompt of the target's branch without the condition.
    """

    def __init__(
        self,
        net: FeatureDrafterNet,
        tied: TiedEmbeddings,
        capabilities: Capabilities,
        prompt: int,
        negative: int = 0,
    ) -> None:
        self._net, self._embed = net, tied.embed if net.embed is None else net.embed
        self._head = net.head(tied)
        self._capabilities = capabilities
        rows = net.shape.unconditional == "rows" and negative > 0
        self._first = max(0, prompt - max(negative, 1)) if rows else max(0, prompt - 2)
        """The first entry that the branch without the condition sees."""
        self._blank = self._first if rows else prompt - 1
        """The number of entries whose features are zeros there."""
        layers, heads = 1 + net.shape.deeper, net.shape.kv_heads
        self._entries = tied.embed.new_empty(layers, 2, capabilities.branches, heads, 0, net.shape.depth)
        self._before = prompt - 1 if net.shape.side else 0
        """Entries before the first cell, where cells rotate."""
        self._length = 0

    @torch.inference_mode()
    def extend(self, window: Window) -> Rows:
        """Extend as the contract says; the window has features [N, G, J, E], with J = 1 for rows of `Rows.hidden`.

        With masks, the features of all rows behind the first one with logits are ``mask_hidden``.

        Raises:
            ContractError: without features, or past the context.
        """
        count, features = len(window.tokens), window.features
        if features is None or self._length + count > self._capabilities.context:
            raise ContractError(
                f"a feature drafter reads a hidden row with each token, and {self._capabilities.context} entries at "
                f"most; found {count} tokens behind {self._length} entries"
                f"{'' if features is not None else ' and no rows'}"
            )
        mask, features = self._mask(window), features.transpose(0, 1).to(self._embed.dtype)
        hidden = max(0, self._blank - self._length)
        if hidden and len(features) > 1:
            visible = functional.pad(features[1:, hidden:], (0, 0, 0, 0, min(hidden, count), 0))
            features = torch.cat([features[:1], visible])
        if self._net.shape.mask >= 0 and window.rows > 1:
            masks = self._net.mask_hidden.expand(len(features), window.rows - 1, -1, -1)
            features = torch.cat([features[:, : 1 - window.rows], masks], 1)
        ids = window.tokens * (window.tokens < len(self._embed)) if self._before else window.tokens
        tokens = functional.embedding(ids, self._embed).expand(len(features), -1, -1)
        out = self._net(tokens, features, window.positions - self._before, partial(self._attend, mask))
        self._length += count
        return Rows(self._logits(out[:, count - window.rows :]), out.transpose(0, 1)[:, :, None])

    def _attend(self, mask: Tensor, query: Tensor, keys: Tensor, values: Tensor, layer: int = 0) -> Tensor:
        keys, values = self._store(keys, values, layer)
        return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)

    def _logits(self, out: Float[Tensor, "G R E"]) -> Float[Tensor, "R V"]:
        """Mix the branches; -inf for ids never proposed."""
        logits = self._head(out)
        mixed = logits[0] if len(logits) == 1 else torch.lerp(logits[1], logits[0], self._capabilities.guidance)
        if not len(self._net.ids):
            return mixed
        return mixed.new_full((len(mixed), self._capabilities.vocabulary), float("-inf")).index_copy(
            1, self._net.ids, mixed
        )

    def _store(self, keys: Tensor, values: Tensor, layer: int) -> Float[Tensor, "two G H T D"]:
        """Add the new keys and values of a layer behind those stored; returns all."""
        end = self._length + keys.shape[2]
        if end > self._entries.shape[4]:
            room = max(FIRST, 2 * self._entries.shape[4], end)
            buffer = self._entries.new_zeros(*self._entries.shape[:4], room, self._entries.shape[5])
            buffer[..., : self._length, :] = self._entries[..., : self._length, :]
            self._entries = buffer
        own = self._entries[layer]
        own[0, :, :, self._length : end], own[1, :, :, self._length : end] = keys, values
        return own[:, :, :, :end]

    def _mask(self, window: Window) -> Bool[Tensor, "G one N T"]:
        count, branches = len(window.tokens), self._capabilities.branches
        mask = torch.ones(branches, 1, count, self._length + count, dtype=torch.bool, device=window.tokens.device)
        if window.sees is None:
            mask = mask.tril(self._length)
        else:
            mask[:, :, :, window.base :] = window.sees
        hidden = max(0, self._first - self._length)
        mask[1:, :, hidden:, : self._first] = False
        return mask

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """Keep entries as the contract says."""
        self._length = length + len(entries)
        if tuple(entries) != tuple(range(len(entries))):
            index = torch.tensor(entries, device=self._entries.device) + length
            self._entries[..., length : self._length, :] = self._entries.index_select(4, index)
