"""The cache of a feature drafter: keys and values of its one layer, for all branches of guidance at once.

Symbols: G branches, N new entries, T stored and new ones, R rows with logits, J tapped layers, E width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.capabilities import Capabilities
from stridebench.harness.errors import ContractError
from stridebench.methods.drafters.eagle.net import FeatureNet

FIRST = 512
"""Entries allocated at first; a full buffer doubles."""


@final
class FeatureCache(Cache):
    """One sequence over the target's tokens but the first.

    The branch without the condition knows only the last token of the prompt. Its features are zero for entries in the
    prompt, and of these it attends only to the last one.

    Args:
        net: in the type of ``embed``.
        tied: the target's embeddings.
        capabilities: the target's.
        prompt: tokens of the prompt.
    """

    def __init__(
        self,
        net: FeatureNet,
        tied: TiedEmbeddings,
        capabilities: Capabilities,
        prompt: int,
    ) -> None:
        self._net, self._embed = net, tied.embed if net.embed is None else net.embed
        self._head = net.head(tied)
        self._capabilities, self._last = capabilities, prompt - 2
        self._entries = tied.embed.new_empty(2, capabilities.branches, net.shape.kv_heads, 0, net.shape.depth)
        self._before = prompt - 1 if net.shape.side else 0
        """Entries before the first cell, where cells rotate."""
        self._length = 0

    @torch.inference_mode()
    def extend(self, window: Window) -> Rows:
        """As the contract; the window has features [N, G, J, E], with J = 1 for rows of `Rows.hidden`.

        Raises:
            ContractError: without features, or past the context.
        """
        count, features = len(window.tokens), window.features
        if features is None or self._length + count > self._capabilities.context:
            raise ContractError(
                f"a feature drafter reads a hidden row beside each token, and {self._capabilities.context} entries at "
                f"most; found {count} tokens behind {self._length} entries"
                f"{'' if features is not None else ' and no rows'}"
            )
        mask, features = self._mask(window), features.transpose(0, 1).to(self._embed.dtype)
        hidden = max(0, self._last + 1 - self._length)
        if hidden and len(features) > 1:
            visible = functional.pad(features[1:, hidden:], (0, 0, 0, 0, min(hidden, count), 0))
            features = torch.cat([features[:1], visible])
        ids = window.tokens * (window.tokens < len(self._embed)) if self._before else window.tokens
        tokens = functional.embedding(ids, self._embed).expand(len(features), -1, -1)
        out = self._net(tokens, features, window.positions - self._before, partial(self._attend, mask))
        self._length += count
        return Rows(self._logits(out[:, count - window.rows :]), out.transpose(0, 1)[:, :, None])

    def _attend(self, mask: Tensor, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        keys, values = self._store(keys, values)
        return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)

    def _logits(self, out: Float[Tensor, "G R E"]) -> Float[Tensor, "R V"]:
        """The branches mixed; -inf for ids never proposed."""
        logits = self._head(out)
        mixed = logits[0] if len(logits) == 1 else torch.lerp(logits[1], logits[0], self._capabilities.guidance)
        if not len(self._net.ids):
            return mixed
        return mixed.new_full((len(mixed), self._capabilities.vocabulary), float("-inf")).index_copy(
            1, self._net.ids, mixed
        )

    def _store(self, keys: Tensor, values: Tensor) -> Float[Tensor, "two G H T D"]:
        """Add the new keys and values behind those stored; returns all."""
        end = self._length + keys.shape[2]
        if end > self._entries.shape[3]:
            room = max(FIRST, 2 * self._entries.shape[3], end)
            buffer = self._entries.new_zeros(*self._entries.shape[:3], room, self._entries.shape[4])
            buffer[:, :, :, : self._length] = self._entries[:, :, :, : self._length]
            self._entries = buffer
        self._entries[0, :, :, self._length : end], self._entries[1, :, :, self._length : end] = keys, values
        return self._entries[:, :, :, :end]

    def _mask(self, window: Window) -> Bool[Tensor, "G one N T"]:
        count, branches = len(window.tokens), self._capabilities.branches
        mask = torch.ones(branches, 1, count, self._length + count, dtype=torch.bool, device=window.tokens.device)
        if window.sees is None:
            mask = mask.tril(self._length)
        else:
            mask[:, :, :, window.base :] = window.sees
        hidden = max(0, self._last - self._length)
        mask[1:, :, hidden:, : max(0, self._last)] = False
        return mask

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """As the contract."""
        self._length = length + len(entries)
        if tuple(entries) != tuple(range(len(entries))):
            index = torch.tensor(entries, device=self._entries.device) + length
            self._entries[:, :, :, length : self._length] = self._entries.index_select(3, index)
