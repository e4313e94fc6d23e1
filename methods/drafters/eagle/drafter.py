"""A drafter that reads the target's hidden rows beside its tokens, and predicts the rows that come next.

Symbols: f the target's hidden rows, q the drafter's distributions, n nodes of a level of a tree, V vocabulary.
Sources: EAGLE-1, arXiv:2401.15077; EAGLE-2, arXiv:2406.16858, section 4; EAGLE-3, arXiv:2503.01840.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from stridebench.harness.core import cache
from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.capabilities import Capabilities
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.run import Run
from stridebench.harness.core.session import Session
from stridebench.harness.errors import ContractError, WeightsError
from stridebench.methods.drafters.draft_model import check_shapes, check_target
from stridebench.methods.drafters.eagle.net import FeatureDrafterNet, taps_of
from stridebench.methods.drafters.eagle.published import Kind
from stridebench.methods.verifiers.codebook import ids_of

# The cache of a feature drafter: keys and values of its one layer, for all branches of guidance at once.
# Symbols: G branches, N new entries, T stored and new ones, R rows with logits, J tapped layers, E width, V
# vocabulary.


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
        net: FeatureDrafterNet,
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


@dataclass(frozen=True)
class FeatureDrafter:
    """Reads each committed pair (token i + 1, f_i) once; rows of a tree are discarded after their step.

    Args:
        name: of the drafter's weights.
        kind: what it must be.
        prompt: tokens of the prompt.
        cell_mask: added to the logits of cells.
    """

    name: str
    kind: Kind
    prompt: int
    cell_mask: Float[Tensor, " V"] | None = field(compare=False)

    @classmethod
    def open(cls, run: Run, name: str, kind: Kind) -> FeatureDrafter:
        """The drafter of this name. It reads the prompt here, unless the prompt is one token, which makes no pair.

        Raises:
            WeightsError: it is not there, or of another kind or backbone.
            UsageError: it cannot be guided.
        """
        drafter = cls(name, kind, len(run.target), _cell_mask(run.capabilities, run.target.device))
        if len(run.target) > 1:
            session = drafter._session(run)
            session.prefill(run.target.hidden[: len(session) - 1])
        return drafter

    def _session(self, run: Run) -> Session:
        fresh = self.name not in run.opened
        session = run.features(self.name, lambda: self._cache(run))
        if fresh:
            session.tap((-1,))
        return session

    def _cache(self, run: Run) -> FeatureCache:
        folder = run.component("drafter", self.name)
        assert folder is not None, "toys have caches of their own"
        tied = run.tied_embeddings()
        net = _load(folder, tied.embed.dtype, tied.embed.device)
        check_target(net.shape, run)
        if net.shape.kind != self.kind:
            raise WeightsError(f"{folder} holds a drafter of kind {net.shape.kind}, and this method reads {self.kind}")
        if not net.shape.fingerprint:
            _check_published(folder, net, run, cache.resolve(taps_of(self.name), run.capabilities))
        return FeatureCache(net, tied, run.capabilities, self.prompt)

    def root(self, run: Run) -> Reader | None:
        """A pass over the new pairs; None where there is no pair yet."""
        if len(run.target) < 2:
            return None
        session = self._session(run)
        session.sync(run.target.tokens[1:])
        logits = session.forward(features=run.target.hidden[session.cached : len(session)])
        return Reader(run, session, logits, self.cell_mask)


class Reader:
    """One step's passes of a drafter, level by level.

    Attributes:
        first: logits [1, V] after the last emitted token.
        space: entries that the drafter's context has room for.
    """

    def __init__(self, run: Run, session: Session, logits: Tensor, cell_mask: Tensor | None) -> None:
        self._session, self._capabilities, self._cell_mask = session, run.capabilities, cell_mask
        self._position = len(run.target)
        self._rows = session.newest
        self.space = session.capabilities.context - len(session)
        self.first = self._allowed(logits)

    def read(self, level: Draft) -> Float[Tensor, "n V"]:
        """Logits after the nodes of the next level, whose parents count all nodes read before."""
        logits = self._session.grow(level, self._rows[level.explicit_parents + 1])
        self._rows = torch.cat([self._rows, self._session.newest])
        self._position += 1
        return self._allowed(logits)

    def score(self, level: Draft) -> Float[Tensor, "n V"]:
        """log q of the same."""
        return self.read(level).log_softmax(-1)

    def _allowed(self, logits: Float[Tensor, "n V"]) -> Float[Tensor, "n V"]:
        """In fp32 or wider, -inf for ids that the position of these logits does not allow."""
        logits, grid = logits.to(torch.promote_types(logits.dtype, torch.float32)), self._capabilities.grid
        forced = None if grid is None else grid.forced(self._position)
        if forced is not None:
            only = torch.full_like(logits, float("-inf"))
            only[:, forced] = 0.0
            return only
        return logits if self._cell_mask is None else logits + self._cell_mask


def _check_published(folder: Path, net: FeatureDrafterNet, run: Run, taps: tuple[int, ...]) -> None:
    """Hold a published drafter against the target, whose picture model may have one id more for a prompt's vectors."""
    shape = net.shape
    known = run.capabilities.vocabulary if shape.side else shape.vocabulary
    check_shapes(folder, run, shape.target_width, known)
    if len(net.ids) and int(net.ids.max()) >= run.capabilities.vocabulary:
        check_shapes(folder, run, shape.target_width, int(net.ids.max()) + 1)
    if shape.layers and shape.layers != taps:
        raise WeightsError(
            f"the drafter in {folder} reads the layers {shape.layers} of its target, and eagle3 reads {taps} of "
            f"{run.backbone}. Give the folder as a path, then eagle3 reads the layers that it names"
        )


@lru_cache(maxsize=4)
def _load(folder: Path, dtype: torch.dtype, device: torch.device) -> FeatureDrafterNet:
    return FeatureDrafterNet.load(folder).to(device=device, dtype=dtype).packed()


def _cell_mask(capabilities: Capabilities, device: torch.device) -> Float[Tensor, " V"] | None:
    """0 at the ids that a cell may take, -inf elsewhere; None where there is no grid or it takes all."""
    if capabilities.grid is None or capabilities.grid.ids is None:
        return None
    mask = torch.full((capabilities.vocabulary,), float("-inf"), device=device)
    return mask.index_fill(0, ids_of(capabilities, device), 0.0)
