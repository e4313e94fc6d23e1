"""A drafter that reads the target's hidden rows beside its tokens, and foretells the rows that come next.

Symbols: f the target's hidden rows, q drafter's law, n nodes of a level of a tree, V vocabulary.
Sources: EAGLE-1, arXiv:2401.15077; EAGLE-2, arXiv:2406.16858, section 4; EAGLE-3, arXiv:2503.01840.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from harness.core.capabilities import Capabilities
from harness.core.draft import Draft
from harness.core.run import Run
from harness.core.session import Session
from harness.errors import WeightsError
from methods.drafters.eagle.cache import FeatureCache
from methods.drafters.eagle.net import FeatureNet, Kind
from methods.drafters.target_check import check_target
from methods.verifiers.image_codes import ids_of


@dataclass(frozen=True)
class FeatureDrafter:
    """Reads each committed pair (token i + 1, f_i) once; rows of a tree are thrown away after their step.

    Args:
        name: of the part. kind: what it must be. prompt: tokens of the prompt. cells: added to logits of cells.
    """

    name: str
    kind: Kind
    prompt: int
    cells: Float[Tensor, " V"] | None = field(compare=False)

    @classmethod
    def open(cls, run: Run, name: str, kind: Kind) -> FeatureDrafter:
        """Its session is opened with the first entry there is: with the prompt, unless that is one token.

        Raises:
            WeightsError: it is not there, or of another kind or backbone. UsageError: it cannot be guided.
        """
        made = cls(name, kind, len(run.target), _cells(run.capabilities, run.target.device))
        if len(run.target) > 1:
            session = made._session(run)
            session.prefill(run.target.hidden[: len(session) - 1])
        return made

    def _session(self, run: Run) -> Session:
        fresh = self.name not in run.opened
        session = run.features(self.name, lambda: self._cache(run))
        if fresh:
            session.tap((-1,))
        return session

    def _cache(self, run: Run) -> FeatureCache:
        folder = run.component("drafter", self.name)
        assert folder is not None, "toys have caches of their own"
        ends = run.tied_embeddings()
        net = _load(folder, ends.embed.dtype, ends.embed.device)
        check_target(net.shape, run)
        if net.shape.kind != self.kind:
            raise WeightsError(f"{folder} holds a drafter of kind {net.shape.kind}, and this method reads {self.kind}")
        return FeatureCache(net, ends.embed, ends.unembed, run.capabilities, self.prompt)

    def root(self, run: Run) -> Reader | None:
        """A pass over the pairs that are new; None where there is no pair yet."""
        if len(run.target) < 2:
            return None
        session = self._session(run)
        session.sync(run.target.tokens[1:])
        logits = session.forward(features=run.target.hidden[session.cached : len(session)])
        return Reader(run, session, logits, self.cells)


class Reader:
    """One step's passes of a drafter, level by level.

    Attributes:
        first: logits [1, V] after the last emitted token. space: entries that the drafter's context has room for.
    """

    def __init__(self, run: Run, session: Session, logits: Tensor, cells: Tensor | None) -> None:
        self._session, self._offers, self._cells = session, run.capabilities, cells
        self._place = len(run.target)
        self._rows = session.newest
        self.space = session.capabilities.context - len(session)
        self.first = self._allowed(logits)

    def read(self, level: Draft) -> Float[Tensor, "n V"]:
        """Logits after the nodes of the next level, whose parents count all nodes read before."""
        logits = self._session.grow(level, self._rows[level.explicit_parents + 1])
        self._rows = torch.cat([self._rows, self._session.newest])
        self._place += 1
        return self._allowed(logits)

    def score(self, level: Draft) -> Float[Tensor, "n V"]:
        """log q of the same."""
        return self.read(level).log_softmax(-1)

    def _allowed(self, logits: Float[Tensor, "n V"]) -> Float[Tensor, "n V"]:
        """In fp32 or wider, -inf for what may not stand at the place of these laws."""
        logits, grid = logits.to(torch.promote_types(logits.dtype, torch.float32)), self._offers.grid
        forced = None if grid is None else grid.forced(self._place)
        if forced is not None:
            shut = torch.full_like(logits, float("-inf"))
            shut[:, forced] = 0.0
            return shut
        return logits if self._cells is None else logits + self._cells


@lru_cache(maxsize=4)
def _load(folder: Path, dtype: torch.dtype, device: torch.device) -> FeatureNet:
    return FeatureNet.load(folder).to(device=device, dtype=dtype).packed()


def _cells(capabilities: Capabilities, device: torch.device) -> Float[Tensor, " V"] | None:
    """0 at the ids that a cell may take, -inf elsewhere; None where there is no grid or it takes all."""
    if capabilities.grid is None or capabilities.grid.ids is None:
        return None
    shut = torch.full((capabilities.vocabulary,), float("-inf"), device=device)
    return shut.index_fill(0, ids_of(capabilities, device), 0.0)
