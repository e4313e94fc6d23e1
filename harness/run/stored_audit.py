"""Audits the outputs of a stored run anew, with the weights that made them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from stridebench.harness.audit.bets import Bets
from stridebench.harness.audit.output import target_logits
from stridebench.harness.audit.verdict import Audit, audit
from stridebench.harness.core.capabilities import UNORDERED, Requirement
from stridebench.harness.core.method import Claim
from stridebench.harness.core.task import Layout, SetScore, Stored
from stridebench.harness.errors import StoreError, UsageError
from stridebench.harness.plan.cells import Cell, Plan
from stridebench.harness.plan.expand import expand
from stridebench.harness.plan.resolve import resolve_again
from stridebench.harness.record.entries import CellMeta, StoredSampling, StoredSetScore
from stridebench.harness.record.files import make, put
from stridebench.harness.record.store import Store
from stridebench.harness.run.auditing import (
    MASKED,
    OTHER_RULE,
    audited_sample,
    audited_together,
    draws_by_other_rule,
    of_masked_model,
)
from stridebench.harness.run.loading import LoadedGroup, Options, load_models

NO_ORDER = "its run made no bets, and the order in which a canvas was filled is not stored"


@dataclass(frozen=True)
class AuditedCell:
    """The audit of one cell, or the reason for its absence.

    Args:
        setting: backbone, type, temperature and task, as the run's table names them.
    """

    name: str
    label: str
    claim: Claim
    dtype: str
    audit: Audit | None
    reason: str | None = None
    setting: str = ""

    @property
    def refuted(self) -> bool:
        """Whether the cell claims the target's distribution, and its outputs refute that."""
        return self.claim is Claim.SAME_LAW and self.audit is not None and self.audit.verdict == "refuted"


def audit_store(store: Store, dtype: str | None, options: Options) -> list[AuditedCell]:
    """The audits of all sealed cells at T > 0.

    Args:
        dtype: in which the distributions are computed, or None for that of each cell.
    """
    plan = stored_plan(store)
    sealed = set(store.cells())
    cells = [cell for cell in plan.runnable if cell.id in sealed and cell.sampling.temperature > 0]
    if not cells:
        raise UsageError(f"{store.path} has no finished cell at a temperature above 0, so nothing was drawn")
    refuse_other_prompts(plan, store, cells)
    rows: list[AuditedCell] = []
    with torch.inference_mode():
        for group in dict.fromkeys(cell.group for cell in cells):
            members = [cell for cell in cells if cell.group == group]
            rows += _audit_group(plan, members, store, dtype, options)
    return rows


def stored_plan(store: Store) -> Plan:
    """The plan of a stored run, with its prompts as this installation has them."""
    suite = store.manifest.suite
    if not suite.model_fields_set:
        raise UsageError(f"{store.path} does not say which suite it ran, so its prompts are not known; run it again")
    return expand(resolve_again(suite.stored()))


def refuse_other_prompts(plan: Plan, store: Store, cells: list[Cell]) -> None:
    """Refuse prompts that are not those of the run."""
    stored, here = store.manifest.key.prompts, plan.manifest()["key"]["prompts"]
    for task in dict.fromkeys(cell.task for cell in cells):
        if stored.get(task.title) != here[task.title]:
            raise UsageError(
                f"the prompts of {task.title} are not those that {store.path} decoded; install the version and the "
                f"data that made the run, or run it again"
            )


def _audit_group(
    plan: Plan, cells: list[Cell], store: Store, dtype: str | None, options: Options
) -> Iterator[AuditedCell]:
    loaded = [replace(cell, dtype=dtype or cell.dtype) for cell in cells]
    group = load_models(plan, loaded, store, options)
    for cell, as_loaded in zip(cells, loaded, strict=True):
        options.progress.say(f"auditing {cell.label}")
        meta = store.cell(cell.id).meta
        fingerprint = meta.fingerprint
        if cell.dtype == as_loaded.dtype and fingerprint not in (None, group.backbone.fingerprint):
            raise StoreError(
                f"{cell.id} in {store.path} was made with other weights of {cell.backbone} than those at hand now; "
                f"audit it on the machine that has its weights"
            )
        setting = f"{cell.backbone} {cell.dtype}, {StoredSampling(**vars(cell.sampling)).words}, {cell.task.title}"
        yield replace(_audit_cell(group, cell), setting=setting)


def _audit_cell(group: LoadedGroup, cell: Cell) -> AuditedCell:
    """The audit of a stored cell; the loaded backbone may be of another type."""
    claim, dtype = cell.method.claim, group.backbone.dtype
    if UNORDERED & group.backbone.capabilities.meets or of_masked_model(cell):
        return AuditedCell(cell.id, cell.label, claim, dtype, None, MASKED)
    if draws_by_other_rule(cell.method):
        return AuditedCell(cell.id, cell.label, claim, dtype, None, OTHER_RULE)
    if Requirement.ANY_ORDER in cell.method.requirements:
        return _audit_canvas(group, cell)
    prompts = {prompt.id: prompt for prompt in group.plan.prompts[cell.task]}
    bets: list[Bets] = []
    emitted = group.store.cell(cell.id).steps.groupby(["prompt", "repetition"], sort=False)["emitted"].agg(list)
    for (name, repetition), tokens in group.store.outputs(cell.id).items():
        if not tokens:
            continue
        prompt = prompts[name]
        logits = target_logits(group.backbone, prompt, tokens)
        context = [*group.backbone.open(prompt).tokens, *map(int, tokens)]
        plain = audited_sample(group, cell, prompt, context, logits.double(), emitted.get((name, repetition), ()))
        if "gains" not in plain:
            return AuditedCell(cell.id, cell.label, claim, dtype, None, str(plain["reason"]))
        bets.append(Bets.of(plain))
    if not bets:
        return AuditedCell(cell.id, cell.label, claim, dtype, None, "no sample succeeded")
    return AuditedCell(cell.id, cell.label, claim, dtype, audit(bets, audited_together(group.plan)))


def _audit_canvas(group: LoadedGroup, cell: Cell) -> AuditedCell:
    """The audit of a cell by the bets of its run, because the order in which a canvas was filled is not stored."""
    claim, samples = cell.method.claim, group.store.cell(cell.id).samples
    timed = samples[(samples["status"] == "ok") & ~samples["warmup"].astype(bool)]
    plain = [json.loads(text) for text in timed["audit"]] if "audit" in timed else []
    bets = [Bets.of(one) for one in plain if "gains" in one]
    if not bets:
        return AuditedCell(cell.id, cell.label, claim, cell.dtype, None, NO_ORDER)
    return AuditedCell(cell.id, cell.label, claim, cell.dtype, audit(bets, audited_together(group.plan)))


# The outputs of a finished cell with their prompts, for evaluations elsewhere; and the scores that come back.


FOLDER = "attached"
"""Folder of a run with the files of results, one folder a cell."""


def stored_outputs(store: Store, cell: str) -> list[Stored]:
    """The outputs of a cell that did not fail, in the order of its prompts."""
    plan, samples = stored_plan(store), store.cell(cell).samples
    planned = plan.by_id.get(cell)
    if planned is None:
        raise UsageError(f"{cell} is not a cell of the suite that {store.path} ran, as this version reads it")
    refuse_other_prompts(plan, store, [planned])
    places = {prompt.id: (place, prompt) for place, prompt in enumerate(plan.prompts[planned.task])}
    timed = samples[(samples["status"] == "ok") & ~samples["warmup"].astype(bool)]
    rows = sorted(timed.to_dict("records"), key=lambda row: (places[row["prompt"]][0], row["repetition"]))
    if not rows:
        raise UsageError(f"{cell} has no output; choose another cell")
    return [
        Stored(
            places[row["prompt"]][1],
            int(row["repetition"]),
            store.path / row["output"] if row["output"] else str(row["text"]),
        )
        for row in rows
    ]


def attach(store: Store, cell: str, layout: str, reader: Layout, files: Mapping[str, Path]) -> dict[str, SetScore]:
    """Make the results in files scores of a cell, and keep the files in the run with their sha256."""
    scores = reader.read(files, stored_outputs(store, cell))
    kept: list[dict[str, str | list[str]]] = []
    for key, path in files.items():
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        place = Path(FOLDER) / cell / f"{layout}-{digest[:12]}-{path.name}"
        make((store.path / place).parent)
        put(store.path / place, content)
        kept.append({"layout": layout, "key": key, "file": place.as_posix(), "sha256": digest, "scores": list(scores)})
    meta = store.meta(cell)
    again = [key for key in files if key]  # categories; the only file of a layout has no key
    earlier = [
        entry
        for entry in meta.attached
        if entry["layout"] != layout or (entry["key"] not in again and set(entry.get("scores", ())) - scores.keys())
    ]
    changed = meta.set_scores | {name: StoredSetScore(**vars(score)) for name, score in scores.items()}
    store.update(cell, CellMeta(set_scores=changed, attached=[*earlier, *kept]))
    return scores
