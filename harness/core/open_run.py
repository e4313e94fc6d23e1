"""Opening a run on one prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.bench import costs
from harness.core.backbone import Backbone, EncodedPrompt
from harness.core.batch import Slot
from harness.core.cache import Cache
from harness.core.canvas import Canvas
from harness.core.clock import CpuClock, Stopwatch
from harness.core.draws import Draws
from harness.core.run import Run
from harness.core.sampling import Sampling
from harness.core.session import Session
from harness.core.task import Prompt
from harness.errors import UsageError


def open_run(
    backbone: Backbone,
    drafters: Callable[[str], Backbone],
    prompt: Prompt | Sequence[int],
    sampling: Sampling,
    budget: int,
    draws: Draws,
    stopwatch: Stopwatch | None = None,
    encoded: EncodedPrompt | None = None,
    slot: Slot | None = None,
) -> Run:
    """A run on one prompt.

    Args:
        drafters: loads a drafter by name; called when a method opens it. prompt: or bare token ids.
        budget: output tokens allowed. stopwatch: shared by target and drafters; its own one by default.
        opening: the prompt as ``backbone`` has read it already. seat: where it decodes in a gang.
    """
    watch = Stopwatch(CpuClock()) if stopwatch is None else stopwatch
    asked = prompt if isinstance(prompt, Prompt) else Prompt("", tokens=tuple(prompt))
    opened = backbone.open(asked) if encoded is None else encoded
    grid = backbone.capabilities.grid
    capabilities = (
        replace(backbone.capabilities, grid=replace(grid, start=len(opened.tokens))) if grid else backbone.capabilities
    )
    length = min(budget, capabilities.context - len(opened.tokens))

    def cache(source: EncodedPrompt, kind: str) -> Cache:
        return source.cache() if slot is None else slot.cache(source.cache(), kind)

    def session(model: Backbone, source: EncodedPrompt, kind: str) -> Session:
        held = cache(source, kind)
        return Session(held, model.capabilities, opened.tokens, stopwatch=watch, device=model.device, kind=kind)

    def canvas() -> Canvas:
        return Canvas(
            cache(opened, "target"), capabilities, opened.tokens, length=length, stopwatch=watch, device=backbone.device
        )

    def scaled(name: str, shrink: int) -> tuple[Backbone, EncodedPrompt]:
        model = drafters(name)
        if toys and shrink > 1:
            model = model.variant({"drafter": name, "shrink": str(shrink)})
        return model, opened if model is backbone else model.open(asked)

    toys = getattr(backbone, "toy_drafters", False)

    def drafter(name: str, shrink: int) -> Session:
        return session(*scaled(name, shrink), "draft")

    def picture(name: str, shrink: int) -> Canvas:
        model, source = scaled(name, shrink)
        if model.capabilities.grid is None:
            raise UsageError(f"the drafter {name!r} makes no pictures; choose one that does")
        grid = replace(model.capabilities.grid, start=len(source.tokens))
        return Canvas(
            cache(source, "draft"),
            replace(model.capabilities, grid=grid),
            source.tokens,
            length=grid.length,
            stopwatch=watch,
            device=model.device,
            kind="draft",
        )

    def features(name: str, make: Callable[[], Cache], tokens: Sequence[int]) -> Session:
        model = drafters(name) if toys else backbone
        made = model.open(Prompt("", tokens=opened.tokens[1:])).cache() if toys else make()
        held = made if slot is None else slot.cache(made, "draft")
        return Session(held, model.capabilities, tokens, stopwatch=watch, device=backbone.device, kind="draft")

    return Run(
        target=session(backbone, opened, "target"),
        draws=draws,
        sampling=sampling,
        capabilities=capabilities,
        budget=length,
        opener=drafter,
        picture_opener=picture,
        canvas_opener=canvas,
        feature_opener=features,
        stopwatch=watch,
        eos=backbone.capabilities.eos,
        toys=toys,
        slot=slot,
        backbone=backbone.name,
        fingerprint=backbone.fingerprint,
        tied_embeddings=backbone.tied_embeddings,
        adapters=backbone.adapter,
        condition=opened.condition,
        costs=lambda part: costs.of(backbone, part),
    )
