"""The cache of a feature drafter: keys and values of its one layer, in all branches of guidance at once.

Symbols: G branches, N new entries, T held and new ones, R rows with logits, J tapped layers, E width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from harness.core.cache import Cache, Rows, Window
from harness.core.capabilities import Capabilities
from harness.errors import ContractError
from methods.drafters.eagle.net import FeatureNet

FIRST = 512
"""Entries allocated at first; a fuller buffer doubles."""


@final
class FeatureCache(Cache):
    """One sequence over the target's tokens but the first.

    The branch without the condition knows nothing of the prompt but its last token: its features of entries that lie
    in the prompt are zero, and it sees of them the last one alone.

    Args:
        net: in the type of ``embed``. embed, unembed: the target's. offers: the target's. prompt: its tokens.
    """

    def __init__(
        self,
        net: FeatureNet,
        embed: Float[Tensor, "V E"],
        unembed: Float[Tensor, "V E"],
        capabilities: Capabilities,
        prompt: int,
    ) -> None:
        self._net, self._embed = net, embed
        self._head = net.head(unembed)
        self._offers, self._last = capabilities, prompt - 2
        self._kept = embed.new_empty(
            2, capabilities.branches, net.shape.kv_heads, 0, net.shape.width // net.shape.heads
        )
        self._held = 0

    @torch.inference_mode()
    def extend(self, window: Window) -> Rows:
        """As the contract; the window has features [N, G, J, E], J = 1 for what `Rows.hidden` gave.

        Raises:
            ContractError: without features, or past the context.
        """
        count, features = len(window.tokens), window.features
        if features is None or self._held + count > self._offers.context:
            raise ContractError(
                f"a feature drafter reads a hidden row beside each token, and {self._offers.context} entries at most; "
                f"found {count} tokens behind {self._held} entries{'' if features is not None else ' and no rows'}"
            )
        mask, read = self._mask(window), features.transpose(0, 1).to(self._embed.dtype)
        dark = max(0, self._last + 1 - self._held)
        if dark and len(read) > 1:
            read = torch.cat([read[:1], functional.pad(read[1:, dark:], (0, 0, 0, 0, min(dark, count), 0))])
        tokens = functional.embedding(window.tokens, self._embed).expand(len(read), -1, -1)

        def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            seen = self._written(keys, values)
            return functional.scaled_dot_product_attention(query, seen[0], seen[1], attn_mask=mask, enable_gqa=True)

        made = self._net(tokens, read, window.positions, attend)
        self._held += count
        return Rows(self._logits(made[:, count - window.rows :]), made.transpose(0, 1)[:, :, None])

    def _logits(self, made: Float[Tensor, "G R E"]) -> Float[Tensor, "R V"]:
        """The branches mixed; -inf for ids never proposed."""
        found = self._head(made)
        mixed = found[0] if len(found) == 1 else torch.lerp(found[1], found[0], self._offers.guidance)
        if not len(self._net.ids):
            return mixed
        return mixed.new_full((len(mixed), self._offers.vocabulary), float("-inf")).index_copy(1, self._net.ids, mixed)

    def _written(self, keys: Tensor, values: Tensor) -> Float[Tensor, "two G H T D"]:
        """All keys and values, the new ones behind those held."""
        end = self._held + keys.shape[2]
        if end > self._kept.shape[3]:
            room = max(FIRST, 2 * self._kept.shape[3], end)
            grown = self._kept.new_zeros(*self._kept.shape[:3], room, self._kept.shape[4])
            grown[:, :, :, : self._held] = self._kept[:, :, :, : self._held]
            self._kept = grown
        self._kept[0, :, :, self._held : end], self._kept[1, :, :, self._held : end] = keys, values
        return self._kept[:, :, :, :end]

    def _mask(self, window: Window) -> Bool[Tensor, "G one N T"]:
        count, branches = len(window.tokens), self._offers.branches
        seen = torch.ones(branches, 1, count, self._held + count, dtype=torch.bool, device=window.tokens.device)
        if window.sees is None:
            seen = seen.tril(self._held)
        else:
            seen[:, :, :, window.base :] = window.sees
        dark = max(0, self._last - self._held)
        seen[1:, :, dark:, : max(0, self._last)] = False
        return seen

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """As the contract."""
        self._held = length + len(entries)
        if tuple(entries) != tuple(range(len(entries))):
            index = torch.tensor(entries, device=self._kept.device) + length
            self._kept[:, :, :, length : self._held] = self._kept.index_select(3, index)
