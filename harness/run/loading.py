"""Loads the backbone of a group, and skips the cells that cannot run on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import component
from stridebench.harness.errors import StoreError, UsageError, WeightsError
from stridebench.harness.machine.device import give_back
from stridebench.harness.plan import presets
from stridebench.harness.plan.cells import Cell, Plan
from stridebench.harness.plan.estimate import Workload
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.store import Store

if TYPE_CHECKING:
    from stridebench.harness.proof.verdicts import Verdicts


# How to run a plan, and the interface of its progress display.


class Progress:
    """Receives a run's stages and decodes; the default ignores them."""

    def say(self, text: str) -> None:
        """A stage begins."""

    def expect(self, decodes: int) -> None:
        """``decodes`` more decodes follow."""

    def expect_of(self, cell: Cell, decodes: int) -> None:
        """So many of the expected decodes are a cell's."""

    def timed(self, cell: Cell, prompt: Prompt, repetition: int, ms_per_token: float) -> None:
        """A decode took so many milliseconds an output token; ``done`` follows."""

    def done(self, cell: Cell, prompt: Prompt) -> None:
        """One decode is written."""

    def expect_work(self, work: Workload | None) -> None:
        """The run takes about so long, or nobody knows how long."""

    def sealed(self, cell: Cell) -> None:
        """A cell is finished, with its proof."""


@dataclass(frozen=True)
class Options:
    """How to run a plan.

    Args:
        allow_code: let tasks execute model output (in a sandboxed child process).
        executor: options of the executor, checked (`stridebench.harness.run.workers.pool`), or None for its defaults.
        interruptible: a KeyboardInterrupt is ^C and ends the run. In a worker process, which ^C does not reach, a
            plugin raised it, and it fails the sample.
    """

    allow_code: bool = False
    device: str = "cpu"
    fetch: bool = True
    progress: Progress = field(default_factory=Progress)
    executor: Any = None
    interruptible: bool = True


@dataclass(frozen=True)
class LoadedGroup:
    """A loaded backbone and the cells that run on it.

    Args:
        load_drafter: loads a drafter of the backbone by name, once.
    """

    plan: Plan
    store: Store
    options: Options
    cells: tuple[Cell, ...]
    backbone: Backbone
    load_drafter: Callable[[str], Backbone]


class WarmModels:
    """The backbone of one group at a time with its drafters and proofs, which stay for the next cells of the group.

    Args:
        all_at_once: every cell of a group comes in one call, so that proofs need only the weights in fp32.
    """

    def __init__(self, all_at_once: bool = False) -> None:
        self._all_at_once = all_at_once
        self._loaded: LoadedGroup | None = None
        self._verdicts: Verdicts | None = None

    def load(self, plan: Plan, cells: Sequence[Cell], store: Store, options: Options) -> LoadedGroup:
        """Load as `load_models` does, or nothing if the cells before were of the same group."""
        if self._loaded is None or self._loaded.cells[0].group != cells[0].group:
            self._loaded = self._verdicts = None  # free the memory before more is taken
            self._loaded = load_models(plan, cells, store, options)
            _refuse_other_weights(store, self._loaded.backbone, cells[0].group)
        return replace(self._loaded, plan=plan, store=store, options=options, cells=tuple(cells))

    def release(self) -> None:
        """Give their memory back."""
        self._loaded = self._verdicts = None
        give_back()

    def verdicts(self, group: LoadedGroup) -> Verdicts:
        """The proofs of the methods of the loaded group."""
        if self._verdicts is None:

            def release() -> None:
                if not self._all_at_once:
                    group.options.progress.say(
                        f"{group.backbone.name} is read again in fp32, which fits after its weights alone"
                    )
                group.backbone.release()
                self._loaded = self._verdicts = None  # the next cells of the group load it again

            more = (group.options.fetch, release, not self._all_at_once)
            from stridebench.harness.proof.verdicts import Verdicts

            self._verdicts = Verdicts(group.plan, group.backbone, group.load_drafter, *more)
        return self._verdicts


def load_group(
    plan: Plan, cells: Sequence[Cell], store: Store, options: Options, models: WarmModels
) -> LoadedGroup | None:
    """Load the backbone that the cells share; those that cannot run are sealed as skipped.

    Returns:
        The cells that run, or None if the backbone cannot be loaded.
    """
    try:
        group = models.load(plan, cells, store, options)
    except (WeightsError, UsageError) as error:
        _skip(plan, cells, store, options, f"{type(error).__name__}: {error}")
        return None
    missing: dict[str, list[Cell]] = {}
    for cell in cells:
        if reason := _missing(cell, group.backbone, group.load_drafter):
            missing.setdefault(reason, []).append(cell)
    for reason, unable in missing.items():
        _skip(plan, unable, store, options, reason)
    skipped = {cell for unable in missing.values() for cell in unable}
    return replace(group, cells=tuple(cell for cell in cells if cell not in skipped))


def load_models(plan: Plan, cells: Sequence[Cell], store: Store, options: Options) -> LoadedGroup:
    """The cells with the backbone that they share."""
    name, dtype = cells[0].group
    options.progress.say(f"loading {name} in {dtype}")
    if options.fetch:
        presets.fetch(name, options.progress.say)
    backbone = presets.load(name, dtype, options.device, options.fetch)
    for note in backbone.notes:
        options.progress.say(f"{name}: {note}")
    load_drafter = cache(partial(presets.drafter, backbone, fetch=options.fetch))
    return LoadedGroup(plan, store, options, tuple(cells), backbone, load_drafter)


def _refuse_other_weights(store: Store, backbone: Backbone, group: tuple[str, str]) -> None:
    """Cells of this group that were sealed before must have run on the same weights."""
    for name in store.cells():
        meta = store.meta(name)
        same_group = (meta.backbone, meta.dtype) == group
        if same_group and meta.fingerprint not in (None, backbone.fingerprint):
            raise StoreError(
                f"{name} in {store.path} was made with other weights of {meta.backbone} than those "
                f"at hand now; start another run folder"
            )


def _missing(cell: Cell, backbone: Backbone, load_drafter: Callable[[str], Backbone]) -> str:
    """Why the loaded backbone cannot run a cell, or one of its drafters or components be opened; empty: all can."""
    if lacking := sorted(need.name for need in cell.method.requirements - backbone.capabilities.meets):
        return f"{backbone.name} does not meet {', '.join(lacking)}"
    try:
        for drafter in cell.method.drafters():
            load_drafter(drafter)
    except (WeightsError, UsageError) as error:
        return f"drafter: {error}"
    if backbone.toy_drafters:
        return ""
    try:
        for kind, name in cell.method.components:
            component(kind, name, backbone.name, backbone.fingerprint)
    except WeightsError as error:
        return str(error)
    return ""


def _skip(plan: Plan, cells: Sequence[Cell], store: Store, options: Options, reason: str) -> None:
    """Seal cells as skipped, except those that have samples: they wait for a run that can continue."""
    options.progress.say(f"skipped {len(cells)} cells: {reason}")
    for cell in cells:
        if not store.done(cell.id):
            store.seal(cell.id, plan.meta(cell).merged(CellMeta(status="skipped", reason=reason)))
