"""Drafters and draft trees against our own autoregressive decoding: the fastest that can run, and trees of 60 nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pandas as pd

from stridebench.harness.bench.paired import LOOKUP, Result, Settings, build, compare, decoded, in_turn, prompt_ids
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.method import Method, label
from stridebench.harness.discover import component
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.harness.plan import presets


class Rival(NamedTuple):
    """A method that may be the fastest, and its parameters."""

    method: str
    params: dict[str, Any]

    def load(self, backbone: Backbone) -> Method[Any]:
        """The method, after a check that its weights are there.

        Raises:
            WeightsError, UsageError: they are absent, or it does not fit the backbone.
        """
        method = build(self.method, dict(self.params))
        for kind, name in method.components:
            component(kind, name, backbone.name)
        for drafter in method.drafters():
            presets.drafter(backbone, drafter, fetch=False)
        return method


RIVALS = (
    Rival("prompt_lookup", LOOKUP),
    Rival("lookahead", {"ngram": 3, "window": 3, "guesses": 3}),
    Rival("blockwise", {}),
    *(Rival("medusa", {"nodes": nodes}) for nodes in (4, 8, 16)),
    *(
        Rival(kind, {"depth": 2, "width": width, "nodes": 2 * width})
        for kind in ("eagle2", "eagle3")
        for width in (2, 3)
    ),
    *(Rival(kind, {"depth": 3, "width": 4, "nodes": 16}) for kind in ("eagle2", "eagle3")),
    Rival("speculative", {"drafter": "self:layers=26", "gamma": 2}),
    Rival("speculative", {"drafter": "smollm2-drafter", "gamma": 3}),
)
"""Candidates for the fastest. Their trees are small, because few nodes are cheap on a CPU."""
LARGE = (
    Rival("eagle3", {"depth": 5, "width": 10, "nodes": 60}),
    Rival("eagle2", {"depth": 5, "width": 10, "nodes": 60}),
    Rival("medusa", {"nodes": 60}),
    Rival("lookahead", {"ngram": 5, "window": 8, "guesses": 7}),
)
"""Trees of 60 nodes. Lookahead's last one has 4 * 8 + 4 * 7."""
TRIALS = 4
"""Prompts on which the fastest is chosen. None of them is timed again."""


def fastest(dtype: str, goal: float) -> Callable[[str, Settings], Result]:
    """Tokens a second of the best of RIVALS against our own autoregressive decoding.

    It is chosen on other prompts than those that are timed, so the choice does not bias the result.
    """

    def act(name: str, settings: Settings) -> Result:
        backbone = presets.load(settings.backbone, dtype)
        trial, prompts = in_halves(prompt_ids(backbone, TRIALS + settings.pairs))
        methods, missing = _opened(RIVALS, backbone)
        tokens = settings.tokens
        speeds = {label(m): compare(name, _beside(m, backbone, trial, tokens), "", None).ratio for m in methods}
        best = max(methods, key=lambda method: speeds[label(method)])
        result = compare(name, _beside(best, backbone, prompts, tokens), "tokens/s", goal)
        tried = ", ".join(f"{title} {speed:.2f}" for title, speed in speeds.items())
        note = f"{label(best)}; {result.note}; on {TRIALS} other prompts: {tried}"
        return replace(result, note="; ".join([note, *missing]))

    return act


def large(dtype: str) -> Callable[[str, Settings], Result]:
    """Tokens a second with trees of 60 nodes against our own autoregressive decoding, and the host's share of a step.

    Takes the first of LARGE whose weights are there.
    """

    def act(name: str, settings: Settings) -> Result:
        backbone = presets.load(settings.backbone, dtype)
        methods, missing = _opened(LARGE, backbone)
        prompts = in_halves(prompt_ids(backbone, TRIALS + settings.pairs))[1]
        result = compare(name, _beside(methods[0], backbone, prompts, settings.tokens), "tokens/s", None)
        steps = [s for ids in prompts for s in decoded(methods[0], backbone, ids, settings.tokens, False).steps]
        wall = sum(step.wall_ns for step in steps)
        share = sum(step.wall_ns - step.target_ns - step.draft_ns for step in steps) / wall
        nodes, ms = sum(step.drafted for step in steps) / len(steps), wall / len(steps) / 1e6
        note = f"{label(methods[0])}; {nodes:.0f} nodes and {ms:.0f} ms a cycle, host {share:.0%}; {result.note}"
        return replace(result, note="; ".join([note, *missing]))

    return act


def in_halves(prompts: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts to choose on, evenly spread, and the rest."""
    chosen = {(2 * i + 1) * len(prompts) // (2 * TRIALS) for i in range(TRIALS)}
    sides = ([p for i, p in enumerate(prompts) if (i in chosen) is side] for side in (True, False))
    first, rest = sides
    return first, rest


def _opened(rivals: Sequence[Rival], backbone: Backbone) -> tuple[list[Method[Any]], list[str]]:
    """The methods that can run, and a note on the others."""
    methods: list[Method[Any]] = []
    missing: dict[str, None] = {}
    for rival in rivals:
        try:
            methods.append(rival.load(backbone))
        except (WeightsError, UsageError):
            missing[str(rival.params.get("drafter", rival.method))] = None
    return methods, [f"not at hand for {backbone.name}, or not fitting it: {', '.join(missing)}"] if missing else []


def _beside(method: Method[Any], backbone: Backbone, prompts: list[list[int]], tokens: int) -> pd.DataFrame:
    """Pairs of a method and of autoregressive decoding."""
    plain = build("autoregressive", {})

    def with_method(ids: list[int]) -> Sequence[int]:
        return decoded(method, backbone, ids, tokens, False).tokens

    def with_baseline(ids: list[int]) -> Sequence[int]:
        return decoded(plain, backbone, ids, tokens, False).tokens

    return in_turn((with_method, with_baseline), prompts)
