"""What a step proposes and what it accepts: drafts, paths, acceptances, fills."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from harness import deprecated


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
    probs: Float[Tensor, "K V"] | None = None
    parents: Int[Tensor, " K"] | None = None
    reused: Bool[Tensor, " K"] | None = None
    probes: int = 0
    repeats: Bool[Tensor, " K"] | None = None
    gate: Bool[Tensor, " K"] | None = None

    law = deprecated.alias("law", "probs")

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
        probs = None if self.probs is None or more.probs is None else torch.cat([self.probs, more.probs])
        tokens = torch.cat([self.tokens, more.tokens])
        return Draft(tokens, probs, torch.cat([self.above, below]), probes=more.probes)

    def q(self, vocabulary: int, like: Tensor) -> Float[Tensor, "K V"]:
        """The laws as a matrix in the type of ``like``: point masses become one-hot rows."""
        if self.probs is not None:
            return self.probs
        probs = like.new_zeros(len(self), vocabulary)
        return probs.scatter_(1, self.tokens[:, None], 1.0)


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
class HostAcceptance:
    """A verdict on the host."""

    path: tuple[int, ...]
    token: int
    expected: float
    extra_ids: tuple[int, ...] = ()
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


class Acceptance:
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
        extra_ids: Int[Tensor, " A"] | None = None,
        passed: Bool[Tensor, ""] | None = None,
        energies: Float[Tensor, " E"] | None = None,
    ) -> None:
        self.path = path
        self.token = token
        self.extra_ids = extra_ids
        self.passed = passed
        self.energies = energies
        self._read: HostAcceptance | None = None

    def read(self) -> HostAcceptance:
        """The one device read of a step; later calls return the same object."""
        if self._read is None:
            passed = torch.zeros_like(self.token) if self.passed is None else self.passed
            last = torch.stack([self.token.double(), self.path.expected.double(), passed.double()])
            beside = last[:0] if self.extra_ids is None else self.extra_ids.double()
            energies = last[:0] if self.energies is None else self.energies.double()
            found = torch.cat([energies, beside, self.path.nodes.double(), last]).tolist()
            *ids, token, expected, kept = found[len(energies) :]
            extra_ids, nodes = ids[: len(beside)], ids[len(beside) :]
            path = tuple(int(node) for node in nodes if node >= 0)
            closing = None if self.passed is None else bool(kept)
            ratios = tuple(found[: len(energies)])
            self._read = HostAcceptance(path, int(token), expected, tuple(map(int, extra_ids)), closing, ratios)
        return self._read
