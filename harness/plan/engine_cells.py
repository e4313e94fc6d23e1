"""From the engines of a suite to cells: which run, which are skipped and why."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.core.task import Sampling
from stridebench.harness.plan import presets
from stridebench.harness.plan.entries import EngineUse, TaskUse
from stridebench.harness.plan.resolve import Resolved
from stridebench.harness.plan.suite import EngineSuite, samplings
from stridebench.harness.record.entries import CellMeta, StoredSampling
from stridebench.harness.record.provenance import digest

FLOOR_BATCH = 4
"""Requests at once while the plain decode is made again, since a batch's size changes how sums are rounded."""


@dataclass(frozen=True)
class EngineCell:
    """One engine on one backbone, task and temperature, under one load.

    Args:
        backbone: whose tokenizer and distribution its tokens are held against.
        concurrency: requests under way at once (closed loop); 0: an open loop.
        rate: requests a second (open loop, Poisson arrivals); 0: a closed loop.
        role: "plain", "speculative", or "floor": the plain engine once more at T = 0, in another order and, if it
            takes several requests at once, in another batch.
        only_now: whether ``skip`` holds for this machine at this time, so that a resumed run tries the cell again.
    """

    use: EngineUse
    backbone: str
    dtype: str
    task: TaskUse
    sampling: Sampling
    max_new_tokens: int
    ignore_eos: bool
    seed: int
    concurrency: int = 1
    rate: float = 0.0
    role: str = "plain"
    skip: str | None = None
    only_now: bool = False

    @property
    def label(self) -> str:
        """Its name in tables."""
        return self.use.label + (" (again)" if self.role == "floor" else "")

    @property
    def load(self) -> str:
        """Its load in words."""
        return f"{self.rate:g}/s" if self.rate else str(self.concurrency)

    @property
    def config(self) -> CellMeta:
        """All that identifies the cell; hashed into its id."""
        config = CellMeta(
            plain=self.use.plain,
            backbone=self.backbone,
            dtype=self.dtype,
            task=self.task.name,
            task_params=self.task.params,
            sampling=StoredSampling(**vars(self.sampling)),
            max_new_tokens=self.max_new_tokens,
            ignore_eos=self.ignore_eos,
            seed=self.seed,
            concurrency=self.concurrency,
            rate=self.rate,
            role=self.role,
        )
        return config.merged(CellMeta.read(self.use.identity))

    @cached_property
    def id(self) -> str:
        """Readable, and unique by a hash of ``config``."""
        load = f"R{self.rate:g}" if self.rate else f"C{self.concurrency}"
        words = [self.label, self.backbone, f"T{self.sampling.temperature:g}", self.task.name, load]
        slug = ".".join(re.sub(r"[^\w=+-]+", "-", word, flags=re.ASCII).strip("-") for word in words)
        return f"{slug[:120]}-{digest(self.config.stored())[:8]}"

    @property
    def setting(self) -> tuple[Any, ...]:
        """What cells share that are compared with each other."""
        return self.backbone, self.task.title, self.sampling, self.concurrency, self.rate

    def meta(self, expected: int) -> CellMeta:
        """Return the facts of the cell that the manifest has before it runs."""
        known = CellMeta(cell=self.id, status="planned", load=self.load, expected=expected, label=self.label)
        return self.config.merged(known)


def engine_cells(resolved: Resolved, absent: Mapping[TaskUse, str]) -> tuple[EngineCell, ...]:
    """Every combination, each plain entry just before those that are compared with it, so that load differs little."""
    suite = resolved.suite
    if not isinstance(suite, EngineSuite):
        return ()
    cells: dict[str, EngineCell] = {}
    for cell in _combinations(resolved, suite):
        cells.setdefault(cell.id, replace(cell, skip=_reason(cell) or absent.get(cell.task)))
    return tuple(cells.values())


def _combinations(resolved: Resolved, suite: EngineSuite) -> Iterator[EngineCell]:
    loads = [(number, 0.0) for number in suite.load.concurrency] + [(0, rate) for rate in suite.load.rate]
    compared = {use.plain for use in resolved.engines}
    places = {use.label: place for place, use in enumerate(resolved.engines)}
    in_order = sorted(resolved.engines, key=lambda use: (places[use.plain or use.label], use.plain != ""))
    for entry, task in itertools.product(suite.backbones, resolved.tasks):
        for use, sampling in itertools.product(in_order, samplings(suite, task, entry)):
            if use.backbones and entry.name not in use.backbones:
                continue
            budget, eos = task.max_new_tokens or suite.max_new_tokens, suite.stop_at_eos and task.task.eos
            first = EngineCell(use, entry.name, entry.dtype[0], task, sampling, budget, not eos, suite.seed)
            first = replace(first, role="speculative" if use.plain else "plain")
            for concurrency, rate in loads:
                yield replace(first, concurrency=concurrency, rate=rate)
            if use.label in compared and sampling.temperature == 0:
                batch = FLOOR_BATCH if use.kind.tells.concurrent else 1
                yield replace(first, concurrency=batch, rate=0.0, role="floor")


def _reason(cell: EngineCell) -> str | None:
    """Return why a cell cannot run, as far as this is known without an engine, or None if it can."""
    if cell.task.task.modality not in ("text", "tabular"):
        return f"engines make text, and the task scores {cell.task.task.modality}"
    if cell.task.backbones and cell.backbone not in cell.task.backbones:
        return f"the suite keeps the task to {', '.join(cell.task.backbones)}"
    if cell.task.task.stops:
        return f"the task ends an output at {cell.task.task.stops[0]!r}, which engines are not told"
    if not cell.use.kind.tells.concurrent and (cell.concurrency > 1 or cell.rate):
        return "the engine decodes one request at a time"
    if cell.sampling.order != "temperature_first":
        return "engines apply the temperature before top-k and top-p"
    if cell.sampling.min_p:
        return "engines are asked for no min-p, whose place among the cuts they do not agree on"
    if cell.use.kind.reads_gguf and not cell.use.options.get("model") and not _has_gguf(cell.backbone):
        return f"{cell.use.name} reads a GGUF file, which {cell.backbone} is not: name one with `model`"
    return None


def _has_gguf(backbone: str) -> bool:
    source = presets.resolve(backbone).params.get("source")
    return source is not None and sources.gguf_place(sources.parse(backbone, source)) is not None
