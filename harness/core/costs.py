"""What forward passes cost on one machine, and the file that keeps it.

A run measures a backbone's passes before its first decode (`harness.run.passes`). Decodes only read the files, so their
choices can be repeated and a method never looks at a clock.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stridebench.harness.core.backbone import Backbone
from stridebench.harness.errors import UsageError
from stridebench.harness.machine.folders import cache_folder
from stridebench.harness.record.files import put
from stridebench.harness.record.provenance import fingerprint, machine

Table = tuple[tuple[int, float], ...]
"""Milliseconds of a pass by a number, ascending."""


@dataclass(frozen=True)
class Passes:
    """What passes of a backbone took on one machine.

    Args:
        threads: of torch, with which ``rows`` and ``drafters`` were timed.
        by_threads: milliseconds of a pass of one row by threads.
        rows: milliseconds of a pass by the rows fed; one size for a masked model, which reads its whole canvas.
        drafters: the same of drafters' passes, by their names.
        busy: other work disturbed the times, so a later run measures again.
    """

    threads: int
    by_threads: Table
    rows: Table
    drafters: dict[str, Table]
    busy: bool = False

    @classmethod
    def of(cls, body: Any) -> Passes:
        """From JSON.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        drafters = {str(name): _table(rows) for name, rows in dict(body["drafters"]).items()}
        by_threads, rows = _table(body["by_threads"]), _table(body["rows"])
        if not rows or int(body["threads"]) not in dict(by_threads):
            raise ValueError("no rows, or none of its threads")
        return cls(int(body["threads"]), by_threads, rows, drafters, bool(body["busy"]))


def _table(body: Any) -> Table:
    return tuple((int(size), float(ms)) for size, ms in body)


@dataclass(frozen=True)
class Costs:
    """What passes took on one machine: milliseconds by the rows fed, ascending; two sizes or more of each.

    Args:
        target: (rows, ms) of the target's passes.
        draft: (rows, ms) of a drafter's passes.
    """

    target: Table
    draft: Table

    @staticmethod
    def at(rows: int, table: Sequence[tuple[int, float]]) -> float:
        """Milliseconds of a pass: on the straight line through the nearest two known sizes."""
        after = next((i for i, (size, _) in enumerate(table) if size >= rows), len(table) - 1)
        (low, first), (high, last) = table[max(after, 1) - 1], table[max(after, 1)]
        return first + (last - first) * (rows - low) / (high - low)


TOY = Costs(((1, 1.0), (65, 3.0)), ((1, 0.1), (65, 0.3)))
"""Of toys, which nobody times."""


def measured(backbone: Backbone, drafter: str) -> Costs:
    """The costs of a backbone and a drafter on this machine.

    Raises:
        UsageError: they were not measured; says how to.
    """
    if backbone.toy_drafters:
        return TOY
    path = costs_file(backbone, drafter)
    if not path.is_file():
        raise UsageError(
            f"passes of {backbone.name} ({backbone.dtype}) with {drafter} were not measured with "
            f"{machine()['threads']} threads on this machine: run a suite with this method there (`timing: true`), "
            f"which measures them before its first decode"
        )
    return _read(path)


def costs_file(backbone: Backbone, drafter: str) -> Path:
    """The file of a backbone and a drafter on this machine, with the threads that torch has now."""
    return _file(backbone, Path(drafter).name)


def passes_file(backbone: Backbone, choice: bool) -> Path:
    """The file of a backbone's `Passes`.

    Args:
        choice: torch may take fewer threads than it has now; else it takes these.
    """
    return _file(backbone, "passes" if choice else "passes-all-threads")


def _file(backbone: Backbone, what: str) -> Path:
    device = "" if backbone.device == "cpu" else f"-{backbone.device.replace(':', '')}"
    name = f"{quote(backbone.name, safe='')[-160:]}-{backbone.dtype}{device}-{what}.json"
    return cache_folder() / "costs" / fingerprint(machine()) / name


def read_passes(path: Path) -> Passes | None:
    """Return the kept costs, or None if nothing readable was kept and they have to be measured."""
    try:
        return Passes.of(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_passes(path: Path, passes: Passes) -> None:
    """Write the file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, json.dumps(asdict(passes), indent=1).encode())


def write_costs(path: Path, costs: Costs) -> None:
    """Write the file, whole or not at all; later runs of this process read it too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, json.dumps(vars(costs), indent=1).encode())
    _read.cache_clear()


@lru_cache(maxsize=16)
def _read(path: Path) -> Costs:
    try:
        body = json.loads(path.read_bytes())
        target, draft = (_table(body[side]) for side in ("target", "draft"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no table of costs ({error!r}): delete it; a run measures them anew") from error
    return Costs(target, draft)
