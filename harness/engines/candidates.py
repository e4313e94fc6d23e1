"""Watches the candidate generators of transformers: what is drafted, what is kept, and when tokens arrive."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from stridebench.harness.core.engine import AcceptanceCounts, Chunk


@dataclass
class Steps:
    """Counts what a candidate generator proposes and what `generate` keeps of it; it behaves as the generator else.

    Args:
        generator: of transformers.
        drafted: candidates of each target pass.
        accepted: those kept of each target pass.
    """

    generator: Any
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.generator, name)

    def get_candidates(self, input_ids: Any, **options: Any) -> Any:
        """The generator's, counted."""
        candidates = self.generator.get_candidates(input_ids, **options)
        self.drafted.append(int(candidates[0].shape[1] - input_ids.shape[1]))
        return candidates

    def update_candidate_strategy(self, input_ids: Any, scores: Any, num_matches: int) -> Any:
        """The generator's, which is told how many candidates were kept."""
        self.accepted.append(int(num_matches))
        return self.generator.update_candidate_strategy(input_ids, scores, num_matches)

    def counts(self) -> AcceptanceCounts:
        """The passes that had a draft, and all passes."""
        pairs = [(d, min(a, d)) for d, a in zip(self.drafted, self.accepted, strict=False) if d]
        kept = [accepted for _, accepted in pairs]
        histogram = tuple(kept.count(number) for number in range(max(kept, default=0) + 1))
        return AcceptanceCounts(
            draft_steps=len(pairs),
            drafted=sum(drafted for drafted, _ in pairs),
            accepted=sum(kept),
            histogram=histogram,
            target_passes=len(self.drafted),
        )


class Watch:
    """Within it, the candidate generator that `generate` makes is counted; ``steps`` is None where it makes none."""

    def __init__(self, model: Any) -> None:
        self.steps: Steps | None = None
        self._model = model
        self._make = model._get_candidate_generator

    def __enter__(self) -> None:
        self._model._get_candidate_generator = self

    def __exit__(self, *error: object) -> None:
        del self._model._get_candidate_generator

    def __call__(self, **options: Any) -> Steps:
        self.steps = Steps(self._make(**options))
        return self.steps


class Arrivals:
    """A streamer that notes when each part of an output arrives; the first is the prompt."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self._prompt = True

    def put(self, value: Any) -> None:
        """Some ids."""
        if not self._prompt:
            self.chunks.append(Chunk(time.perf_counter_ns(), int(value.numel())))
        self._prompt = False

    def end(self) -> None:
        """The output is complete."""
        return
