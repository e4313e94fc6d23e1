"""What crosses a boundary between the harness, a backbone and a method. Nothing here computes a result.

Axes: K draft nodes, N window rows, M entries held since base, R rows with logits, V vocabulary; of hidden rows G
branches of guidance, J tapped layers, E width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

C = TypeVar("C", bound="Cache")


class Need(Enum):
    """What a method asks of a backbone beyond a causal pass; an unmet need is a skip with that reason."""

    TREE_MASK = "windows in which rows see chosen rows only"
    DRAFTER = "a second model of the same vocabulary"
    GRID = "tokens laid out on a two-dimensional grid"
    ANY_ORDER = "positions read and filled in any order"
    CODEBOOK = "a vector for each id that a cell of its grid may take"
    HIDDEN = "hidden rows of chosen layers beside the logits"
    BIDIRECTIONAL = "a masked model, whose rows give the law of their own position and see both sides"
    CONDITION = "rows that its encoder made of the prompt's condition"
    GATE = "an adapter beside its weights, on or off row by row"


Tap = int | Literal["middle"]
"""A layer whose input is wanted, of L: 0 is the embedding, L or -1 the normed row that the head reads, -2 what enters
the last layer; "middle" is L // 2."""


@dataclass(frozen=True)
class Grid:
    """A picture's cells in raster order, each row closed by a forced token where the model has one.

    Args:
        rows: of cells. columns: of cells. eol: the id that ends each row; None where rows just follow one another.
        tail: ids forced after the last row. start: position of the first cell: the prompt's length.
        ids: that a cell may take, in order; None: any.
    """

    rows: int
    columns: int
    eol: int | None = None
    tail: tuple[int, ...] = ()
    start: int = 0
    ids: Sequence[int] | None = None

    @property
    def stride(self) -> int:
        """Tokens a row, its end included."""
        return self.columns + (self.eol is not None)

    @property
    def length(self) -> int:
        """Tokens of a whole picture, forced ones included."""
        return self.rows * self.stride + len(self.tail)

    def cell(self, position: int) -> tuple[int, int] | None:
        """Row and column of the cell at a position; None at a forced token and outside the picture."""
        row, column = divmod(position - self.start, self.stride)
        return (row, column) if 0 <= row < self.rows and column < self.columns else None

    def left(self, position: int) -> int | None:
        """Position of the cell to the left; None where there is none."""
        cell = self.cell(position)
        return None if cell is None or cell[1] == 0 else position - 1

    def above(self, position: int) -> int | None:
        """Position of the cell above; None where there is none."""
        cell = self.cell(position)
        return None if cell is None or cell[0] == 0 else position - self.stride

    def forced(self, position: int) -> int | None:
        """The only id allowed at a position; None where there is a choice."""
        offset = position - self.start
        if 0 <= offset < self.rows * self.stride:
            return self.eol if offset % self.stride == self.columns else None
        late = offset - self.rows * self.stride
        return self.tail[late] if 0 <= late < len(self.tail) else None


@dataclass(frozen=True)
class Offers:
    """What a backbone is: its vocabulary, its context and the needs that it meets.

    Args:
        vocabulary: V, the number of token ids, all of which a law covers.
        context: the most entries a cache may hold.
        eos: ids that end a text; empty where the length is fixed.
        meets: the needs served.
        grid: how its output tokens lie in a picture; None where they do not. In a run it starts behind the prompt.
        codebook: row i is the vector of ``grid.ids[i]``; None where there are none.
        layers, width, branches: of its hidden rows: L, E and G; 0 layers where it serves none.
        guidance: s of the mixing z_u + s (z_c - z_u) of its two branches, the first of which is c; 1: there is one.
        mask: the id at positions that a masked model is to fill, which no law of it gives; None: it is no such model.
        condition: C, the width of the rows that it makes of a prompt's condition; 0: it lends none.
    """

    vocabulary: int
    context: int
    eos: frozenset[int] = frozenset()
    meets: frozenset[Need] = frozenset()
    grid: Grid | None = None
    codebook: Float[Tensor, "I C"] | None = field(default=None, compare=False, repr=False)
    layers: int = 0
    width: int = 0
    branches: int = 1
    guidance: float = 1.0
    mask: int | None = None
    condition: int = 0


@dataclass(frozen=True)
class Window:
    """N entries to append to a cache, and all that a backbone must know of them.

    Args:
        tokens: ids of the new entries.
        positions: position of each, prompt included, from 0.
        base: entries before it are seen by every new one.
        sees: row n marks which of the S = M + N entries from base on (M held, N new) entry n sees, itself
            included; None: all earlier ones and itself.
        rows: R; only the last R entries need logits. 0 in a prefill.
        taps: layers whose hidden rows are wanted, each from 0 to L (see `Tap`); none: no hidden rows.
        features: what a feature drafter reads beside each token.
        gate: marks the entries computed with the adapter on; None: none is.
        adapter: as the backbone read it (`Backbone.adapter`), where there is a gate.
    """

    tokens: Int[Tensor, " N"]
    positions: Int[Tensor, " N"]
    base: int
    sees: Bool[Tensor, "N S"] | None
    rows: int
    taps: tuple[int, ...] = ()
    features: Float[Tensor, "N ..."] | None = None
    gate: Bool[Tensor, " N"] | None = None
    adapter: Any = None


@dataclass(frozen=True)
class Rows:
    """What a pass returns.

    Args:
        logits: raw, of the window's last R entries, in any float type.
        hidden: of all N entries, the layers in the order of the window's taps; None where it has none.
    """

    logits: Float[Tensor, "R V"]
    hidden: Float[Tensor, "N G J E"] | None = None


@dataclass(frozen=True)
class Costs:
    """What passes took on one machine: milliseconds by the rows fed, ascending; two sizes or more of each.

    Args:
        target, draft: (rows, ms) of the target's passes and of a drafter's.
    """

    target: tuple[tuple[int, float], ...]
    draft: tuple[tuple[int, float], ...]

    @staticmethod
    def at(rows: int, known: Sequence[tuple[int, float]]) -> float:
        """Milliseconds of a pass: on the straight line through the two known sizes beside it."""
        after = next((i for i, (size, _) in enumerate(known) if size >= rows), len(known) - 1)
        (low, first), (high, last) = known[max(after, 1) - 1], known[max(after, 1)]
        return first + (last - first) * (rows - low) / (high - low)


class Cache(ABC):
    """The two calls that a backbone adapter implements, over one sequence."""

    @abstractmethod
    def extend(self, window: Window) -> Rows:
        """Append the window's N entries and return the logits of its last R rows.

        Raises:
            ContractError: the entries would not fit into the context.
        """

    @abstractmethod
    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """Keep the first ``length`` entries, then those at ``length + e`` for each listed e, in that order."""

    @classmethod
    def extend_many(cls: type[C], caches: Sequence[C], windows: Sequence[Window]) -> list[Rows | Exception]:
        """Extend each cache by its window: in one batched pass where the backbone has one, else one after another.

        Returns:
            The rows of each, or what its window raised; the others are extended all the same.
        """
        return [_attempt(cache, window) for cache, window in zip(caches, windows, strict=True)]


def _attempt(cache: Cache, window: Window) -> Rows | Exception:
    try:
        return cache.extend(window)
    except Exception as error:  # whatever a backbone raises is the failure of this sequence
        return error


def extend_all(caches: Sequence[Cache], windows: Sequence[Window]) -> list[Rows | Exception]:
    """`Cache.extend_many` of each class among the caches."""
    found: dict[int, Rows | Exception] = {}
    for kind in {type(cache): None for cache in caches}:
        chosen = [index for index, cache in enumerate(caches) if type(cache) is kind]
        rows = kind.extend_many([caches[index] for index in chosen], [windows[index] for index in chosen])
        found |= dict(zip(chosen, rows, strict=True))
    return [found[index] for index in range(len(caches))]


@dataclass(frozen=True)
class Draft:
    """K proposed tokens.

    Args:
        tokens: the proposals.
        law: row k is the whole law that node k was drawn from; None: point masses.
        parents: parents[k] < k is the node that k follows, -1 the last emitted token; None: a chain. -2: the node
            stands beside the last emitted token, at its position, and sees what is before it: a second reading.
        reused: marks nodes carried over unchanged from the step before (counted, never judged by it).
        probes: so many of the last nodes are read but not proposed: never in a path, never counted.
        repeats: marks proposed nodes that repeat an elder node's path, read because a tree's shape does not depend on
            what was drawn: never in a path, never counted.
        gate: marks nodes read with the target's adapter on; None: none is.
    """

    tokens: Int[Tensor, " K"]
    law: Float[Tensor, "K V"] | None = None
    parents: Int[Tensor, " K"] | None = None
    reused: Bool[Tensor, " K"] | None = None
    probes: int = 0
    repeats: Bool[Tensor, " K"] | None = None
    gate: Bool[Tensor, " K"] | None = None

    def __len__(self) -> int:
        return int(self.tokens.shape[0])

    @property
    def proposed(self) -> int:
        """Nodes before the probes."""
        return len(self) - self.probes

    @property
    def above(self) -> Int[Tensor, " K"]:
        """``parents``, written out for a chain."""
        if self.parents is not None:
            return self.parents
        return torch.arange(-1, len(self) - 1, device=self.tokens.device)

    def grown(self, more: Draft) -> Draft:
        """This draft and ``more``, whose parents count the nodes of both; None: a chain below the last node here.

        The law is kept where both have one; other marks are not.
        """
        below = more.parents
        if below is None:
            below = torch.arange(len(self) - 1, len(self) + len(more) - 1, device=more.tokens.device)
        law = None if self.law is None or more.law is None else torch.cat([self.law, more.law])
        tokens = torch.cat([self.tokens, more.tokens])
        return Draft(tokens, law, torch.cat([self.above, below]), probes=more.probes)

    def q(self, vocabulary: int, like: Tensor) -> Float[Tensor, "K V"]:
        """The laws as a matrix in the type of ``like``: point masses become one-hot rows."""
        if self.law is not None:
            return self.law
        law = like.new_zeros(len(self), vocabulary)
        return law.scatter_(1, self.tokens[:, None], 1.0)


@dataclass(frozen=True)
class Path:
    """A walk down a draft.

    Args:
        nodes: the nodes kept, in order; slots not used hold -1.
        stop: the row that gives the next token: 0 after the last emitted token, k + 1 after node k.
        expected: mean number of nodes kept, given the draft (over the coins alone).
    """

    nodes: Int[Tensor, " K"]
    stop: Int[Tensor, ""]
    expected: Float[Tensor, ""]

    @staticmethod
    def root(p: Float[Tensor, "R V"]) -> Path:
        """The path that keeps nothing, on the device of the laws ``p``."""
        zero = p.new_zeros((), dtype=torch.long)
        return Path(zero.new_empty(0), zero, p.new_zeros(()))


@dataclass(frozen=True)
class Read:
    """A verdict on the host."""

    path: tuple[int, ...]
    token: int
    expected: float
    aside: tuple[int, ...] = ()
    passed: bool | None = None
    energies: tuple[float, ...] = ()

    @property
    def kept(self) -> int:
        """Drafts emitted: those of the path, and a closing one that passed."""
        return len(self.path) + bool(self.passed)


@dataclass(frozen=True)
class Fill:
    """What a step on a canvas emits: F >= 1 tokens, each at a position of its own; it stays on the device until read.

    No token of it ends the text: a canvas has as many positions as it has.

    Args:
        resampled: how many of the tokens were drawn in place of drafts (counted, never judged by it).
    """

    positions: Int[Tensor, " F"]
    tokens: Int[Tensor, " F"]
    resampled: int = 0

    def read(self) -> list[tuple[int, int]]:
        """Positions and ids in raster order: the one device read of a step."""
        positions, tokens = torch.stack([self.positions, self.tokens]).tolist()
        return sorted(zip(positions, tokens, strict=True))


class Verdict:
    """Path and closing token; it stays on the device until it is read, once a step.

    Args:
        path: nodes kept.
        token: the token emitted after them.
        aside: ids that the method itself wants to know on the host; they come with the same read.
        passed: whether a draft that no pass has read was tested behind a whole path, and is the token; None: no draft
            is tested there.
        energies: of the drafts that were held against the target, in nats, for the record alone; see `Step.energies`.
    """

    def __init__(
        self,
        path: Path,
        token: Int[Tensor, ""],
        aside: Int[Tensor, " A"] | None = None,
        passed: Bool[Tensor, ""] | None = None,
        energies: Float[Tensor, " E"] | None = None,
    ) -> None:
        self.path = path
        self.token = token
        self.aside = aside
        self.passed = passed
        self.energies = energies
        self._read: Read | None = None

    def read(self) -> Read:
        """The one device read of a step; later calls return the same object."""
        if self._read is None:
            passed = torch.zeros_like(self.token) if self.passed is None else self.passed
            last = torch.stack([self.token.double(), self.path.expected.double(), passed.double()])
            beside = last[:0] if self.aside is None else self.aside.double()
            energies = last[:0] if self.energies is None else self.energies.double()
            found = torch.cat([energies, beside, self.path.nodes.double(), last]).tolist()
            *ids, token, expected, kept = found[len(energies) :]
            aside, nodes = ids[: len(beside)], ids[len(beside) :]
            path = tuple(int(node) for node in nodes if node >= 0)
            closing = None if self.passed is None else bool(kept)
            ratios = tuple(found[: len(energies)])
            self._read = Read(path, int(token), expected, tuple(map(int, aside)), closing, ratios)
        return self._read
