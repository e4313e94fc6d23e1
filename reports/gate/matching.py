"""Which cells of two runs have one configuration, and why the others have no partner."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.store import Store

SEEDING = ("seed", "stop_at_eos", "batch", "role")
MATCHED = ("method", "params", "backbone", "dtype", "task", "task_params", "sampling", "max_new_tokens", *SEEDING)
"""Entries of a cell's meta in which two cells of methods agree that are compared."""
SERVED = ("engine", "label", "options", "serve", "way", "plain", "ignore_eos", "concurrency", "rate", "seed", "role")
MATCHED_ENGINES = (*SERVED, "backbone", "dtype", "task", "task_params", "sampling", "max_new_tokens")
"""The same of two cells of engines."""
NEAR = ("method", "engine", "backbone", "role")
"""Entries in which the nearest cell agrees at least."""


@dataclass(frozen=True)
class Planned:
    """Every cell of a run by its configuration.

    Args:
        missing: of the others, why each is not finished.
    """

    finished: Mapping[str, SealedCell]
    missing: Mapping[str, str]

    @staticmethod
    def of(store: Store) -> Planned:
        """Read a run."""
        finished: dict[str, SealedCell] = {}
        missing: dict[str, str] = {}
        sealed = {*store.cells(), *store.engine_cells()}
        for name, planned in (store.manifest.cells | store.manifest.engines).items():
            cell = store.cell(name) if name in sealed else None
            meta = planned if cell is None else cell.meta
            if meta.engine and meta.role == "floor":
                continue  # a plain decode that was made again, in another order
            if cell is not None and meta.status != "skipped":
                finished[configuration(meta)] = cell
            elif meta.status == "skipped":
                missing[configuration(meta)] = f"skipped: {meta.reason or 'no reason given'}"
            else:
                missing[configuration(meta)] = "not finished"
        return Planned(finished, missing)


def matched(meta: CellMeta) -> tuple[str, ...]:
    """Return the entries in which a cell agrees with those that it is compared with."""
    return MATCHED_ENGINES if meta.engine else MATCHED


def configuration(meta: CellMeta, words: Sequence[str] = ()) -> str:
    """Return what two cells must share, as a key.

    Args:
        words: the entries. Default: those of ``matched``.
    """
    stored = meta.stored()
    return json.dumps([stored.get(word) for word in words or matched(meta)], sort_keys=True)


def label_of(cell: SealedCell) -> str:
    """Return the name of a cell in tables."""
    meta = cell.meta
    return f"{meta.label}, load {meta.load}" if meta.engine else meta.label or cell.name


def name_of(cell: SealedCell) -> str:
    """Return the label of a cell with its backbone and setting."""
    meta = cell.meta
    model = meta.backbone if meta.engine else f"{meta.backbone} {meta.dtype}"
    return f"{label_of(cell)} ({model}, {meta.sampling.words})"


def why_alone(key: str, cell: SealedCell, other: Planned) -> str:
    """Return why the other run has no finished cell of this configuration, or "" if it has nothing like it."""
    if key in other.missing:
        return other.missing[key]
    here = configuration(cell.meta, NEAR)
    near = [one.meta for one in other.finished.values() if configuration(one.meta, NEAR) == here]
    differences = [[*_unlike(cell.meta, meta)] for meta in near]
    return f"the nearest cell differs in {', '.join(sorted(differences, key=len)[0])}" if near else ""


def _unlike(here: CellMeta, there: CellMeta) -> Iterator[str]:
    both = here.stored(), there.stored()
    for word in matched(here):
        one, other = (stored.get(word) for stored in both)
        if one == other:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            keys = [name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)]
            yield from (f"{name} ({one.get(name)} and {other.get(name)})" for name in keys)
        else:
            yield f"{word} ({one} and {other})"


def digest_of(tokens: Sequence[int] | None, text: str | None) -> str:
    """Return the sha256 of an engine's output: of its ids, or of its text if it tells none."""
    output = str(text) if tokens is None else json.dumps([int(token) for token in tokens])
    return hashlib.sha256(output.encode()).hexdigest()
