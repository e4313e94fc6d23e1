"""A sequence being decoded over one cache: emitted tokens, cached entries, positions and masks.

Invariant: 0 <= cached < len(tokens). The last emitted token is always fed again with the next pass, whose row 0
is the distribution after it. Drafts never change the emitted tokens until an acceptance is committed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from stridebench.harness.core.cache import Cache, HiddenRows, Window, resolve
from stridebench.harness.core.capabilities import Capabilities, Tap
from stridebench.harness.core.clock import Stopwatch
from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.errors import ContractError


@final
class Session:
    """One sequence of a target or of a drafter.

    Args:
        cache: empty.
        capabilities: of its backbone.
        tokens: the prompt, at least one id.
        device: of the backbone.
        kind: "target" or "draft", the kind of span of its passes.

    Attributes:
        passes: forward passes so far, prefill not counted.
        rows: entries fed by them.
        adapter: of its gated rows, as the backbone read it; None if no row is gated.
    """

    def __init__(
        self,
        cache: Cache,
        capabilities: Capabilities,
        tokens: Sequence[int],
        *,
        stopwatch: Stopwatch,
        device: str = "cpu",
        kind: str = "target",
    ) -> None:
        if not tokens:
            raise ContractError("a session needs a prompt of at least one token; give a text or a start token")
        if len(tokens) > capabilities.context:
            raise ContractError(
                f"the prompt has {len(tokens)} tokens and the context is {capabilities.context}: shorten it, or take a "
                f"backbone with a longer context"
            )
        self.capabilities = capabilities
        self.kind = kind
        self.passes = 0
        self.rows = 0
        self.device = torch.device(device)
        self._none = self._draft = Draft(torch.empty(0, dtype=torch.long, device=self.device))
        self._scored = self._none.tokens
        self._cache = cache
        self._stopwatch = stopwatch
        self._host = list(tokens)
        self._tail = self._none.tokens
        self._valid = 0
        self._held = 0
        self._taps: tuple[int, ...] = ()
        self._hidden = HiddenRows(capabilities, 0, self.device)
        self._newest = self._hidden.rows
        self.adapter: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Session:
        twin = copy.copy(self)
        memo[id(self)] = twin
        twin._host = list(self._host)
        twin._cache = copy.deepcopy(self._cache, memo)
        twin._hidden = copy.deepcopy(self._hidden, memo)
        return twin

    @property
    def draft(self) -> Draft:
        """Return the draft of the last pass; the counts of drafted and tested tokens are read from it."""
        return self._draft

    @property
    def tokens(self) -> list[int]:
        """Prompt and emitted ids; reads the device where drafts were appended since the last time."""
        if self._tail.numel():
            self._host.extend(self._tail.tolist())
            self._tail = self._none.tokens
        return self._host

    def __len__(self) -> int:
        return len(self._host) + self._tail.numel()  # `len` of a tensor is ten times as slow

    @property
    def cached(self) -> int:
        """Leading tokens whose entries the cache holds; less than len(self)."""
        return min(self._valid, len(self) - 1)

    @property
    def cache_state(self) -> Any:
        """Return the kept values of the committed tokens, if they can be compared (hashes of a tabular model)."""
        return tuple(self._cache.entries[: self.cached])

    def tap(self, taps: Sequence[Tap]) -> None:
        """Keep the hidden rows of these layers, from the first entry on.

        Raises:
            UsageError: the backbone has no such layer, or serves no hidden rows.
            ContractError: entries were read before.
        """
        if taps and self._held:
            raise ContractError(f"tapped with {self._held} entries read: their rows are lost; tap before the prefill")
        self._taps = resolve(taps, self.capabilities)
        self._hidden = HiddenRows(self.capabilities, len(self._taps), self.device)
        self._newest = self._hidden.rows

    @property
    def hidden(self) -> Float[Tensor, "M G J E"]:
        """Rows of the tapped layers, one an entry, for the M = `cached` leading tokens.

        After a commit or the prefill the last of them is the row that gave the last token.
        """
        return self._hidden.rows[: self.cached]

    @property
    def newest(self) -> Float[Tensor, "R G J E"]:
        """Rows of the tapped layers for those whose logits the last pass returned."""
        return self._newest

    def prefill(self, features: Float[Tensor, "N ..."] | None = None) -> None:
        """Read all but the last token, if that was not done yet; asks for no logits and is not a pass.

        Args:
            features: of a feature drafter, a row for each token read.
        """
        if len(self) - 1 > self.cached:
            start, tokens = self.cached, self._pending()[:-1]
            self._extend(tokens, self._after(start, len(tokens)), start, None, 0, features)
            self._valid = self._held

    def forward(
        self, draft: Draft | None = None, features: Float[Tensor, "N ..."] | None = None, *, mutual: bool = False
    ) -> Float[Tensor, "R V"]:
        """Run one pass over the tokens not cached yet and the draft.

        Args:
            features: of a feature drafter, a row for each entry: the tokens from ``cached`` on, then the nodes.
            mutual: the last emitted token and the nodes of a chain see each other. The model meets BOTH_MASKS, and a
                causal pass follows in the same step, before which these entries leave the cache.

        Returns:
            Raw logits; row 0 is after the last emitted token, row k + 1 after node k.

        Raises:
            ContractError: the draft goes past the context, or is gated and the session has no adapter.
        """
        draft = self._none if draft is None else draft
        pending = self._pending()
        tokens = torch.cat([pending, draft.tokens]) if len(draft) else pending
        start = self.cached
        places = self._after(start, len(tokens))
        sees = None
        if draft.parents is not None:
            seen = ancestors(draft.parents)
            beside = (seen & (draft.parents == -2)).any(1)
            sees = _tree_mask(len(pending), seen, beside)
            places[len(pending) :] = len(self) + seen.sum(1) - 1 - beside.long()
        elif mutual:
            sees = torch.ones(len(tokens), len(tokens), dtype=torch.bool, device=self.device).tril()
            sees[len(pending) - 1 :, len(pending) - 1 :] = True
        gate = None if draft.gate is None else torch.cat([torch.zeros_like(pending, dtype=torch.bool), draft.gate])
        logits = self._extend(tokens, places, start, sees, len(draft) + 1, features, gate)
        self._draft, self._scored = draft, tokens[len(pending) :]
        self._valid = len(self)
        return logits

    def grow(self, draft: Draft, features: Float[Tensor, "N ..."] | None = None) -> Float[Tensor, "N V"]:
        """One pass over more nodes, below those that the window holds already; each node is read once.

        Args:
            draft: its parents count all nodes of the window, those read before first; -1 is the last emitted token,
                None a chain below the last node.
            features: of a feature drafter, a row for each new node.

        Returns:
            Raw logits; row k is after new node k.

        Raises:
            ContractError: no window is open on these tokens, it ends in probes, or the nodes go past the context.
        """
        before = len(self.draft)
        if self._valid != len(self) or self._held != self._valid + before:
            raise ContractError("grow adds to the window of a pass over the same tokens; call forward first")
        if self.draft.probes:
            raise ContractError(f"the window ends in {self.draft.probes} probes, below which nothing grows")
        joint = self.draft.extended(draft)
        visible = ancestors(joint.explicit_parents)[before:]
        places = len(self) + visible.sum(1) - 1
        logits = self._extend(draft.tokens, places, len(self), visible, len(draft), features)
        self._draft, self._scored = joint, torch.cat([self._scored, draft.tokens])
        return logits

    def commit(self, acceptance: Acceptance) -> tuple[int, ...]:
        """Emit the accepted path and the token after it; returns them. Reads the acceptance and the accepted ids.

        The ids are those that the pass scored, whatever was written into the draft since.

        Raises:
            ContractError: the draft has another length than it had in the pass.
        """
        read = acceptance.read()
        if len(self._draft) != len(self._scored):
            raise ContractError(
                f"the pass scored a draft of {len(self._scored)} tokens, which has {len(self._draft)} now; leave a "
                f"draft as it is once it is scored"
            )
        emitted = tuple(self._scored[list(read.path)].tolist()) if read.path else ()
        self._cache.keep(self._valid, read.path)
        self._hidden.keep(self._valid, read.path)
        self._valid += len(read.path)
        self._held = self._valid
        self.tokens.extend((*emitted, read.token))
        self._draft, self._scored = self._none, self._none.tokens
        return (*emitted, read.token)

    def append(self, tokens: Int[Tensor, " n"]) -> None:
        """Add emitted tokens without a pass; the next pass reads them."""
        self._tail = torch.cat([self._tail, tokens]) if len(self._tail) else tokens

    def sync(self, tokens: Sequence[int]) -> None:
        """Replace the tokens: roll back to the longest common prefix, then append."""
        if not tokens:
            raise ContractError("sync to no tokens: a session keeps at least one")
        own, shared = self.tokens, min(len(self), len(tokens))
        if own[:shared] != list(tokens[:shared]):
            shared = next(i for i in range(shared) if own[i] != tokens[i])
        del own[shared:]
        own.extend(tokens[shared:])
        self._valid = min(self._valid, shared)

    def _pending(self) -> Int[Tensor, " n"]:
        start = self.cached
        host = torch.tensor(self._host[start:], dtype=torch.long, device=self.device)
        return torch.cat([host, self._tail[max(0, start - len(self._host)) :]]) if len(self._tail) else host

    def _after(self, start: int, count: int) -> Int[Tensor, " N"]:
        return torch.arange(start, start + count, device=self.device)

    def _extend(
        self,
        tokens: Int[Tensor, " N"],
        places: Int[Tensor, " N"],
        base: int,
        sees: Bool[Tensor, "N S"] | None,
        rows: int,
        features: Float[Tensor, "N ..."] | None,
        gate: Bool[Tensor, " N"] | None = None,
    ) -> Float[Tensor, "R V"]:
        """Append N entries to the S - N from ``base`` on; with R > 0 rows it is a pass, counted and timed."""
        count = len(tokens)
        begin = self._stopwatch.clock.stamp() if rows else None
        start = base if sees is None else base + sees.shape[1] - count
        if start + count > self.capabilities.context:
            raise ContractError(
                f"a pass would hold {start + count} entries and the context is {self.capabilities.context}: "
                f"drafts must be less deep than `run.room`"
            )
        if gate is not None and self.adapter is None:
            raise ContractError("a gated draft needs an adapter; open it with `run.adapt` in the method's start")
        if self._held > start:
            self._cache.keep(start)
        self._held = start + count
        result = self._cache.extend(Window(tokens, places, base, sees, rows, self._taps, features, gate, self.adapter))
        if result.hidden is not None:
            self._hidden.write(start, result.hidden)
            self._newest = result.hidden[count - rows :]
        if begin is not None:
            self._stopwatch.add(self.kind, begin, result.logits)
            self.passes += 1
            self.rows += count
        return result.logits


def ancestors(parents: Int[Tensor, " K"]) -> Bool[Tensor, "K K"]:
    """Row k marks node k and those above it. On a GPU the reach doubles each round instead of looping over nodes."""
    if parents.device.type == "cpu" and _in_order(above := parents.tolist()):
        return torch.from_numpy(_host_ancestors(above))
    size = len(parents)
    index = torch.arange(size, device=parents.device)
    is_ancestor = index[:, None] == index[None, :]
    up = parents
    for _ in range(max(1, size.bit_length())):
        has = up >= 0
        is_ancestor = is_ancestor | (has[:, None] & is_ancestor[up.clamp_min(0)])
        up = torch.where(has, up[up.clamp_min(0)], up)
    return is_ancestor


def _in_order(parents: Sequence[int]) -> bool:
    """Whether each parent comes before its nodes, as in every `Draft`."""
    return all(parent < node for node, parent in enumerate(parents))


def _host_ancestors(parents: Sequence[int]) -> NDArray[np.bool_]:
    """`ancestors` of nodes in order, on the host and in fewer calls."""
    seen = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] |= seen[parent]
    return seen


def depths_of(parents: Int[Tensor, " K"]) -> Int[Tensor, " K"]:
    """How far each node of a draft lies below the first ones, which have 0."""
    return ancestors(parents).sum(1) - 1


def _tree_mask(pending: int, seen: Bool[Tensor, "K K"], beside: Bool[Tensor, " K"]) -> Bool[Tensor, "N N"]:
    """Return the mask of a window with a tree.

    Pending tokens attend to earlier ones; a node to its ancestors and all pending tokens except its sibling.

    Args:
        seen: of `ancestors`. beside: marks siblings of the last emitted token, and the nodes below them.
    """
    size = pending + len(seen)
    mask = torch.ones(size, size, dtype=torch.bool, device=seen.device).tril()
    mask[pending:, pending:] = seen
    mask[pending:, pending - 1] = ~beside
    return mask
