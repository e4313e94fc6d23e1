"""Runs a group, all cells of one backbone and type: load, decode and score, prove, seal."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.costs import Passes
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import plain
from stridebench.harness.errors import RunIncomplete, StrideError
from stridebench.harness.machine.surroundings import restored
from stridebench.harness.plan import presets
from stridebench.harness.plan.cells import Cell, Plan
from stridebench.harness.record.entries import CellMeta, GridEntry
from stridebench.harness.record.store import Store
from stridebench.harness.run.auditing import audit_cell, audit_facts, drafter_facts, judged
from stridebench.harness.run.loading import LoadedGroup, Options, WarmModels, load_group
from stridebench.harness.run.passes import settle
from stridebench.harness.run.schedule import Schedule
from stridebench.harness.run.scoring import Scorer
from stridebench.harness.run.workers.isolation import IsolatedCells

# The cost of rounding a target's weights: its distributions against those of the full weights.
# Verdicts of a quantised cell are relative to the rounded weights, so this is measured apart, after all decodes: on
# outputs of the autoregressive baseline of the cell, one pass of each model an output.


OUTPUTS = 4
"""Outputs that are read; each is one pass of both models."""
FORMAT = re.compile(r"weights=(int\d|nf4)")


def format_of(name: str) -> str | None:
    """Return the format of a backbone's weights, by its name, or None if they are not quantised."""
    base = plain(name)
    pairs = name[len(base) + 1 :].split(",") if name != base else []
    return next((match[1] for pair in pairs if (match := FORMAT.fullmatch(pair))), None)


def adapted(cell: Cell) -> str | None:
    """Return the format of the weights to which a cell adds an adapter that was trained for full ones, or None."""
    adapts = any(kind == "adapter" for kind, _ in cell.method.components)
    return format_of(cell.backbone) if adapts else None


def notes(cells: Sequence[Cell], device: str) -> list[str]:
    """Name each method that adds an adapter to rounded weights, and a type in which these gain no speed."""
    cell = cells[0]
    form, name = format_of(cell.backbone), plain(cell.backbone)
    remembering = dict.fromkeys(cell.label for cell in cells if cell.method.remembers)
    methods = dict.fromkeys(cell.name for cell in cells if adapted(cell))
    lines = [
        f"{method}: its adapter was trained for full weights and is added to the {form} ones of {name}, which may cost "
        f"acceptance"
        for method in methods
    ]
    lines += [
        f"{label}: it drafts from outputs of earlier prompts, so its speed depends on their order"
        for label in remembering
    ]
    if form in ("int8", "int4") and device == "cpu" and cell.dtype != "bf16":
        lines.append(
            f"the {form} weights of {name} are rounded and multiplied in {cell.dtype}, which gains no speed; "
            f"kernels for them compute in bf16: --dtype bf16"
        )
    return lines


def unquantised(name: str) -> str | None:
    """Return the name of the same backbone without its format of weights, or None if its weights are full."""
    base = plain(name)
    pairs = name[len(base) + 1 :].split(",") if name != base else []
    kept = [pair for pair in pairs if not FORMAT.fullmatch(pair)]
    if len(kept) == len(pairs):
        return None
    return base + (f":{','.join(kept)}" if kept else "")


def cost(group: LoadedGroup) -> CellMeta:
    """Return facts of the group's cells, or none without quantised weights or without outputs.

    ``quantisation_kl``: KL(full, quantised) a token, nats. ``quantisation_agreement``: share of tokens whose most
    likely id is the same.
    """
    name = unquantised(group.backbone.name)
    cells = [cell for cell in group.cells if cell.role == "baseline"]
    if name is None or not cells:
        return CellMeta()
    outputs = _outputs(group, cells[0])
    if not outputs:
        return CellMeta()
    group.options.progress.say(f"reading {len(outputs)} outputs with the weights of {name} as they are")
    try:
        full = presets.load(name, group.backbone.dtype, group.backbone.device, group.options.fetch)
    except StrideError as error:
        return CellMeta(quantisation_reason=str(error))
    kl, same = distance(full, group.backbone, outputs)
    return CellMeta(quantisation_kl=kl, quantisation_agreement=same, quantisation_outputs=len(outputs))


def _outputs(group: LoadedGroup, cell: Cell) -> list[tuple[Prompt, Sequence[int]]]:
    prompts = {prompt.id: prompt for prompt in group.plan.prompts[cell.task]}
    samples = [sample for sample in group.store.pending(cell.id) if sample.status == "ok" and sample.tokens]
    return [(prompts[sample.prompt], sample.tokens) for sample in samples[:OUTPUTS]]


@torch.inference_mode()
def distance(full: Backbone, coarse: Backbone, outputs: Sequence[tuple[Prompt, Sequence[int]]]) -> tuple[float, float]:
    """Mean KL(full, coarse) a token at T = 1, nats, and how often both have the same most likely token."""
    from stridebench.harness.audit.output import target_logits

    divergence, same = [], []
    for prompt, output in outputs:
        p, q = (target_logits(side, prompt, output).float().log_softmax(-1) for side in (full, coarse))
        terms = p.exp() * (p - q)
        divergence.append(terms.where(p > -torch.inf, 0.0).sum(-1))  # a forced token leaves one id
        same.append(p.argmax(-1) == q.argmax(-1))
    return float(torch.cat(divergence).mean()), float(torch.cat(same).float().mean())


def run_group(plan: Plan, group: tuple[str, str], store: Store, options: Options) -> None:
    """All cells of one backbone and type, to their seals."""
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
    facts: CellMeta | None = None,
) -> None:
    """Some cells of one group, to their seals; sealed ones are left as they are.

    Args:
        models: where the group's models are loaded to.
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
                for note in notes(loaded.cells, options.device):
                    options.progress.say(note)
                _run(loaded, models, _speeds(settle(loaded)).merged(facts or CellMeta()))
    except KeyboardInterrupt as stop:
        raise RunIncomplete(
            f"interrupted; everything finished is in {store.path}. Go on with the same command and --resume."
        ) from stop
    finally:
        torch.set_num_threads(threads)


def _speeds(passes: Passes | None) -> CellMeta:
    """Return the threads of a cell and the cost of windows with them, if that was measured."""
    if passes is None:
        return CellMeta()
    return CellMeta(threads=passes.threads, window_costs=[list(entry) for entry in passes.rows])


def _run(group: LoadedGroup, models: WarmModels, facts: CellMeta) -> None:
    with IsolatedCells(group) as isolated:
        scorer = Scorer(group, isolated)
        Schedule(group, scorer, isolated).run()
        for cell in group.cells:
            group.store.refuse_missing(cell.id)
        if group.plan.suite.suite.prove:
            group.options.progress.say("proving: exact distributions by enumeration, greedy equality in fp32")
        facts_of_models = {cell: facts_of(group, cell) for cell in group.cells}
        facts = cost(group).merged(facts)
        verdicts = models.verdicts(group)
        for cell in group.cells:
            samples = group.store.pending(cell.id)
            with restored():
                verdict = isolated.verdict(cell, samples) if cell in isolated else verdicts.of(cell, samples)
            result = audit_cell(group.plan, cell, samples)
            changed = scorer.other_weights(cell, samples) if cell in isolated else None
            verdict, scores = judged(cell, verdict, result, changed), scorer.score_set(cell)
            conclusions = CellMeta(status="done", verdict=verdict, set_scores=scores)
            parts = (facts_of_models[cell], audit_facts(result), drafter_facts(cell, samples), facts, conclusions)
            group.store.seal(cell.id, group.plan.meta(cell).merged(*parts))
            group.options.progress.sealed(cell)


def facts_of(group: LoadedGroup, cell: Cell) -> CellMeta:
    """Return the facts about the models of a cell."""
    backbone, grid = group.backbone, group.backbone.capabilities.grid
    drafters = [group.load_drafter(name) for name in cell.method.drafters()]
    facts = CellMeta(
        fingerprint=backbone.fingerprint,
        backbone_notes=list(backbone.notes),
        device=group.options.device,
        drafter_fingerprint=drafters[0].fingerprint if drafters else None,
        forward=backbone.forward_kind or type(backbone).__name__,
        vocabulary=backbone.capabilities.vocabulary,
        branches=backbone.capabilities.branches,
        layers=backbone.capabilities.layers,
        grid=GridEntry(rows=grid.rows, columns=grid.columns, stride=grid.stride) if grid else None,
    )
    form = adapted(cell)
    return facts.merged(CellMeta(adapter_on=form)) if form else facts
