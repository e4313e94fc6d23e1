"""Proposals of a step and their outcome: drafts, paths, acceptances, fills."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Draft:
    """K proposed tokens.

    Args:
        tokens: the proposals.
        probs: row k is the whole distribution that node k was drawn from, or None for point masses.
        parents: parents[k] < k is the node that k follows, -1 the last emitted token; None for a chain. A node with
            parent -2 is a sibling of the last emitted token: it has the same position and attends to all tokens before
            it.
        reused: marks nodes carried over unchanged from the step before. They are counted; nothing depends on it.
        probes: number of last nodes that are computed but not proposed: they are never in a path and never counted.
        repeats: marks proposed nodes that repeat the path of an earlier node. They are computed because a tree's shape
            does not depend on the drawn tokens; they are never in a path and never counted.
        gate: marks nodes computed with the target's adapter on, or None if there are none.
        levels_built: levels of the tree that these nodes were chosen from, or None if no node was left out.
    """

    tokens: Int[Tensor, " K"]
    probs: Float[Tensor, "K V"] | None = None
    parents: Int[Tensor, " K"] | None = None
    reused: Bool[Tensor, " K"] | None = None
    probes: int = 0
    repeats: Bool[Tensor, " K"] | None = None
    gate: Bool[Tensor, " K"] | None = None
    levels_built: int | None = None

    def __len__(self) -> int:
        return int(self.tokens.shape[0])

    @property
    def proposed(self) -> int:
        """Return the number of nodes before the probes."""
        return len(self) - self.probes

    @property
    def explicit_parents(self) -> Int[Tensor, " K"]:
        """Return ``parents``, written out for a chain."""
        if self.parents is not None:
            return self.parents
        return torch.arange(-1, len(self) - 1, device=self.tokens.device)

    def extended(self, more: Draft) -> Draft:
        """Return this draft followed by ``more``.

        The parents of ``more`` count the nodes of both; None stands for a chain below the last node of this draft.

        ``probs`` are kept if both have them; other marks are not.
        """
        new_parents = more.parents
        if new_parents is None:
            new_parents = torch.arange(len(self) - 1, len(self) + len(more) - 1, device=more.tokens.device)
        probs = None if self.probs is None or more.probs is None else torch.cat([self.probs, more.probs])
        tokens = torch.cat([self.tokens, more.tokens])
        return Draft(tokens, probs, torch.cat([self.explicit_parents, new_parents]), probes=more.probes)

    def q(self, vocabulary: int, like: Tensor) -> Float[Tensor, "K V"]:
        """Return the distributions as a matrix in the type of ``like``: point masses become one-hot rows."""
        if self.probs is not None:
            return self.probs
        probs = like.new_zeros(len(self), vocabulary)
        return probs.scatter_(1, self.tokens[:, None], 1.0)


@dataclass(frozen=True)
class Path:
    """A walk down a draft.

    Args:
        nodes: the nodes kept, in order; unused places hold -1.
        stop: the row that gives the next token: 0 after the last emitted token, k + 1 after node k.
        expected: mean number of nodes kept, given the draft: over the acceptance tests alone.
    """

    nodes: Int[Tensor, " K"]
    stop: Int[Tensor, ""]
    expected: Float[Tensor, ""]

    @staticmethod
    def root(p: Float[Tensor, "R V"]) -> Path:
        """Return the path that keeps nothing, on the device of ``p``."""
        return _root(p.device, p.dtype)


@lru_cache(maxsize=32)
def _root(device: torch.device, dtype: torch.dtype) -> Path:
    """Return a shared path, since nobody writes into it."""
    with torch.inference_mode(False):
        zero = torch.zeros((), dtype=torch.long, device=device)
        return Path(zero.new_empty(0), zero, torch.zeros((), dtype=dtype, device=device))


@dataclass(frozen=True)
class HostAcceptance:
    """An `Acceptance` on the host."""

    path: tuple[int, ...]
    token: int
    expected: float
    extra_ids: tuple[int, ...] = ()
    passed: bool | None = None
    energies: tuple[float, ...] = ()
    loss: float | None = None

    @property
    def accepted(self) -> int:
        """Return the number of accepted drafts: those of the path, and an unread one that passed."""
        return len(self.path) + bool(self.passed)


@dataclass(frozen=True)
class Fill:
    """The output of a step on a canvas: F >= 1 tokens, each at a different position; it stays on the device until read.

    No token ends the text, since the length of a canvas is fixed.

    Args:
        resampled: number of tokens drawn in place of drafts, for the record alone.
    """

    positions: Int[Tensor, " F"]
    tokens: Int[Tensor, " F"]
    resampled: int = 0

    def read(self) -> list[tuple[int, int]]:
        """Return positions and ids in raster order: the one device read of a step."""
        positions, tokens = torch.stack([self.positions, self.tokens]).tolist()
        return sorted(zip(positions, tokens, strict=True))


@dataclass(frozen=True)
class DeclaredRows:
    """The distributions that a step samples from, stated by a method whose claim is `Claim.DECLARED`.

    Args:
        pi: row 0 is that of the token after the last emitted one, row k + 1 that of the token after node k.
        p: the target's distributions, in the same rows.
    """

    pi: Float[Tensor, "R V"]
    p: Float[Tensor, "R V"]

    def loss(self, path: Path) -> Float[Tensor, ""]:
        """Return the total variation between pi and p, added up over the rows that gave the step's tokens."""
        rows = (self.pi - self.p).abs().sum(1) / 2
        return rows[0] + torch.where(path.nodes >= 0, rows[path.nodes.clamp_min(-1) + 1], 0.0).sum()


@dataclass(frozen=True)
class ExpectedSteps:
    """The steps that a decode takes on average to emit a known text.

    Args:
        tokens: of the text.
        by_draft: mean number of steps, by the tokens drafted and the passes of the drafter.
    """

    tokens: int
    by_draft: Mapping[tuple[int, int], float]

    @property
    def steps(self) -> float:
        """Return the mean number of steps."""
        return sum(self.by_draft.values())


class Acceptance:
    """A path, and the bonus or correction token after it; both stay on the device until they are read, once a step.

    Args:
        path: nodes kept.
        token: the token emitted after them: the bonus token if all were kept, else the correction token.
        extra_ids: ids that the method needs on the host; they come with the same read.
        passed: whether a draft that no pass has computed is accepted behind a path that was kept whole; it is then the
            token. None if no such draft was tested.
        energies: of the drafts that were tested, in nats, for the record alone; see `Step.energies`.

    Attributes:
        declared: the distributions that the tokens were drawn from, if the method states them.
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
        self.declared: DeclaredRows | None = None
        self._read: HostAcceptance | None = None

    def read(self) -> HostAcceptance:
        """Read the device, once a step; later calls return the same object."""
        if self._read is None and self.token.device.type == "cpu":  # nothing to wait for, so no values are packed
            self._read = HostAcceptance(
                path=tuple(node for node in self.path.nodes.tolist() if node >= 0),
                token=int(self.token),
                expected=float(self.path.expected),
                extra_ids=() if self.extra_ids is None else tuple(self.extra_ids.tolist()),
                passed=None if self.passed is None else bool(self.passed),
                energies=() if self.energies is None else tuple(self.energies.double().tolist()),
                loss=None if self.declared is None else float(self.declared.loss(self.path)),
            )
        if self._read is None:
            passed = torch.zeros_like(self.token) if self.passed is None else self.passed
            loss = torch.zeros_like(self.token) if self.declared is None else self.declared.loss(self.path)
            scalars = torch.stack([self.token.double(), self.path.expected.double(), passed.double(), loss.double()])
            extra_ids = scalars[:0] if self.extra_ids is None else self.extra_ids.double()
            energies = scalars[:0] if self.energies is None else self.energies.double()
            values = torch.cat([energies, extra_ids, self.path.nodes.double(), scalars]).tolist()
            *ids, token, expected, host_passed, host_loss = values[len(energies) :]
            self._read = HostAcceptance(
                path=tuple(int(node) for node in ids[len(extra_ids) :] if node >= 0),
                token=int(token),
                expected=expected,
                extra_ids=tuple(map(int, ids[: len(extra_ids)])),
                passed=None if self.passed is None else bool(host_passed),
                energies=tuple(values[: len(energies)]),
                loss=None if self.declared is None else host_loss,
            )
        return self._read
