"""The net of a block drafter: its layers, the heads that correct its rows, and its cache.

J layers of the target are fused into one vector a token, which every layer of the drafter reads as a key and a value.
The queries are the rows of the block: the last emitted token, the anchor, and masks behind it. They see the context
and, unless a layer is causal, each other in both directions. Keys and values of the block are thrown away; those of
the context stay.
Symbols: B rows of a block, M entries of the context, P new ones, J tapped layers, E width, H heads, D their width, V
vocabulary, r rank of a head, C rows that a convolution reads, n rows of any kind.
Sources: z-lab/dflash, ``model.py``; deepseek-ai/DeepSpec, ``modeling/dspark/qwen3``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import cast, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.capabilities import Capabilities
from stridebench.harness.errors import ContractError, warn_unread
from stridebench.harness.kernels.packed_linear import Product, product
from stridebench.methods.drafters import checkpoint
from stridebench.methods.drafters.block_shape import (
    READ,
    USUAL,
    WITHOUT_EFFECT,
    BlockDrafterShape,
    read_shape,
    stated_in,
)
from stridebench.methods.drafters.eagle.net import FIRST, Packed, RootMeanSquareNorm, rotate

OF_TARGET = ("embed_tokens.weight", "lm_head.weight")
"""Tensors of a DSpark file that are copies of the target's, which are read from the target."""


@lru_cache(maxsize=16)
def _on(angles: tuple[float, ...], device: torch.device) -> Float[Tensor, " R"]:
    with torch.inference_mode(False):
        return torch.tensor(angles, device=device)


class BlockConvolution(nn.Module):
    """A causal convolution over the rows of a block, before a part of a layer and behind it (DFlash2).

    Each row adds to the kernels; neighbouring numbers share what it adds. Before a training it is the identity.
    """

    def __init__(self, shape: BlockDrafterShape) -> None:
        super().__init__()
        self._block, self._grouped = shape.block, shape.grouped
        self.base_kernel = nn.Parameter(torch.zeros(2, shape.convolved, shape.width))
        self.base_kernel.data[:, 0] = 1
        added = 2 * shape.convolved * shape.width // shape.grouped
        self.kernel_projection = nn.Linear(shape.width, added, bias=False)
        nn.init.zeros_(self.kernel_projection.weight)

    def forward(self, x: Float[Tensor, "G N E"], part: Callable[[Tensor], Tensor]) -> Float[Tensor, "G N E"]:
        """Return the part's rows; N is a block, or whole blocks one behind the other."""
        added = self.kernel_projection(x).view(*x.shape[:2], *self.base_kernel.shape[:2], -1)
        before, behind = (self.base_kernel + added.repeat_interleave(self._grouped, -1)).unbind(-3)
        return self._convolved(part(self._convolved(x, before)), behind)

    def _convolved(self, x: Float[Tensor, "G N E"], kernel: Float[Tensor, "G N C E"]) -> Float[Tensor, "G N E"]:
        blocks, reach = x.view(len(x), -1, min(self._block, x.shape[1]), x.shape[2]), kernel.shape[2]
        earlier = functional.pad(blocks, (0, 0, reach - 1, 0)).unfold(2, reach, 1).flip(-1)
        return (kernel * earlier.flatten(1, 2).transpose(2, 3)).sum(2)


class BlockLayer(nn.Module):
    """A decoder layer whose queries are rows of blocks; its products have the published names."""

    def __init__(self, shape: BlockDrafterShape, number: int) -> None:
        super().__init__()
        width, depth, inner = shape.width, shape.head_width, shape.inner
        sizes = {"q_proj": shape.heads * depth, "k_proj": shape.kv_heads * depth, "v_proj": shape.kv_heads * depth}
        self.self_attn = nn.ModuleDict({name: nn.Linear(width, size, bias=False) for name, size in sizes.items()})
        self.self_attn["o_proj"] = nn.Linear(shape.heads * depth, width, bias=False)
        self.self_attn.update({f"{part}_norm": RootMeanSquareNorm(depth, shape.eps) for part in "qk"})
        self.mlp = nn.ModuleDict({name: nn.Linear(width, inner, bias=False) for name in ("gate_proj", "up_proj")})
        self.mlp["down_proj"] = nn.Linear(inner, width, bias=False)
        self.input_layernorm = RootMeanSquareNorm(width, shape.eps)
        self.post_attention_layernorm = RootMeanSquareNorm(width, shape.eps)
        self.attention_conv = BlockConvolution(shape) if shape.convolved else None
        self.mlp_conv = BlockConvolution(shape) if shape.convolved else None
        self._depth, self._angles, self._sharpness = depth, shape.angles, shape.sharpness
        self._window = shape.windows[number] if shape.windows else 0
        self._causal = bool(shape.causal) and shape.causal[number]

    def visible(self, entries: int, rows: int, device: torch.device) -> Bool[Tensor, "N S"] | None:
        """Return the entries that rows behind so many attend to, or None for all."""
        if not self._window and not self._causal:
            return None
        keys = torch.arange(entries + rows, device=device)
        ahead = keys - keys[entries:, None]
        seen = ahead <= 0 if self._causal else torch.ones_like(ahead, dtype=torch.bool)
        return seen & (ahead.abs() < self._window) if self._window else seen

    def keys_values(
        self, x: Float[Tensor, "G N E"], positions: Int[Tensor, " N"]
    ) -> tuple[Float[Tensor, "G H N D"], Float[Tensor, "G H N D"]]:
        """Return keys and values of entries, of the context or of normed rows of a block."""
        return self._heads("k", x, positions), self._split(self.self_attn["v_proj"](x))

    def forward(
        self,
        x: Float[Tensor, "G N E"],
        positions: Int[Tensor, " N"],
        keys: Float[Tensor, "G H M D"],
        values: Float[Tensor, "G H M D"],
        visible: Bool[Tensor, "N S"] | None = None,
    ) -> Float[Tensor, "G N E"]:
        """Return the rows of blocks behind this layer.

        Args:
            keys, values: of the context.
            visible: row n marks what it attends to, among the S = M + N entries of context and rows; None: all.
        """

        def attended(rows: Tensor) -> Tensor:
            return self._attended(rows, positions, keys, values, visible)

        normed = self.input_layernorm(x)
        x = x + (attended(normed) if self.attention_conv is None else self.attention_conv(normed, attended))
        normed = self.post_attention_layernorm(x)
        return x + (self._gated(normed) if self.mlp_conv is None else self.mlp_conv(normed, self._gated))

    def _attended(self, x: Tensor, positions: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None) -> Tensor:
        query, (own_keys, own_values) = self._heads("q", x, positions), self.keys_values(x, positions)
        keys, values = torch.cat([keys, own_keys], 2), torch.cat([values, own_values], 2)
        out = functional.scaled_dot_product_attention(query, keys, values, attn_mask=visible, enable_gqa=True)
        return self.self_attn["o_proj"](out.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _gated(self, x: Float[Tensor, "G N E"]) -> Float[Tensor, "G N E"]:
        gated = functional.silu(self.mlp["gate_proj"](x)) * self.mlp["up_proj"](x)
        return self.mlp["down_proj"](gated)  # type: ignore[no-any-return]  # a module's output

    def _heads(self, part: str, x: Tensor, positions: Tensor) -> Float[Tensor, "G H N D"]:
        normed = self.self_attn[f"{part}_norm"](self._split(self.self_attn[f"{part}_proj"](x)))
        return rotate(normed, positions, _on(self._angles, x.device), self._sharpness)

    def _split(self, x: Tensor) -> Float[Tensor, "G H N D"]:
        return x.view(*x.shape[:2], -1, self._depth).transpose(1, 2)


class BlockDrafterNet(nn.Module):
    """The weights, under their published names."""

    def __init__(self, shape: BlockDrafterShape) -> None:
        super().__init__()
        self.shape, width = shape, shape.width
        self._packed_unembedding: Product | None = None
        self.fc = nn.Linear(len(shape.layers) * width, width, bias=False)
        self.hidden_norm, self.norm = RootMeanSquareNorm(width, shape.eps), RootMeanSquareNorm(width, shape.eps)
        self.layers = nn.ModuleList(BlockLayer(shape, number) for number in range(shape.depth))
        if shape.rank:
            self.markov_head = nn.ModuleDict({"markov_w1": nn.Embedding(shape.vocabulary, shape.rank)})
            self.markov_head["markov_w2"] = nn.Linear(shape.rank, shape.vocabulary, bias=False)
        if shape.selector:
            self.candidate_selector = SelectorWeights(shape)
        if shape.confidence:
            read_by_it = width + (shape.rank if shape.confidence == "markov" else 0)
            self.confidence_head = nn.ModuleDict({"proj": nn.Linear(read_by_it, 1)})

    @classmethod
    def load(cls, folder: Path) -> BlockDrafterNet:
        """Return the net in a folder, in fp32.

        Raises:
            WeightsError: a file is missing or damaged, or a key is missing, unknown or misshapen.
        """
        net = cls(read_shape(folder))
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        warn_unread(folder / "config.json", stated_in(config), f"{READ} {WITHOUT_EFFECT} {' '.join(USUAL)}")
        state = {key: value for key, value in checkpoint.tensors(folder).items() if key not in OF_TARGET}
        for key in [key for key in state if key.endswith("_codebook.weight")]:  # as transformers saves them
            state.setdefault(key.removesuffix(".weight"), state.pop(key))
        checkpoint.fill(folder, net, state, {})
        return net.eval().requires_grad_(False)

    def packed(self) -> BlockDrafterNet:
        """Return this net for inference, its products packed for a few rows. It keeps no weights to train or save."""
        layers = [(layer.self_attn, layer.mlp, layer.attention_conv, layer.mlp_conv) for layer in self.decoder]
        for part in (self, *(part for parts in layers for part in parts if part is not None)):
            for name, child in list(part.named_children()):
                if isinstance(child, nn.Linear):
                    part.add_module(name, Packed(child.weight.data))
        return self

    def context(self, features: Float[Tensor, "G M JF"]) -> Float[Tensor, "G M E"]:
        """Return the fused vectors of entries whose J rows lie one behind the other."""
        return self.hidden_norm(self.fc(features))  # type: ignore[no-any-return]

    @property
    def decoder(self) -> list[BlockLayer]:
        """Return its layers."""
        return [cast(BlockLayer, layer) for layer in self.layers]

    def head(self, tied: TiedEmbeddings) -> Product:
        """Return the target's unembedding, packed once for all prompts."""
        if self._packed_unembedding is None:
            self._packed_unembedding = product(tied.unembed)
        return self._packed_unembedding

    def logits(self, head: Callable[[Tensor], Tensor], rows: Float[Tensor, "*n E"]) -> Float[Tensor, "*n V"]:
        """Return the logits of the net's vectors by an unembedding, scaled and capped as its configuration says."""
        logits, cap = head(rows) * self.shape.scaling[1], self.shape.cap
        return cap * torch.tanh(logits / cap) if cap else logits

    @property
    def correction(self) -> MarkovHead | CandidateSelector | None:
        """Return the head that corrects rows by the token before them, or None if it has none."""
        if self.shape.selector:
            own = self.candidate_selector
            parts = own.predecessor_codebook, own.successor_codebook, own.hidden_projection.weight
            return CandidateSelector(*parts, self.shape.candidates)
        if not self.shape.rank:
            return None
        before = cast(nn.Embedding, self.markov_head["markov_w1"]).weight
        after = cast(nn.Linear, self.markov_head["markov_w2"]).weight
        if not self.shape.confidence:
            return MarkovHead(before, after)
        proj = cast(nn.Linear, self.confidence_head["proj"])
        return MarkovHead(before, after, proj.weight[0], proj.bias)


@dataclass(frozen=True)
class MarkovHead:
    """Corrects the logits of a row by the token before it, and says how likely its draft is to be accepted.

    Args:
        before, after: W1 and W2; the logits of a row behind token x are those of the row + W2 W1[x].
        weight, bias: of the confidence, a logistic function of the row's hidden vector (and of W1[x]); None: none.

    Source: DSpark, arXiv:2607.05147; the released ``VanillaMarkov`` and ``AcceptRatePredictor``.
    """

    before: Float[Tensor, "V r"]
    after: Float[Tensor, "V r"]
    weight: Float[Tensor, " c"] | None = None
    bias: Float[Tensor, " one"] | None = None

    def corrected(
        self, logits: Float[Tensor, "*n V"], hidden: Float[Tensor, "*n E"], x: Int[Tensor, "*n"]
    ) -> Float[Tensor, "*n V"]:
        """Return the logits of rows behind the tokens ``x``."""
        return logits + functional.linear(self.before[x], self.after).to(logits.dtype)

    def confidence(self, hidden: Float[Tensor, "*n E"], x: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Return the logit of the acceptance of the draft of each row, which does not depend on that draft."""
        assert self.weight is not None and self.bias is not None, "opened with a confidence head"
        read_by_it = torch.cat([hidden, self.before[x].to(hidden.dtype)], -1)[..., : len(self.weight)]
        return functional.linear(read_by_it, self.weight.to(hidden.dtype)[None])[..., 0] + self.bias.to(hidden.dtype)


class SelectorWeights(nn.Module):
    """The weights of a candidate selector, under their published names."""

    def __init__(self, shape: BlockDrafterShape) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.randn(shape.vocabulary, shape.selector))
        self.successor_codebook = nn.Parameter(torch.zeros(shape.vocabulary, shape.selector))
        self.hidden_projection = nn.Linear(shape.width, shape.selector, bias=False)


@dataclass(frozen=True)
class CandidateSelector:
    """Chooses among the most probable tokens of a row, by its vector and the token before it.

    Args:
        before, after: codebooks of tokens; v behind x gets the logit of the row + sum(before[x] * (h projected) *
            after[v]).
        projection: of the row's vector h.
        candidates: how many tokens of a row may be drafted; all others get no probability.

    Source: z-lab/dflash, ``CandidateSelector`` of DFlash2.
    """

    before: Float[Tensor, "V r"]
    after: Float[Tensor, "V r"]
    projection: Float[Tensor, "r E"]
    candidates: int

    def corrected(
        self, logits: Float[Tensor, "*n V"], hidden: Float[Tensor, "*n E"], x: Int[Tensor, "*n"]
    ) -> Float[Tensor, "*n V"]:
        """Return the logits of rows behind the tokens ``x``; -inf for tokens that are not candidates."""
        expected = self.before[x] * functional.linear(hidden.to(self.projection.dtype), self.projection)
        if self.candidates >= logits.shape[-1]:
            return logits + functional.linear(expected, self.after).to(logits.dtype)
        best = logits.topk(self.candidates, -1)
        scores = best.values + (self.after[best.indices] @ expected[..., None])[..., 0].to(logits.dtype)
        return torch.full_like(logits, -torch.inf).scatter(-1, best.indices, scores)


@final
class BlockCache(Cache):
    """The context of one sequence; entry i is row i of the target, at position i.

    A window is the new tokens with a row of the target for each, and the masks of a block. The last new token is the
    anchor, at the position behind its entry.

    Args:
        net: in the type of the embedding.
    """

    def __init__(self, net: BlockDrafterNet, tied: TiedEmbeddings, capabilities: Capabilities) -> None:
        self._net, self._tied, self._capabilities = net, tied, capabilities
        self._head, shape = net.head(tied), net.shape
        self._entries = tied.embed.new_empty(shape.depth, 2, 1, shape.kv_heads, 0, shape.head_width)
        self._length = 0

    @torch.inference_mode()
    def extend(self, window: Window) -> Rows:
        """Extend as the contract says; the window has features [N, G, J, E], of which masks have none that are read.

        Raises:
            ContractError: without features, or past the context.
        """
        masks = max(0, window.rows - 1)
        new = len(window.tokens) - masks
        if window.features is None or self._length + len(window.tokens) > self._capabilities.context:
            raise ContractError(
                f"a block drafter reads rows of the target with the tokens, and {self._capabilities.context} entries "
                f"at most; found {len(window.tokens)} tokens behind {self._length} entries"
            )
        features = window.features[None, :new, 0].flatten(2).to(self._entries.dtype)
        self._store(self._net.context(features), window.positions[:new])
        hidden = features.new_zeros(len(window.tokens), 1, 1, self._net.shape.width)
        if not window.rows:
            return Rows(features.new_empty(0, self._capabilities.vocabulary), hidden)
        scale = self._net.shape.scaling[0]
        x = functional.embedding(window.tokens[new - 1 :], self._tied.embed)[None] * scale
        positions = window.positions[new - 1] + 1 + torch.arange(window.rows, device=x.device)
        for number, layer in enumerate(self._net.decoder):
            seen = layer.visible(self._length, window.rows, x.device)
            x = layer(x, positions, *self._entries[number, :, :, :, : self._length], seen)
        hidden[new - 1 :, 0, 0] = out = self._net.norm(x)[0]
        return Rows(self._net.logits(self._head, out if self._tied.lift is None else self._tied.lift(out)), hidden)

    def _store(self, context: Float[Tensor, "one P E"], positions: Int[Tensor, " P"]) -> None:
        end = self._length + context.shape[1]
        if end > self._entries.shape[4]:
            sizes = (*self._entries.shape[:4], max(FIRST, 2 * self._entries.shape[4], end), self._entries.shape[5])
            buffer = self._entries.new_zeros(sizes)
            buffer[:, :, :, :, : self._length] = self._entries[:, :, :, :, : self._length]
            self._entries = buffer
        for number, layer in enumerate(self._net.decoder):
            keys, values = layer.keys_values(context, positions)
            self._entries[number, 0, :, :, self._length : end] = keys
            self._entries[number, 1, :, :, self._length : end] = values
        self._length = end

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """Keep the first entries; no row of a block has one.

        Raises:
            ContractError: rows of a block were accepted as entries.
        """
        if entries:
            raise ContractError("a block drafter keeps entries of the target's rows alone; forward a block anew")
        self._length = min(self._length, length)
