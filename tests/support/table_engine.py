"""An engine that draws from the toy backbone `tabular`, rightly or with a bias, and fails where it is told to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import mock

import torch

from stridebench.harness.audit.output import target_logits
from stridebench.harness.core.engine import (
    AcceptanceCounts,
    Chunk,
    Counters,
    Engine,
    EngineFault,
    EngineRequest,
    EngineWeights,
    Reply,
    Tells,
)
from stridebench.harness.plan import presets
from stridebench.harness.registry import ENGINES

NAME = "table"
FAILURES: dict[str, list[str | None]] = {}
"""For each tag, what the next requests do: a kind of fault, or None for an answer. Where the list ends: answers."""
REQUESTS: list[tuple[str, EngineRequest]] = []
"""All requests with the tag of their engine."""


@dataclass
class TableEngine(Engine):
    """Draws from the table.

    Args:
        tag: a name for ``FAILURES`` and ``REQUESTS``.
        bias: probability that a token is the argmax instead of a draw.
        sharpen: exponent of the probabilities, as other weights would have it.
        stream: outputs of another stream draw anew at the same seed.
        told: counts that it tells of each request beside those that are right.
        lost: accepted drafts that its counters miss.
        short: leaves out so many tokens.
        forget_seed: draws from a seed of its own each time.
        texts: tells a text instead of ids.
        slip: greedy decodes take the second best id at every so many tokens; 0: never.
    """

    tag: str = ""
    bias: float = 0.0
    sharpen: float = 1.0
    stream: int = 0
    wrong_length: bool = False
    lost: int = 0
    short: int = 0
    forget_seed: bool = False
    texts: bool = False
    slip: int = 0

    tells: ClassVar[Tells] = Tells(True, True, "token", counters=("drafted", "accepted"))

    def open(self, weights: EngineWeights) -> None:
        self.backbone = presets.load("tabular", "fp64")
        self.total = Counters({"drafted": 0.0, "accepted": 0.0})
        self.fresh = 0

    def counters(self) -> Counters:
        return self.total

    def generate(self, request: EngineRequest) -> Reply:
        REQUESTS.append((self.tag, request))
        planned = FAILURES.get(self.tag) or [None]
        kind = planned.pop(0) if FAILURES.get(self.tag) else None
        if kind is not None:
            raise EngineFault(kind, "as planned")
        self.fresh += self.forget_seed
        generator = torch.Generator().manual_seed(request.seed + 1_000_003 * self.stream + self.fresh)
        tokens: list[int] = []
        chunks = []
        for _ in range(request.max_tokens - self.short):
            tokens.append(self._token([*request.ids, *tokens], request, generator))
            chunks.append(Chunk(time.perf_counter_ns(), 1))
        accepted = len(tokens) // 2
        values = self.total.values
        grown = {"drafted": values["drafted"] + 2 * accepted, "accepted": values["accepted"] + accepted - self.lost}
        self.total = Counters(grown)
        counts = AcceptanceCounts(
            draft_steps=accepted,
            drafted=2 * accepted,
            accepted=accepted,
            histogram=(0, accepted),
            target_passes=len(tokens) - accepted,
            told_length=3.0 if self.wrong_length else 2.0 if accepted else None,
        )
        told = (None, "".join(map(str, tokens))) if self.texts else (tuple(tokens), None)
        return Reply(*told, tuple(chunks), len(tokens), len(request.ids), "length", acceptance=counts)

    def _token(self, context: list[int], request: EngineRequest, generator: torch.Generator) -> int:
        logits = target_logits(self.backbone, context, [0])[0]
        if self.slip and request.temperature == 0 and len(context) % self.slip == 0:
            return int(logits.topk(2).indices[1])
        if request.temperature == 0 or torch.rand((), generator=generator) < self.bias:
            return int(logits.argmax())
        probs = (self.sharpen * logits / request.temperature).softmax(-1)
        return int(torch.multinomial(probs, 1, generator=generator))


@contextmanager
def table_engine() -> Iterator[None]:
    """The engine is registered, and nothing is planned."""
    FAILURES.clear()
    REQUESTS.clear()
    for name in ENGINES:
        ENGINES.get(name)  # its file registers it once, which must not be undone below
    items: dict[str, Any] = {**ENGINES._items, NAME: TableEngine}
    with (
        mock.patch.object(ENGINES, "_items", items),
        mock.patch.object(ENGINES, "_source", {**ENGINES._source, NAME: "test"}),
    ):
        yield
