"""The contract of a method: parameters, a claim, `start` and `step`; and what a step may use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Generic, ParamSpec, Self, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from harness.backbone import Ends
from harness.canvas import Canvas
from harness.clock import Stopwatch
from harness.contracts import Cache, Costs, Draft, Fill, Need, Offers, Tap, Verdict
from harness.discover import part
from harness.draws import Draws, Stream
from harness.errors import ContractError
from harness.gang import Seat
from harness.law import Sampling, warp
from harness.registry import METHODS
from harness.session import Session

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")


class Claim(Enum):
    """What a method says of its output, against the target decoded autoregressively."""

    SAME_LAW = "the same law at every temperature"
    SAME_GREEDY = "the same tokens at T = 0; not run above"
    APPROXIMATE = "another law, by design"


@dataclass(frozen=True)
class Plant:
    """A bug to put into a real function while a check runs, to see that the check catches it.

    Args:
        where: the function whose source is patched, as "package.module:qualified.name".
        old: text on exactly one of its lines. new: what stands there instead. why: the mistake in words.
    """

    where: str
    old: str
    new: str
    why: str


def no_ends() -> Ends:
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


def no_costs(part: str) -> Costs:
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
        target. costs: of a pass on this machine, measured beforehand with a drafter of this name (`harness.costs`).
    """

    target: Session
    draws: Draws
    sampling: Sampling
    offers: Offers
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
    seat: Seat | None = None
    backbone: str = ""
    fingerprint: str = ""
    ends: Callable[[], Ends] = no_ends
    condition: Float[Tensor, "K C"] | None = None
    adapters: Callable[[Path | None], Any] = no_adapter
    costs: Callable[[str], Costs] = no_costs

    def law(self, logits: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
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

    def part(self, kind: str, name: str) -> Path | None:
        """The folder of a part's weights (see `discover.part`); None where a toy is to be made instead.

        Raises:
            WeightsError: it is not there; says how to make it.
        """
        return None if self.toys else part(kind, name, self.backbone)

    def adapt(self, name: str) -> None:
        """From now on gated rows of the target are read with this adapter.

        Raises:
            WeightsError: it is not there, or made for other weights.
        """
        self.target.adapter = self.adapters(self.part("adapter", name))

    def timed(self, call: Callable[P, T], kind: str = "draft") -> Callable[P, T]:
        """A part's call, whose time is drafting; or a stage of the step by another name, for `Sample.stages`."""

        def stamped(*args: P.args, **kwargs: P.kwargs) -> T:
            begin = self.stopwatch.clock.stamp()
            made = call(*args, **kwargs)
            self.stopwatch.add(kind, begin)
            return made

        return stamped


class Method(ABC, Generic[S]):
    """A decoding algorithm: a frozen dataclass whose fields are its parameters.

    Class attributes:
        source: the paper, down to the algorithm. exact_at: for an approximate method, the setting at which
        it is exact. plants: bugs that `stride verify` must catch. pinned: streams whose draws enter no recorded law, so
        that a run's own proof may answer them by a few seeds, each of which must leave the law as it is.
    """

    source: ClassVar[str] = ""
    exact_at: ClassVar[str] = ""
    plants: ClassVar[tuple[Plant, ...]] = ()
    pinned: ClassVar[frozenset[Stream]] = frozenset()

    @property
    @abstractmethod
    def claim(self) -> Claim:
        """A class attribute in most methods; a property where it depends on a parameter."""

    @property
    def needs(self) -> frozenset[Need]:
        """What the backbone must offer; a class attribute where it is always the same."""
        return frozenset()

    @property
    def taps(self) -> tuple[Tap, ...]:
        """Layers whose hidden rows it reads, as ``run.target.hidden``; a class attribute where always the same."""
        return ()

    @property
    def reference(self) -> Method[Any] | None:
        """The setting whose law is what others are held against; None: the target decoded autoregressively."""
        return None

    @property
    def parts(self) -> Sequence[tuple[str, str]]:
        """Kind and name of weights that it loads beside a drafter: a cell without them is skipped with that reason."""
        return ()

    @abstractmethod
    def start(self, run: Run) -> S:
        """A new state for one prompt, which must be copyable; ``None`` where there is none."""

    @abstractmethod
    def step(self, run: Run, state: S) -> Verdict | Fill:
        """Draft, score with one ``run.target.forward``, verify; or read ``run.canvas``, and say what to fill."""

    @classmethod
    def variants(cls) -> Sequence[Self]:
        """The settings that `stride verify` proves; by default the default one."""
        return (cls(),)


def parameters(method: Method[Any]) -> dict[str, Any]:
    """Name and value of each parameter."""
    return {f.name: getattr(method, f.name) for f in fields(method)}  # type: ignore[arg-type]  # a dataclass


def label(method: Method[Any]) -> str:
    """The registered name and the parameters that differ from their defaults."""
    shown = []
    for f in fields(method):  # type: ignore[arg-type]  # every method is a dataclass
        value = getattr(method, f.name)
        if value != f.default:
            shown.append(f"{f.name}={value:g}" if isinstance(value, float) else f"{f.name}={value}")
    return " ".join([METHODS.name_of(type(method)), *shown])
