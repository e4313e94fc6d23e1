"""From a resolved suite to cells: which run, which are skipped and why, and the key of a run."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from stridebench.harness.core.method import Method
from stridebench.harness.core.task import Prompt, Sampling
from stridebench.harness.plan import presets
from stridebench.harness.plan.compatibility import vocabulary
from stridebench.harness.plan.engine_cells import EngineCell
from stridebench.harness.plan.entries import MethodUse, TaskUse
from stridebench.harness.plan.planned_method import PlannedMethod
from stridebench.harness.plan.resolve import Resolved
from stridebench.harness.record.entries import CellMeta, StoredSampling
from stridebench.harness.record.provenance import digest
from stridebench.harness.registry import METHODS, TASKS

# Which version of a plugin a run decodes with: its distribution and a digest of its source.


def plugin_identity(name: str) -> dict[str, str] | None:
    """Distribution, version and entry point of a method of another package, and the sha256 of its Python files.

    Files of other kinds, such as weights, are not read. Return None if the method is one of ours.
    """
    if not METHODS.from_plugin(name):
        return None
    top = sys.modules[METHODS.get(name).__module__.partition(".")[0]]
    digest = hashlib.sha256()
    for relative, path in _sources(top.__name__, [*getattr(top, "__path__", ())], getattr(top, "__file__", None)):
        digest.update(f"{relative}\0".encode())
        digest.update(path.read_bytes())
    return {"source": METHODS.source(name), "sha256": digest.hexdigest()}


def _sources(name: str, folders: list[str], file: str | None) -> Iterator[tuple[str, Path]]:
    """Python files of a package, or the one file of a module, by their path in it."""
    if not folders:
        yield from [(f"{name}.py", Path(file))] if file is not None else []
    for folder in map(Path, folders):
        for path in sorted(folder.rglob("*.py")):
            yield path.relative_to(folder).as_posix(), path


BASELINE = "autoregressive"
MASKED_BASELINE, QUERY_BASELINE = "masked_diffusion", "lpd"
"""The baselines of masked and of order-free models, which cannot give a next-token distribution: one token a step."""
_NOT_IN_KEY = frozenset(["name", "description", "methods", "prove", "greedy_check", "warmup", "report"])
_NOT_IN_KEY |= {"isolation", "sample_limit_s", "cell_limit_s", "budget", "chosen"}  # a resumed run may have others


Setting = tuple[str, str, str, Sampling, int]
"""Backbone, type, task, sampling and batch, which a cell shares with its baseline."""


@dataclass(frozen=True)
class Cell:
    """One method on one backbone, type, task and temperature.

    Args:
        role: "method"; "baseline", which the others are paired with; "floor", the baseline with other seeds.
        skip: why it will not run, or None if it will.
        batch: prompts decoded in lock step; the last batch may be smaller.
    """

    planned: PlannedMethod
    backbone: str
    dtype: str
    task: TaskUse
    sampling: Sampling
    max_new_tokens: int
    stop_at_eos: bool
    seed: int
    role: str = "method"
    skip: str | None = None
    batch: int = 1

    @property
    def name(self) -> str:
        """The method's registered name."""
        return self.planned.name

    @property
    def method(self) -> Method[Any]:
        """The method, whose module is imported for it."""
        return self.planned.method

    @property
    def label(self) -> str:
        """Its name in tables."""
        return self.planned.label + (" (other seeds)" if self.role == "floor" else "")

    @property
    def config(self) -> CellMeta:
        """All that identifies the cell; hashed into its id."""
        config = CellMeta(
            method=self.name,
            params=dict(self.planned.params),
            backbone=self.backbone,
            dtype=self.dtype,
            task=self.task.name,
            task_params=self.task.params,
            sampling=StoredSampling(**vars(self.sampling)),
            max_new_tokens=self.max_new_tokens,
            stop_at_eos=self.stop_at_eos,
            seed=self.seed,
            batch=self.batch,
            role="floor" if self.role == "floor" else "method",
        )
        return config.merged(CellMeta(chat=True)) if self.task.chat else config

    @cached_property
    def id(self) -> str:
        """Readable, and unique by a hash of ``config``."""
        words = [self.label, self.backbone, self.dtype, f"T{self.sampling.temperature:g}", self.task.name]
        words += [f"B{self.batch}"] if self.batch > 1 else []
        slug = ".".join(re.sub(r"[^\w=+-]+", "-", word, flags=re.ASCII).strip("-") for word in words)
        return f"{slug[:120]}-{digest(self.config.stored())[:8]}"

    @property
    def group(self) -> tuple[str, str]:
        """Cells that share a loaded model."""
        return self.backbone, self.dtype

    @cached_property
    def setting(self) -> Setting:
        """Cells that share a baseline."""
        return self.backbone, self.dtype, self.task.title, self.sampling, self.batch


@dataclass(frozen=True)
class Plan:
    """All cells of a suite, in the order of its tables, the prompts of each task, and the cells of engines."""

    suite: Resolved
    cells: tuple[Cell, ...]
    prompts: dict[TaskUse, tuple[Prompt, ...]]
    engines: tuple[EngineCell, ...] = ()

    @cached_property
    def runnable_engines(self) -> tuple[EngineCell, ...]:
        """Cells of engines without a reason to skip."""
        return tuple(cell for cell in self.engines if cell.skip is None)

    @cached_property
    def runnable(self) -> tuple[Cell, ...]:
        """Cells without a reason to skip."""
        return tuple(cell for cell in self.cells if cell.skip is None)

    @cached_property
    def by_id(self) -> dict[str, Cell]:
        """All cells by their ids."""
        return {cell.id: cell for cell in self.cells}

    @cached_property
    def _references(self) -> dict[tuple[str, Setting], Cell]:
        """Baselines and floors, by role and setting."""
        return {(cell.role, cell.setting): cell for cell in reversed(self.cells) if cell.role != "method"}

    def baseline(self, cell: Cell) -> Cell:
        """The autoregressive cell that it pairs with."""
        return self._references["baseline", cell.setting]

    def isolated(self, cell: Cell) -> bool:
        """Whether the cell runs in a worker process; baselines, whose outputs others need, never do."""
        isolation = self.suite.suite.isolation or ("process" if METHODS.from_plugin(cell.name) else "none")
        return cell.role == "method" and isolation == "process"

    def scored_apart(self, cell: Cell) -> bool:
        """Whether a worker process scores the outputs of the cell: those of tasks of other packages."""
        return self.suite.suite.isolation != "none" and TASKS.from_plugin(cell.task.name)

    def repetitions(self, use: TaskUse) -> int:
        """Decodes of each prompt of a task."""
        return use.repetitions or self.suite.suite.repetitions

    def floor(self, cell: Cell) -> Cell | None:
        """The second autoregressive set, where T > 0."""
        return self._references.get(("floor", cell.setting))

    def meta(self, cell: Cell) -> CellMeta:
        """Return the facts of a cell that the store has before it runs."""
        floor = self.floor(cell)
        plugin = plugin_identity(cell.name)
        meta = CellMeta(
            cell=cell.id,
            status="skipped" if cell.skip else "planned",
            reason=cell.skip,
            label=cell.label,
            claim=cell.planned.claim.name,
            source=cell.planned.source,
            modality=cell.task.task.modality,
            baseline=self.baseline(cell).id,
            floor=floor.id if floor else None,
            expected=len(self.prompts[cell.task]) * self.repetitions(cell.task),
            role=cell.role,
        )
        meta = cell.config.merged(meta)
        meta = meta.merged(CellMeta(plugin=plugin)) if plugin else meta
        return meta if self.suite.suite.timing else meta.merged(CellMeta(timed=False))

    def manifest(self) -> dict[str, Any]:
        """Return ``key``, which two runs must share to be mixed, and the entries ``cells``, ``suite`` and others.

        ``plugins`` of the key: version and digest of the source of methods of other packages.

        ``vocabularies``: token ids of every preset if they are known without loading it. ``sizes``: the parameters
        and bytes that a preset states.
        """
        suite = self.suite.suite.model_dump()
        key = {name: value for name, value in suite.items() if name not in _NOT_IN_KEY}
        if self.suite.suite.batches == (1,):
            del key["batch"]  # so that runs from before there were batches can be resumed
        if self.suite.suite.timing:
            del key["timing"]
        key["backbones"] = [
            {"name": entry.name, "dtype": entry.dtype}
            | ({"max_new_tokens": entry.max_new_tokens} if entry.max_new_tokens else {})
            | ({"sampling": dict(entry.pairs)} if entry.pairs else {})
            for entry in self.suite.suite.backbones
        ]
        key["methods"] = [_plain(use) for use in self.suite.uses]
        names = sorted({use.planned.name for use in self.suite.uses})
        if plugins := {name: plugin for name in names if (plugin := plugin_identity(name))}:
            key["plugins"] = plugins
        key["prompts"] = {
            use.title: digest([_hashable(p) for p in prompts])[:16] for use, prompts in self.prompts.items()
        }
        if self.engines:
            key["engines"] = [use.identity for use in self.suite.engines]
        sizes = {name: vocabulary(spec) for name, spec in presets.by_name().items()}
        return {
            "key": key,
            "cells": {cell.id: self.meta(cell).stored() for cell in self.cells},
            "suite": suite,
            "vocabularies": {name: size for name, size in sizes.items() if size is not None},
            "sizes": {name: spec.size for name, spec in presets.by_name().items() if spec.size},
            **({"engines": self._engine_facts()} if self.engines else {}),
        }

    def _engine_facts(self) -> dict[str, object]:
        """Return the facts of the engines' cells that this run, or a resumed one, can run, by id."""
        cells = (cell for cell in self.engines if cell.skip is None or cell.only_now)
        return {
            cell.id: cell.meta(len(self.prompts[cell.task]) * self.repetitions(cell.task)).stored() for cell in cells
        }


def _plain(use: MethodUse) -> list[Any]:
    return [
        use.planned.name,
        dict(use.planned.params),
        use.at,
        *([use.backbones] if use.backbones else []),
        *([{"tasks": use.tasks}] if use.tasks else []),
    ]


def _hashable(prompt: Prompt) -> list[Any]:
    content: list[Any] = [prompt.id, prompt.text, list(prompt.tokens or ())]
    if prompt.last:
        content.append(prompt.last)
    if prompt.messages:
        content.append([dict(message) for message in prompt.messages])
    if prompt.max_tokens:
        content.append({"max_tokens": prompt.max_tokens})
    if prompt.condition is None:
        return content
    return [*content, hashlib.sha256(prompt.condition.tobytes()).hexdigest()[:16]]


def modality(name: str) -> str:
    """The modality that decides which tasks fit: prompts of ids are for models of text too."""
    return "text" if name == "tabular" else name
