"""Which cells of two runs have one configuration, and why the others have no partner."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stridebench.harness.record.store import Cell, Store

SEEDING = ("seed", "stop_at_eos", "batch", "role")
MATCHED = ("method", "params", "backbone", "dtype", "task", "task_params", "sampling", "max_new_tokens", *SEEDING)
"""Entries of a cell's meta in which two cells that are compared agree."""
NEAR = ("method", "backbone", "role")
"""Entries in which the nearest cell agrees at least."""


@dataclass(frozen=True)
class Planned:
    """Every cell of a run by its configuration.

    Args:
        finished: the finished cells.
        missing: of the others, why each is not finished.
    """

    finished: Mapping[str, Cell]
    missing: Mapping[str, str]

    @staticmethod
    def of(store: Store) -> Planned:
        """Read a run."""
        finished: dict[str, Cell] = {}
        missing: dict[str, str] = {}
        sealed = set(store.cells())
        for name, planned in store.manifest["cells"].items():
            cell = store.cell(name) if name in sealed else None
            meta = planned if cell is None else cell.meta
            if cell is not None and meta.get("status", "done") != "skipped":
                finished[configuration(meta)] = cell
            elif meta.get("status") == "skipped":
                missing[configuration(meta)] = f"skipped: {meta.get('reason') or 'no reason given'}"
            else:
                missing[configuration(meta)] = "not finished"
        return Planned(finished, missing)


def configuration(meta: Mapping[str, Any]) -> str:
    """Return what two cells must share, as a key."""
    return json.dumps([meta.get(word) for word in MATCHED], sort_keys=True)


def name_of(cell: Cell) -> str:
    """Return the label of a cell with what it ran on."""
    meta = cell.meta
    where = f"{meta.get('backbone')} {meta.get('dtype')}, T = {temperature(meta):g}"
    return f"{meta.get('label', cell.name)} ({where})"


def temperature(meta: Mapping[str, Any]) -> float:
    """Return the temperature of a cell; 0 is greedy."""
    return float((meta.get("sampling") or {}).get("temperature", 0.0))


def why_alone(key: str, cell: Cell, other: Planned) -> str:
    """Return why the other run has no finished cell of this configuration, or "" where it has nothing like it."""
    if key in other.missing:
        return other.missing[key]
    near = [one.meta for one in other.finished.values() if all(one.meta.get(w) == cell.meta.get(w) for w in NEAR)]
    if not near:
        return ""
    nearest = min(near, key=lambda meta: len(list(_unlike(cell.meta, meta))))
    return f"the nearest cell differs in {', '.join(_unlike(cell.meta, nearest))}"


def _unlike(here: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[str]:
    for word in MATCHED:
        one, other = here.get(word), there.get(word)
        if one == other:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            keys = [name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)]
            yield from (f"{name} ({one.get(name)} and {other.get(name)})" for name in keys)
        else:
            yield f"{word} ({one} and {other})"
