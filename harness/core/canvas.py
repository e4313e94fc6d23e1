"""A sequence whose positions are read and filled in any order, over one cache: at most one entry a position.

Symbols: P prompt length, N entries of a pass, F positions filled by a step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.cache import Cache, Window
from stridebench.harness.core.capabilities import Capabilities, Grid
from stridebench.harness.core.clock import Stopwatch
from stridebench.harness.core.draft import Fill
from stridebench.harness.errors import ContractError, UsageError

Sees = Literal["before", "all", "filled"]
"""Which entries an entry attends to. before: itself and smaller positions. all: all, or of a model of blocks, those of
its block and of earlier ones. filled: those at filled positions; a query, whose own is empty, sees all.
"""


class Read(NamedTuple):
    """The arguments of one pass."""

    tokens: Int[Tensor, " N"]
    positions: tuple[int, ...]
    sees: Sees
    rows: int | None
    given: Float[Tensor, "R V"] | None = None


class Filled(NamedTuple):
    """The id at each position that one step filled."""

    tokens: dict[int, int]


@final
class Canvas:
    """One sequence of a target.

    Args:
        cache: empty.
        capabilities: of its backbone.
        prompt: at least one id.
        length: positions to fill, from P on.
        device: of the backbone.
        kind: "target" or "draft", the kind of span of its passes.

    Attributes:
        start: P.
        end: the position behind the last one to fill.
        tokens: id at each position, the prompt's and those filled so far.
        passes: forward passes so far, prefill not counted.
        rows: entries fed by them.
        history: passes and fills so far, in their order.
    """

    def __init__(
        self,
        cache: Cache,
        capabilities: Capabilities,
        prompt: Sequence[int],
        *,
        length: int,
        stopwatch: Stopwatch,
        device: str = "cpu",
        kind: str = "target",
    ) -> None:
        if not prompt or len(prompt) + length > capabilities.context:
            raise ContractError(
                f"a canvas of {length} positions behind a prompt of {len(prompt)} tokens: the prompt has at least one, "
                f"and both fit into the context of {capabilities.context}"
            )
        self.capabilities = capabilities
        self.start, self.end = len(prompt), len(prompt) + length
        self.tokens = dict(enumerate(prompt))
        self.passes = self.rows = 0
        self.device = torch.device(device)
        self._cache = cache
        self._stopwatch = stopwatch
        self._kind = kind
        self._base = self.start - 1
        self._ready = False
        self._at: list[int] = []
        self._queried: frozenset[int] = frozenset()
        self._read_until = 0
        self.history: list[Read | Filled] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Canvas:
        twin = copy.copy(self)
        memo[id(self)] = twin
        twin.tokens, twin._at, twin.history = dict(self.tokens), list(self._at), list(self.history)
        twin._cache = copy.deepcopy(self._cache, memo)
        return twin

    @property
    def output(self) -> tuple[int, ...]:
        """Return the ids of the positions filled so far, in raster order."""
        return tuple(self.tokens[place] for place in range(self.start, self.end) if place in self.tokens)

    @property
    def cache_state(self) -> Any:
        """Return the positions of the entries behind the prompt and, if they can be compared, their kept values."""
        states = self._cache.entries[self._base :]
        return sorted(zip(self._at, states, strict=True)) if states else sorted(self._at)

    def prefill(self) -> None:
        """Read all but the prompt's last token, if that was not done yet; asks for no logits and is not a pass."""
        if not self._ready and self._base:
            ids = torch.tensor([self.tokens[place] for place in range(self._base)], device=self.device)
            self._cache.extend(Window(ids, torch.arange(self._base, device=self.device), 0, None, 0))
        self._ready = True

    @property
    def open_block(self) -> range:
        """Return the positions of the model's first block that is not full, those of the prompt included."""
        first = next((place for place in range(self.start, self.end) if place not in self.tokens), self.end)
        size = self.capabilities.block or self.end
        return range(first - first % size, min(self.end, first - first % size + size))

    def ended(self, ends: frozenset[int]) -> bool:
        """Return whether the newest full block of a model of blocks holds an end of text; others are always filled."""
        size, full = self.capabilities.block, self.open_block.start
        return any(self.tokens[place] in ends for place in range(max(self.start, full - size), full) if size)

    def read_full_blocks(self) -> None:
        """Read the full blocks that were not read since they were filled, in one pass.

        It replaces entries of placeholders. With `Capabilities.block`, later passes need not read them again.
        """
        begin = self.open_block.start
        if self._read_until < begin:
            places = range(self._read_until, begin)
            self.read(torch.tensor([self.tokens[i] for i in places], device=self.device), places, "all", rows=0)
            self._read_until = begin

    def read(
        self,
        tokens: Int[Tensor, " N"],
        positions: Sequence[int],
        sees: Sees = "before",
        rows: int | None = None,
        given: Float[Tensor, "R V"] | None = None,
    ) -> Float[Tensor, "R V"]:
        """Run one pass over N entries, which attend to others as ``sees`` says.

        An entry that stood at one of the positions leaves the cache first. Entries that attended to it are not
        recomputed. A pass fills nothing, so a token may be a placeholder.

        Args:
            tokens: ids.
            positions: of each token, ascending. The first pass begins with the prompt's last position, P - 1, or with
                position 0 if entries attend to all.
            sees: the same in all passes.
            rows: R, the last entries whose logits are returned, or None for all N.
            given: logits of an earlier pass that these R entries read, if the model meets LAST_LOGITS.

        Returns:
            Raw logits. Those at positions[n] are for the position after it; those of a masked model and of a query are
            for its own.

        Raises:
            ContractError: the positions are not ascending, not on the canvas, or not one a token; the first pass lacks
                the prompt's last one, or a later pass reads it; or all are seen, and the prompt was read causally.
        """
        if sees == "all" and not self._ready:
            self._base, self._ready = 0, True
        self._check(len(tokens), positions, sees)
        begin = self._stopwatch.clock.stamp()
        self.prefill()
        self._drop(frozenset(positions))
        cached, count = len(self._at), len(positions)
        places = torch.tensor([*self._at, *positions])
        block = self.capabilities.block or self.end
        order = places if sees == "before" else places // block
        visible = order <= order[cached:, None]
        if sees == "filled":
            filled = torch.tensor([place in self.tokens for place in places.tolist()])
            visible = filled | ~filled[cached:, None]
        causal = (sees == "before" or count == 1) and visible.equal(torch.ones_like(visible).tril_(cached))
        mask = None if causal else visible.to(self.device)
        rows_read = count if rows is None else rows
        window = Window(tokens, places[cached:].to(self.device), self._base, mask, rows_read, features=given)
        logits = self._cache.extend(window).logits
        self._stopwatch.add(self._kind, begin, logits)
        self._at.extend(positions)
        self.history.append(Read(tokens.clone(), tuple(positions), sees, rows, given))
        self.passes += 1
        self.rows += count
        return logits

    def ask(self, positions: Sequence[int]) -> Float[Tensor, "G V"]:
        """Return the logits of empty cells, in one pass over their queries and the tokens filled since the last pass.

        Queries leave the cache with the next pass, so that no later one attends to them.

        Raises:
            ContractError: the model has no queries, or a position is filled or outside the picture.
        """
        grid, queries = self.capabilities.grid, self.capabilities.queries
        if grid is None or not queries:
            raise ContractError("a canvas asks for cells by queries, and this backbone has none; take one with QUERIES")
        if wrong := [
            place for place in positions if place in self.tokens or not 0 <= place - grid.start < len(queries)
        ]:
            raise ContractError(
                f"a pass asks for position {wrong[0]}, which is filled or outside the picture; ask for empty cells"
            )
        self._drop(self._queried)
        unread = [place for place in self.tokens if place >= self._base and place not in self._at]
        inputs = {place: self.tokens[place] for place in unread}
        inputs |= {place: queries[place - grid.start] for place in positions}
        places = sorted(inputs)
        logits = self.read(torch.tensor([inputs[place] for place in places], device=self.device), places, "filled")
        self._queried = frozenset(positions)
        return logits[[places.index(place) for place in positions]]

    def groups(self, cells: Callable[[Grid], Sequence[Sequence[int]]]) -> list[list[int]]:
        """Return the positions of groups of cells, without those behind the last position.

        Args:
            cells: gives the cells of each group of a picture, by raster index.

        Raises:
            ContractError: the model makes no pictures.
            UsageError: the output is longer than a picture.
        """
        grid, length = self.capabilities.grid, self.end - self.start
        if grid is None:
            raise ContractError("groups of cells need a backbone with a grid, and this one offers none")
        if length > grid.length:
            raise UsageError(
                f"an output of {length} tokens and a picture of {grid.length} cells; set max_new_tokens to "
                f"{grid.length} or less"
            )
        groups = [[grid.start + cell for cell in group if grid.start + cell < self.end] for group in cells(grid)]
        return [group for group in groups if group]

    def fill(self, fill: Fill) -> dict[int, int]:
        """Emit tokens; returns the id at each new position, in raster order. Reads the device once.

        Raises:
            ContractError: nothing is filled, or a position is outside the canvas or was filled before.
        """
        placed = fill.read()
        for place, token in placed:
            if place in self.tokens or not self.start <= place < self.end:
                raise ContractError(
                    f"a step fills position {place}; give those from {self.start} to {self.end - 1}, each once"
                )
            self.tokens[place] = token
        if not placed:
            raise ContractError("a step fills no position, and would be taken again for ever; fill at least one")
        self.history.append(Filled(dict(placed)))
        return dict(placed)

    def rewrite(self, tokens: Sequence[int]) -> list[int]:
        """Fill the first positions with these ids and empty all others. Entries from the first change on are dropped.

        Returns:
            Positions that a pass must read, ascending; the last filled one is always among them.
        """
        new = dict(enumerate(tokens, self.start))
        last = self.start + len(new) - 1
        first = next((place for place, token in new.items() if self.tokens.get(place) != token), last)
        self._drop(frozenset(place for place in self._at if place >= first))
        self.tokens = {place: self.tokens[place] for place in range(self.start)} | new
        return [place for place in range(self._base, self.start + len(new)) if place not in self._at]

    def _check(self, count: int, positions: Sequence[int], sees: Sees) -> None:
        pass_read = f"a pass over {count} tokens at positions {list(positions)}"
        if not count == len(positions) > 0 or any(a >= b for a, b in pairwise(positions)):
            raise ContractError(f"{pass_read}: give one position a token, at least one, in ascending order")
        if sees == "all":
            if self._base or positions[-1] >= self.end or positions[0] < 0 or (not self._at and positions[0]):
                raise ContractError(
                    f"{pass_read}: the first begins at 0, nothing being read before; all end at {self.end - 1}"
                )
            return
        first = self._base if not self._at else self.start
        if positions[0] < first or positions[-1] >= self.end or (not self._at and positions[0] != first):
            raise ContractError(
                f"{pass_read}: the first pass begins with the prompt's last token, at {self._base}, and no later one "
                f"reads it; all others are from {self.start} to {self.end - 1}"
            )

    def _drop(self, gone: frozenset[int]) -> None:
        """Close the gaps that the entries at these positions leave: a gather of those behind the first of them."""
        remaining = [index for index, place in enumerate(self._at) if place not in gone]
        if len(remaining) < len(self._at):
            self._cache.keep(self._base, remaining)
            self._at = [self._at[index] for index in remaining]
