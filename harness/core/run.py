"""What one decode gives to a method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from harness import deprecated
from harness.core.backbone import TiedEmbeddings
from harness.core.batch import Slot
from harness.core.cache import Cache
from harness.core.canvas import Canvas
from harness.core.capabilities import Capabilities
from harness.core.clock import Stopwatch
from harness.core.costs import Costs
from harness.core.draft import Draft
from harness.core.draws import Draws
from harness.core.sampling import Sampling, warp
from harness.core.session import Session
from harness.discover import component
from harness.errors import ContractError

T = TypeVar("T")


P = ParamSpec("P")


def no_tied_embeddings() -> TiedEmbeddings:
    """Of a run that no backbone was opened for.

    Raises:
        ContractError: always.
    """
    raise ContractError("this run has no backbone whose embedding it could lend; open it with `loop.open_run`")


def no_adapter(folder: Path | None) -> Any:
    """Of a run that no backbone was opened for.

    Raises:
        ContractError: always.
    """
    raise ContractError("this run has no backbone that could read an adapter; open it with `loop.open_run`")


def no_costs(component: str) -> Costs:
    """Of a run that no backbone was opened for.

    Raises:
        ContractError: always.
    """
    raise ContractError("this run has no backbone whose passes were measured; open it with `loop.open_run`")


@dataclass
class Run:
    """What one decode gives a method. The loop owns it; a method reads it and never writes to it.

    Attributes:
        target: the session to draft for. draws: the only source of randomness. sampling: how laws are warped.
        budget: output tokens allowed, no more than the context holds. emitted: output tokens so far.
        opened: drafter sessions by name; pictures: drafters' canvases. filling: the canvas, once it was asked for.
        toys: the backbone makes a toy of any drafter and part. seat: its place in a gang; None: it decodes alone.
        backbone: the target's name. fingerprint: of its weights. ends: lends its embedding and unembedding.
        condition: rows of the prompt's condition, of a backbone that meets CONDITION. adapters: reads an adapter of the
        target. costs: of a pass on this machine, measured beforehand with a drafter of this name (`bench.costs`).
    """

    target: Session
    draws: Draws
    sampling: Sampling
    capabilities: Capabilities
    budget: int
    opener: Callable[[str, int], Session]
    picture_opener: Callable[[str, int], Canvas]
    canvas_opener: Callable[[], Canvas]
    feature_opener: Callable[[str, Callable[[], Cache], Sequence[int]], Session]
    stopwatch: Stopwatch
    eos: frozenset[int] = frozenset()
    emitted: int = 0
    opened: dict[str, Session] = field(default_factory=dict)
    pictures: dict[str, Canvas] = field(default_factory=dict)
    filling: Canvas | None = None
    toys: bool = False
    slot: Slot | None = None
    backbone: str = ""
    fingerprint: str = ""
    tied_embeddings: Callable[[], TiedEmbeddings] = no_tied_embeddings
    condition: Float[Tensor, "K C"] | None = None
    adapters: Callable[[Path | None], Any] = no_adapter
    costs: Callable[[str], Costs] = no_costs

    law = deprecated.alias("law", "probs")
    offers = deprecated.alias("offers", "capabilities")
    ends = deprecated.alias("ends", "tied_embeddings")
    part = deprecated.alias("part", "component")

    def probs(self, logits: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """The law that the user asked to sample from; drafters and verifiers use the same."""
        return warp(logits, self.sampling)

    @property
    def canvas(self) -> Canvas:
        """The target for a method that fills positions in any order, instead of ``target``; no token ends its text."""
        if self.filling is None:
            self.filling, self.eos = self.canvas_opener(), frozenset()
        return self.filling

    @property
    def room(self) -> int:
        """Tokens that may still come; a draft is at least one less deep, since every step adds one token."""
        return self.budget - self.emitted

    @property
    def nothing(self) -> Draft:
        """The empty draft, on the target's device."""
        return Draft(torch.empty(0, dtype=torch.long, device=self.target.device))

    @property
    def last(self) -> Int[Tensor, " 1"]:
        """The last token so far, the prompt's included."""
        return torch.tensor(self.target.tokens[-1:], device=self.target.device)

    def open(self, name: str, shrink: int = 1) -> Session:
        """A drafter's session, on the same prompt and already read; the same one for the same name.

        Args:
            shrink: its pictures are to be 1/shrink as high and wide; a toy is made so, others are as they are.
        """
        if name not in self.opened:
            self.opened[name] = self.opener(name, shrink)
            self.opened[name].prefill()
        return self.opened[name]

    def picture(self, name: str, shrink: int = 1) -> Canvas:
        """As `open`, but a canvas that holds one of the drafter's pictures, which knows where its grid begins.

        Raises:
            UsageError: it makes none.
        """
        if name not in self.pictures:
            self.pictures[name] = self.picture_opener(name, shrink)
            self.pictures[name].prefill()
        return self.pictures[name]

    def features(self, name: str, cache: Callable[[], Cache]) -> Session:
        """A feature drafter's session; the same one for the same name. Nothing is read yet, since that takes features.

        It is over the target's tokens but the first: entry i is token i + 1 with the target's hidden row i.

        Args:
            cache: makes an empty one of the drafter; not called where a toy stands in for it.

        Raises:
            ContractError: the target has one token so far, so there is no entry.
        """
        if name not in self.opened:
            self.opened[name] = self.feature_opener(name, cache, self.target.tokens[1:])
        return self.opened[name]

    def component(self, kind: str, name: str) -> Path | None:
        """The folder of a part's weights (see `discover.component`); None where a toy is to be made instead.

        Raises:
            WeightsError: it is not there; says how to make it.
        """
        return None if self.toys else component(kind, name, self.backbone)

    def adapt(self, name: str) -> None:
        """From now on gated rows of the target are read with this adapter.

        Raises:
            WeightsError: it is not there, or made for other weights.
        """
        self.target.adapter = self.adapters(self.component("adapter", name))

    def timed(self, call: Callable[P, T], kind: str = "draft") -> Callable[P, T]:
        """A part's call, whose time is drafting; or a stage of the step by another name, for `Sample.stages`."""

        def stamped(*args: P.args, **kwargs: P.kwargs) -> T:
            begin = self.stopwatch.clock.stamp()
            made = call(*args, **kwargs)
            self.stopwatch.add(kind, begin)
            return made

        return stamped
