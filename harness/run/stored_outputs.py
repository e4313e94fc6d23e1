"""The outputs of a finished cell with their prompts, for evaluations elsewhere; and the scores that come back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from stridebench.harness.core.task import Layout, SetScore, Stored
from stridebench.harness.errors import UsageError
from stridebench.harness.record.files import make, put
from stridebench.harness.record.store import Store
from stridebench.harness.run.stored_audit import refuse_other_prompts, stored_plan

FOLDER = "attached"
"""Folder of a run with the files of results, one folder a cell."""


def stored_outputs(store: Store, cell: str) -> list[Stored]:
    """The outputs of a cell that did not fail, in the order of its prompts.

    Raises:
        UsageError: there is none, or the prompts at hand are not those of the run.
    """
    plan, samples = stored_plan(store), store.cell(cell).samples
    planned = plan.by_id.get(cell)
    if planned is None:
        raise UsageError(f"{cell} is no cell of the suite that {store.path} ran, as this version reads it")
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
    """Make the results in files scores of a cell, and keep the files in the run with their sha256.

    Args:
        store: the run.
        cell: id of a finished cell.
        layout: name of the layout.
        reader: of that name.
        files: see `Layout.read`.

    Raises:
        UsageError: a file is missing or malformed, or has results of other outputs; nothing is written then.
    """
    scores = reader.read(files, stored_outputs(store, cell))
    kept = []
    for key, path in files.items():
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        place = Path(FOLDER) / cell / f"{layout}-{digest[:12]}-{path.name}"
        make((store.path / place).parent)
        put(store.path / place, content)
        kept.append({"layout": layout, "key": key, "file": place.as_posix(), "sha256": digest})
    meta = store.meta(cell)
    earlier = [entry for entry in meta.get("attached") or () if entry["layout"] != layout]
    changed = {**(meta.get("set_scores") or {}), **{name: asdict(score) for name, score in scores.items()}}
    store.update(cell, set_scores=changed, attached=[*earlier, *kept])
    return scores
