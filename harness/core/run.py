"""`Run`: all that a method sees of the decode of one prompt. Many of them make a run of `stride run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.backbone import Backbone, TiedEmbeddings
from stridebench.harness.core.batch import Slot
from stridebench.harness.core.cache import Cache
from stridebench.harness.core.canvas import Canvas
from stridebench.harness.core.capabilities import Capabilities, Tap
from stridebench.harness.core.clock import Stopwatch
from stridebench.harness.core.costs import Costs
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.models import Models
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.core.session import Session
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import ContractError

END = -1
"""Stands behind each output of an earlier prompt; it is no token, so nothing is matched across two outputs."""
REMEMBERED = 10_000
"""The newest tokens of earlier outputs, which `suffix` searches in 0.2 ms a step; older ones are forgotten."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Run:
    """The interface of one decode to a method, which reads it and never writes to it.

    Attributes:
        target: the session to draft for.
        draws: the only source of randomness.
        sampling: how logits become probabilities.
        budget: output tokens allowed, no more than the context holds.
        models: opens the models of this decode.
        text_ends: ids that end the text; empty if the task has none.
        stop: given the tokens so far and a step's, returns how many of the step's are kept if a stop text ends there.
        opened: drafter sessions by name.
        pictures: drafters' canvases by name; that of the target, under "", once a method asked for it.
    """

    target: Session
    draws: Draws
    sampling: Sampling
    budget: int
    models: Models
    text_ends: frozenset[int] = frozenset()
    opened: dict[str, Session] = field(default_factory=dict)
    pictures: dict[str, Canvas] = field(default_factory=dict)
    stop: Callable[[Sequence[int], Sequence[int]], int | None] | None = None

    @classmethod
    def of(cls, models: Models, sampling: Sampling, budget: int, draws: Draws, stop_at_eos: bool = True) -> Run:
        """Return a run over these models, whose target has read nothing yet.

        Args:
            budget: output tokens allowed.
            stop_at_eos: the target's end-of-text ids end the text.
        """
        ends = models.capabilities.eos if stop_at_eos else frozenset[int]()
        return cls(models.target(), draws, sampling, models.room(budget), models, ends)

    @property
    def capabilities(self) -> Capabilities:
        """Return those of the target; its grid begins behind the prompt."""
        return self.models.capabilities

    @property
    def backbone(self) -> str:
        """Return the target's name."""
        return self.models.backbone.name

    @property
    def fingerprint(self) -> str:
        """Return that of the target's weights."""
        return self.models.backbone.fingerprint

    @property
    def condition(self) -> Float[Tensor, "K C"] | None:
        """Return the rows of the prompt's condition, if the backbone meets CONDITION."""
        return self.models.condition

    @property
    def stopwatch(self) -> Stopwatch:
        """Return the stopwatch that the target and all drafters share."""
        return self.models.stopwatch

    @property
    def memory(self) -> Sequence[Sequence[int]]:
        """Return the outputs of earlier prompts, oldest first; empty unless the method `remembers`."""
        return self.models.memory

    @property
    def remembered(self) -> list[int]:
        """Return the newest tokens of `memory`, with `END` behind each output."""
        return [token for output in self.memory for token in (*output, END)][-REMEMBERED:]

    @property
    def slot(self) -> Slot | None:
        """Return the place of this decode in a batch, or None if it decodes alone."""
        return self.models.slot

    def probs(self, logits: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """Return the distributions that are sampled; drafters and verifiers use the same."""
        return warp(logits, self.sampling)

    @property
    def canvas(self) -> Canvas:
        """Return the target for a method that fills positions in any order; see `ended`."""
        if "" not in self.pictures:
            self.pictures[""] = self.models.canvas(self.budget)
        return self.pictures[""]

    @property
    def filling(self) -> Canvas | None:
        """Return the target's canvas, or None if no method asked for it."""
        return self.pictures.get("")

    @property
    def eos(self) -> frozenset[int]:
        """Return the ids that end the text, none if it is a canvas."""
        return frozenset() if "" in self.pictures else self.text_ends

    @property
    def ended(self) -> bool:
        """Return whether the canvas is of blocks, and a full one holds an end of text."""
        return self.filling is not None and self.filling.ended(self.text_ends)

    @property
    def emitted(self) -> int:
        """Return the number of output tokens so far."""
        filled = len(self.canvas.tokens) - self.canvas.start if "" in self.pictures else 0
        return len(self.target) - self.models.prompt_length + filled

    @property
    def room(self) -> int:
        """Return how many tokens may still come; a draft is at least one less deep, since a step adds one token."""
        return self.budget - self.emitted

    @property
    def space(self) -> int:
        """Return how many nodes the target's context has room for, behind the last emitted token."""
        return self.capabilities.context - len(self.target)

    @property
    def nothing(self) -> Draft:
        """Return the empty draft, on the target's device."""
        return Draft(torch.empty(0, dtype=torch.long, device=self.target.device))

    @property
    def last(self) -> Int[Tensor, " 1"]:
        """Return the last token so far, the prompt's included."""
        return torch.tensor(self.target.tokens[-1:], device=self.target.device)

    def open(self, name: str, shrink: int = 1, taps: Sequence[Tap] = ()) -> Session:
        """Return a drafter's session on the same prompt, prefilled; the same one for the same name.

        Args:
            shrink: its pictures must be 1/shrink as high and wide. A toy is made of that size.
            taps: the layers whose hidden rows the method reads.

        Raises:
            UsageError: the drafter has no such layers, or serves no hidden rows.
        """
        if name not in self.opened:
            self.opened[name] = self.models.drafter(name, shrink)
            self.opened[name].tap(taps)
            self.opened[name].prefill()
        return self.opened[name]

    def picture(self, name: str, shrink: int = 1) -> Canvas:
        """Return a canvas that holds one of the drafter's pictures, prefilled; otherwise as `open`.

        Raises:
            UsageError: the drafter makes no pictures.
        """
        if name not in self.pictures:
            self.pictures[name] = self.models.picture(name, shrink)
            self.pictures[name].prefill()
        return self.pictures[name]

    def features(self, name: str, cache: Callable[[], Cache]) -> Session:
        """Return a feature drafter's session; the same one for the same name.

        It has read no entries yet, since that takes features, and keeps its last rows. It covers the target's tokens
        except the first: entry i is token i + 1 with the target's hidden row i.

        Args:
            cache: makes an empty cache of the drafter; not called if a toy stands in for it.

        Raises:
            ContractError: the target has one token so far, so there is no entry.
        """
        if name not in self.opened:
            self.opened[name] = self.models.features(name, cache, self.target.tokens[1:])
        return self.opened[name]

    def tied_embeddings(self) -> TiedEmbeddings:
        """Return the target's embedding and unembedding.

        Raises:
            UsageError: it has none that drafters can use.
        """
        return self.models.backbone.tied_embeddings()

    def component(self, kind: str, name: str) -> Path | None:
        """Return the folder of a component's weights (see `discover.component`), or None for a toy.

        Raises:
            WeightsError: it is not there; the message says how to make it.
        """
        return self.models.component(kind, name)

    def adapt(self, name: str) -> None:
        """Compute gated rows of the target with this adapter from now on.

        Raises:
            WeightsError: it is not there, or was made for other weights.
        """
        self.target.adapter = self.models.adapter(name)

    def costs(self, drafter: str) -> Costs:
        """Return the costs of passes of the target and of a drafter on this machine, as the run measured them.

        Raises:
            UsageError: they were not measured; the message says how.
        """
        return self.models.costs(drafter)

    def timed(self, call: Callable[P, T], kind: str = "draft") -> Callable[P, T]:
        """Return the same call, timed as drafting or as a stage of that name (see `Sample.stages`).

        Raises:
            ContractError: the name is that of the target's passes, whose time is not the method's to add to.
        """
        if kind == "target":
            raise ContractError("a stage is named target, as the target's passes are; give it another name")

        def stamped(*args: P.args, **kwargs: P.kwargs) -> T:
            begin = self.stopwatch.clock.stamp()
            result = call(*args, **kwargs)
            self.stopwatch.add(kind, begin)
            return result

        return stamped


def open_run(
    backbone: Backbone,
    load_drafter: Callable[[str], Backbone],
    prompt: Prompt | Sequence[int],
    sampling: Sampling,
    budget: int,
    draws: Draws,
) -> Run:
    """Return a run on one prompt, which decodes alone and is timed by the CPU's clock; for others see `Run.of`.

    Args:
        load_drafter: loads a drafter by name; called when a method opens it.
        prompt: or bare token ids.
        budget: output tokens allowed.
    """
    return Run.of(Models(backbone, load_drafter, prompt), sampling, budget, draws)
