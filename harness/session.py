"""A sequence being decoded over one cache: what is emitted, what is cached, positions and masks.

Invariant: 0 <= cached < len(tokens). The last emitted token is always fed again with the next pass, whose row 0
is the law after it. Drafts never change what is emitted until a verdict is committed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from harness.clock import Stopwatch
from harness.contracts import Cache, Draft, Offers, Verdict, Window
from harness.errors import ContractError


@final
class Session:
    """One sequence of a target or of a drafter.

    Args:
        cache: empty. offers: of its backbone. tokens: the prompt, at least one id. device: of the backbone.
        kind: "target" or "draft": whose time a pass is.

    Attributes:
        passes: forward passes so far, prefill not counted. rows: entries fed by them.
        draft: the draft of the last pass.
    """

    def __init__(
        self,
        cache: Cache,
        offers: Offers,
        tokens: Sequence[int],
        *,
        stopwatch: Stopwatch,
        device: str = "cpu",
        kind: str = "target",
    ) -> None:
        if not tokens:
            raise ContractError("a session needs a prompt of at least one token; give a text or a start token")
        if len(tokens) > offers.context:
            raise ContractError(
                f"the prompt has {len(tokens)} tokens and the context is {offers.context}: shorten it, or take a "
                f"backbone with a longer context"
            )
        self.offers = offers
        self.kind = kind
        self.passes = 0
        self.rows = 0
        self.device = torch.device(device)
        self.draft = Draft(torch.empty(0, dtype=torch.long, device=self.device))
        self._none = self.draft
        self._cache = cache
        self._stopwatch = stopwatch
        self._host = list(tokens)
        self._tail = self._none.tokens
        self._valid = 0
        self._held = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Session:
        twin = copy.copy(self)
        memo[id(self)] = twin
        twin._host = list(self._host)
        twin._cache = copy.deepcopy(self._cache, memo)
        return twin

    @property
    def tokens(self) -> list[int]:
        """Prompt and emitted ids; reads the device where drafts were appended since the last time."""
        if len(self._tail):
            self._host.extend(self._tail.tolist())
            self._tail = self._none.tokens
        return self._host

    def __len__(self) -> int:
        return len(self._host) + len(self._tail)

    @property
    def cached(self) -> int:
        """Leading tokens whose entries the cache holds; less than len(self)."""
        return min(self._valid, len(self) - 1)

    @property
    def held(self) -> Any:
        """What the cache keeps of the committed tokens, where that can be compared (a tabular one's hashes)."""
        return tuple(getattr(self._cache, "entries", ())[: self.cached])

    def prefill(self) -> None:
        """Read all but the last token, if that was not done yet; asks for no logits and is not a pass."""
        if len(self) - 1 > self.cached:
            self._extend(self._pending()[:-1], None, 0)
            self._valid = self._held

    def forward(self, draft: Draft | None = None) -> Float[Tensor, "R V"]:
        """One pass over the tokens not cached yet and the draft.

        Returns:
            Raw logits; row 0 is after the last emitted token, row k + 1 after node k.

        Raises:
            ContractError: the draft goes past the context.
        """
        draft = self._none if draft is None else draft
        pending = self._pending()
        sees = None if draft.parents is None else _tree_mask(len(pending), draft.parents)
        tokens = torch.cat([pending, draft.tokens]) if len(draft) else pending
        begin = self._stopwatch.clock.stamp()
        logits = self._extend(tokens, sees, len(draft) + 1, draft.parents)
        self._stopwatch.add(self.kind, begin)
        self.passes += 1
        self.rows += len(tokens)
        self.draft = draft
        self._valid = len(self)
        return logits

    def commit(self, verdict: Verdict) -> tuple[int, ...]:
        """Emit the verdict's path and token; returns them. Reads the verdict, and the ids of the drafts kept."""
        read = verdict.read()
        emitted = tuple(self.draft.tokens[list(read.path)].tolist()) if read.path else ()
        self._cache.keep(self._valid, read.path)
        self._valid += len(read.path)
        self._held = self._valid
        self.tokens.extend((*emitted, read.token))
        self.draft = self._none
        return (*emitted, read.token)

    def append(self, tokens: Int[Tensor, " n"]) -> None:
        """Take tokens as emitted without a pass; they are read with the next one."""
        self._tail = torch.cat([self._tail, tokens]) if len(self._tail) else tokens

    def rollback(self, length: int) -> None:
        """Forget all tokens from ``length`` on; at least one stays."""
        if not 1 <= length <= len(self):
            raise ContractError(f"rollback to {length} tokens of {len(self)}: keep between 1 and {len(self)}")
        if length >= len(self._host):
            self._tail = self._tail[: length - len(self._host)]
        else:
            del self._host[length:]
            self._tail = self._none.tokens
        self._valid = min(self._valid, length)

    def sync(self, tokens: Sequence[int]) -> None:
        """Become these tokens: back to the longest common prefix, then on."""
        if not tokens:
            raise ContractError("sync to no tokens: a session keeps at least one")
        mine, shared = self.tokens, min(len(self), len(tokens))
        if mine[:shared] != list(tokens[:shared]):
            shared = next(i for i in range(shared) if mine[i] != tokens[i])
        del mine[shared:]
        mine.extend(tokens[shared:])
        self._valid = min(self._valid, shared)

    def _pending(self) -> Int[Tensor, " n"]:
        start = self.cached
        host = torch.tensor(self._host[start:], dtype=torch.long, device=self.device)
        return torch.cat([host, self._tail[max(0, start - len(self._host)) :]]) if len(self._tail) else host

    def _extend(
        self,
        tokens: Int[Tensor, " N"],
        sees: Bool[Tensor, "N N"] | None,
        rows: int,
        parents: Int[Tensor, " K"] | None = None,
    ) -> Float[Tensor, "R V"]:
        base, count = self.cached, len(tokens)
        if base + count > self.offers.context:
            raise ContractError(
                f"a pass would hold {base + count} entries and the context is {self.offers.context}: "
                f"drafts must be less deep than `run.room`"
            )
        if self._held > base:
            self._cache.keep(base)
        positions = torch.arange(base, base + count, device=self.device)
        if parents is not None:
            positions[count - len(parents) :] = len(self) + depths_of(parents)
        self._held = base + count
        return self._cache.extend(Window(tokens, positions, base, sees, rows)).logits


def _ancestors(parents: Int[Tensor, " K"]) -> Bool[Tensor, "K K"]:
    """Row k marks node k and those above it; doubles the reach each round instead of looping over nodes."""
    size = len(parents)
    index = torch.arange(size, device=parents.device)
    seen = index[:, None] == index[None, :]
    up = parents
    for _ in range(max(1, size.bit_length())):
        has = up >= 0
        seen = seen | (has[:, None] & seen[up.clamp_min(0)])
        up = torch.where(has, up[up.clamp_min(0)], up)
    return seen


def depths_of(parents: Int[Tensor, " K"]) -> Int[Tensor, " K"]:
    """How far each node of a draft lies below the first ones, which have 0."""
    return _ancestors(parents).sum(1) - 1


def _tree_mask(pending: int, parents: Int[Tensor, " K"]) -> Bool[Tensor, "N N"]:
    """Pending tokens see the earlier ones; a node sees all pending ones and its ancestors."""
    size = pending + len(parents)
    mask = torch.ones(size, size, dtype=torch.bool, device=parents.device).tril()
    mask[pending:, pending:] = _ancestors(parents)
    return mask
