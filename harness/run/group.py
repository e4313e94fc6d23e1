"""Runs a group, all cells of one backbone and type: load, decode and score, prove, seal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from stridebench.harness.core.costs import Passes
from stridebench.harness.errors import RunIncomplete
from stridebench.harness.plan.cells import Cell, Plan
from stridebench.harness.platform.surroundings import restored
from stridebench.harness.record.store import Store
from stridebench.harness.run import drafter_health, quantisation
from stridebench.harness.run.isolation import IsolatedCells
from stridebench.harness.run.loading import LoadedGroup, WarmModels, load_group
from stridebench.harness.run.options import Options
from stridebench.harness.run.passes import settle
from stridebench.harness.run.schedule import Schedule
from stridebench.harness.run.scoring import Scorer


def run_group(plan: Plan, group: tuple[str, str], store: Store, options: Options) -> None:
    """All cells of one backbone and type, to their seals.

    Raises:
        RunIncomplete: the disk is full or the run was interrupted; what is finished stays.
    """
    models = WarmModels(all_at_once=True)
    try:
        run_cells(plan, [cell for cell in plan.runnable if cell.group == group], store, options, models)
    finally:
        models.release()


def run_cells(
    plan: Plan,
    cells: Sequence[Cell],
    store: Store,
    options: Options,
    models: WarmModels,
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Some cells of one group, to their seals; sealed ones are left as they are.

    Args:
        models: where the group's models are loaded to.
        facts: further entries of each cell's meta.

    Raises:
        RunIncomplete: the disk is full or the run was interrupted; what is finished stays.
    """
    for cell in cells:
        store.reopen(cell.id)
    left = [cell for cell in cells if not store.sealed(cell.id)]
    if not left:
        return
    threads = torch.get_num_threads()
    try:
        with torch.inference_mode():
            loaded = load_group(plan, left, store, options, models)
            if loaded is not None and loaded.cells:
                for note in quantisation.notes(loaded.cells, options.device):
                    options.progress.say(note)
                _run(loaded, models, _speeds(settle(loaded)) | dict(facts))
    except KeyboardInterrupt as stop:
        raise RunIncomplete(
            f"interrupted; everything finished is in {store.path}. Go on with the same command and --resume."
        ) from stop
    finally:
        torch.set_num_threads(threads)


def _speeds(passes: Passes | None) -> dict[str, Any]:
    """The threads of a cell and what windows cost with them, where that was measured."""
    if passes is None:
        return {}
    return {"threads": passes.threads, "window_costs": [list(entry) for entry in passes.rows]}


def _run(group: LoadedGroup, models: WarmModels, facts: Mapping[str, Any]) -> None:
    with IsolatedCells(group) as isolated:
        scorer = Scorer(group, isolated)
        Schedule(group, scorer, isolated).run()
        for cell in group.cells:
            group.store.refuse_missing(cell.id)
        if group.plan.suite.suite.prove:
            group.options.progress.say("proving: exact distributions by enumeration, greedy equality in fp32")
        facts_of_models = {cell: facts_of(group, cell) | quantisation.facts(cell) for cell in group.cells}
        rounding = quantisation.cost(group)
        from stridebench.harness.run.auditing import (  # after the decodes: it needs half a second
            audit_cell,
            columns,
            judged,
        )

        verdicts = models.verdicts(group)
        for cell in group.cells:
            samples = group.store.pending(cell.id)
            with restored():
                verdict = isolated.verdict(cell, samples) if cell in isolated else verdicts.of(cell, samples)
            result = audit_cell(group.plan, cell, samples)
            meta = group.plan.meta(cell) | {"status": "done"} | facts_of_models[cell] | columns(result)
            meta |= drafter_health.columns(cell, samples) | rounding | dict(facts)
            changed = scorer.other_weights(cell, samples) if cell in isolated else None
            meta |= {"verdict": judged(cell, verdict, result, changed), "set_scores": scorer.score_set(cell)}
            group.store.seal(cell.id, meta)


def facts_of(group: LoadedGroup, cell: Cell) -> dict[str, Any]:
    """The facts about its models that a cell's record holds."""
    backbone, grid = group.backbone, group.backbone.capabilities.grid
    drafters = [group.load_drafter(name) for name in cell.method.drafters()]
    return {
        "fingerprint": backbone.fingerprint,
        "backbone_notes": list(backbone.notes),
        "device": group.options.device,
        "drafter_fingerprint": drafters[0].fingerprint if drafters else None,
        "forward": backbone.forward_kind or type(backbone).__name__,
        "vocabulary": backbone.capabilities.vocabulary,
        "branches": backbone.capabilities.branches,
        "layers": backbone.capabilities.layers,
        "grid": {"rows": grid.rows, "columns": grid.columns, "stride": grid.stride} if grid else None,
    }
