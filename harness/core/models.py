"""The models of one decode: the target, and the drafters that a method opens."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.core.backbone import Backbone, EncodedPrompt
from stridebench.harness.core.batch import Slot
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.canvas import Canvas
from stridebench.harness.core.capabilities import Capabilities
from stridebench.harness.core.clock import Clock, CpuClock, Stamp, Stopwatch
from stridebench.harness.core.costs import Costs, measured
from stridebench.harness.core.session import Session
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import component
from stridebench.harness.errors import ContractError, UsageError

# Passes are counted at the caches, so that every caller is counted.


@dataclass
class Meter:
    """Passes of one decode so far.

    Attributes:
        passes: of the target's weights, whether the target or a drafter reads them.
        rows: entries fed by them.
        drafts: passes of all other drafters.
        read: entries fed to each model, by its name.
        readings: begin and end of each reading of the prompt and of each loading of a drafter, which are not passes.
        threads: that torch computes with, for the baseline as for every method.
    """

    passes: int = 0
    rows: int = 0
    drafts: int = 0
    read: Counter[str] = field(default_factory=Counter)
    readings: list[tuple[Stamp, Stamp]] = field(default_factory=list)
    threads: int = field(default_factory=torch.get_num_threads)

    def __deepcopy__(self, memo: dict[int, Any]) -> Meter:
        """Return this meter, so that passes of copied sessions and models are counted too."""
        return self


@final
class MeteredCache(Cache):
    """A cache whose passes are counted.

    A window is not counted as a pass if it asks for no logits and the caches of its model have together read fewer
    entries than the prompt has tokens: then it reads the prompt. Everything else is a pass.

    Args:
        inner: the cache itself.
        meter: of the decode.
        clock: of the decode.
        model: its name; the target's is "".
        of_target: whether it computes with the target's weights.
        prompt: tokens of the prompt.
    """

    def __init__(self, inner: Cache, meter: Meter, clock: Clock, *, model: str, of_target: bool, prompt: int) -> None:
        self._inner, self._meter, self._clock = inner, meter, clock
        self._model, self._of_target, self._prompt = model, of_target, prompt

    def __deepcopy__(self, memo: dict[int, Any]) -> MeteredCache:
        twin = copy.copy(self)
        memo[id(self)] = twin
        twin._inner = copy.deepcopy(self._inner, memo)
        return twin

    @property
    def entries(self) -> Sequence[Any]:  # type: ignore[override]  # read-only here: they are the inner cache's
        """Return the entries of the inner cache."""
        return self._inner.entries

    def extend(self, window: Window) -> Rows:
        """Extend the inner cache, and count the pass.

        Raises:
            ContractError: torch computes with another number of threads than the decode began with.
        """
        if torch.get_num_threads() != self._meter.threads:
            raise ContractError(
                f"a pass has {torch.get_num_threads()} threads and the run {self._meter.threads}; leave "
                f"torch.set_num_threads to the run, which gives all methods the same"
            )
        self._meter.read[self._model] += len(window.tokens)
        if not window.rows and self._meter.read[self._model] < self._prompt:
            begin = self._clock.stamp()
            rows = self._inner.extend(window)
            self._meter.readings.append((begin, self._clock.stamp()))
            return rows
        if self._of_target:
            self._meter.passes += 1
            self._meter.rows += len(window.tokens)
            return self._inner.extend(window)
        rows = self._inner.extend(window)
        self._meter.drafts += rows.passes
        return rows

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """Keep entries of the inner cache."""
        self._inner.keep(length, entries)


@final
class Models:
    """Opens sessions and canvases on one prompt. It holds no state of the decode.

    Args:
        backbone: the target.
        load_drafter: loads a drafter by name; called when a method opens it.
        prompt: or bare token ids.
        stopwatch: shared by the target and the drafters; by default a new one on the CPU's clock.
        encoded: the prompt as ``backbone`` has read it already.
        slot: the place of the decode in a batch, or None if it decodes alone.
        new_cache: makes an empty cache of a model for a prompt.
        memory: outputs of earlier prompts, oldest first, for a method that remembers them.

    Attributes:
        capabilities: of the target; its grid begins behind the prompt.
        meter: counts the passes of all caches that it opens.
    """

    def __init__(
        self,
        backbone: Backbone,
        load_drafter: Callable[[str], Backbone],
        prompt: Prompt | Sequence[int],
        stopwatch: Stopwatch | None = None,
        encoded: EncodedPrompt | None = None,
        slot: Slot | None = None,
        new_cache: Callable[[Backbone, EncodedPrompt], Cache] | None = None,
        memory: Sequence[Sequence[int]] = (),
    ) -> None:
        self.backbone = backbone
        self.stopwatch = Stopwatch(CpuClock()) if stopwatch is None else stopwatch
        self.slot = slot
        self.memory = memory
        self.meter = Meter()
        self._load_drafter = load_drafter
        self._new_cache = new_cache or (lambda model, encoded: encoded.cache())
        own = prompt if isinstance(prompt, Prompt) else Prompt("", tokens=tuple(prompt))
        self._prompt = replace(own, data={}) if own.data else own  # answers are for scorers alone
        self._encoded = backbone.open(self._prompt) if encoded is None else encoded
        self.capabilities = _placed(backbone.capabilities, len(self._encoded.tokens))

    @property
    def condition(self) -> Float[Tensor, "K C"] | None:
        """Return the rows that the target's encoder made of the prompt's condition, if it meets CONDITION."""
        return self._encoded.condition

    @property
    def negative_length(self) -> int:
        """Return the tokens of the prompt of the second guidance branch, 0 if there is none."""
        return self._encoded.negative

    @property
    def prompt_length(self) -> int:
        """Return the number of tokens of the prompt."""
        return len(self._encoded.tokens)

    def room(self, budget: int) -> int:
        """Return how many more tokens fit into the budget and the context."""
        return min(budget, self.capabilities.context - self.prompt_length)

    def target(self) -> Session:
        """Return a session of the target."""
        return self._session(self.backbone, self._encoded, "")

    def canvas(self, length: int) -> Canvas:
        """Return a canvas of the target with ``length`` positions to fill."""
        return self._canvas(self.backbone, self._encoded, length, "")

    def drafter(self, name: str, shrink: int) -> Session:
        """Return a session of a drafter; see `Run.open`."""
        return self._session(*self._drafter(name, shrink), name)

    def picture(self, name: str, shrink: int) -> Canvas:
        """Return a canvas that holds one picture of a drafter; see `Run.picture`."""
        model, encoded = self._drafter(name, shrink)
        if model.capabilities.grid is None:
            raise UsageError(f"the drafter {name!r} makes no pictures; choose one that does")
        return self._canvas(model, encoded, model.capabilities.grid.length, name)

    def features(self, name: str, make_cache: Callable[[], Cache], tokens: Sequence[int]) -> Session:
        """Return a session of a feature drafter over ``tokens``; see `Run.features`."""
        if self.backbone.toy_drafters:
            model = self._load_drafter(name)
            cache = model.open(Prompt("", tokens=self._encoded.tokens[1:])).cache()
        else:
            model, cache = self.backbone, make_cache()
        metered, device = self._metered(cache, name, of_target=False), self.backbone.device
        session = Session(metered, model.capabilities, tokens, stopwatch=self.stopwatch, device=device, kind="draft")
        session.tap((-1,))
        return session

    def component(self, kind: str, name: str) -> Path | None:
        """Return the folder of a component's weights, or None if a toy stands in for it."""
        return None if self.backbone.toy_drafters else component(kind, name, self.backbone.name)

    def adapter(self, name: str) -> Any:
        """Return an adapter of the target, as the backbone reads it."""
        return self.backbone.adapter(self.component("adapter", name))

    def costs(self, drafter: str) -> Costs:
        """Return the costs of passes of the target and of a drafter on this machine."""
        return measured(self.backbone, drafter)

    def _drafter(self, name: str, shrink: int) -> tuple[Backbone, EncodedPrompt]:
        begin = self.stopwatch.clock.stamp()
        model = self._load_drafter(name)
        if self.backbone.toy_drafters and shrink > 1:
            model = model.variant({"drafter": name, "shrink": str(shrink)})
        self.meter.readings.append((begin, self.stopwatch.clock.stamp()))
        return model, self._encoded if model is self.backbone else model.open(self._prompt)

    def _session(self, model: Backbone, encoded: EncodedPrompt, name: str) -> Session:
        return Session(
            self._metered(self._new_cache(model, encoded), name, self._is_target(model)),
            model.capabilities,
            self._encoded.tokens,
            stopwatch=self.stopwatch,
            device=model.device,
            kind=_kind(name),
        )

    def _canvas(self, model: Backbone, encoded: EncodedPrompt, length: int, name: str) -> Canvas:
        return Canvas(
            self._metered(self._new_cache(model, encoded), name, self._is_target(model)),
            _placed(model.capabilities, len(encoded.tokens)),
            encoded.tokens,
            length=length,
            stopwatch=self.stopwatch,
            device=model.device,
            kind=_kind(name),
        )

    def _is_target(self, model: Backbone) -> bool:
        """Return whether a model's weights are bit-identical to the target's; its passes then count as the target's.

        Noise on its logits changes no weight. Weights that are rounded to another format are another model's.
        """
        model = model.weights_of or model
        saved = model.fingerprint not in ("", "unsaved")
        return model is self.backbone or (saved and _weights(model) == _weights(self.backbone))

    def _metered(self, cache: Cache, name: str, of_target: bool) -> Cache:
        in_batch = cache if self.slot is None else self.slot.cache(cache, _kind(name))
        clock, prompt = self.stopwatch.clock, len(self._encoded.tokens)
        return MeteredCache(in_batch, self.meter, clock, model=name, of_target=of_target, prompt=prompt)


def _weights(model: Backbone) -> tuple[str, str, str]:
    return model.fingerprint, model.weights_form, model.dtype


def _kind(name: str) -> str:
    """Return the kind of span of a model's passes; the target is the model without a name."""
    return "draft" if name else "target"


def _placed(capabilities: Capabilities, prompt_length: int) -> Capabilities:
    """Return the same capabilities, with a grid that begins behind the prompt."""
    if capabilities.grid is None:
        return capabilities
    return replace(capabilities, grid=replace(capabilities.grid, start=prompt_length))
