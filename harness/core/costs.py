"""What forward passes cost on one machine, and the file that keeps it.

`stride bench windows` measures the passes once. A run only reads the file, so its choices can be repeated and a method
never looks at a clock. There is one file a machine, backbone, type and drafter.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from harness.core.backbone import Backbone
from harness.errors import UsageError
from harness.platform.folders import cache_folder
from harness.record.files import put
from harness.record.provenance import fingerprint, machine


@dataclass(frozen=True)
class Costs:
    """What passes took on one machine: milliseconds by the rows fed, ascending; two sizes or more of each.

    Args:
        target: (rows, ms) of the target's passes.
        draft: (rows, ms) of a drafter's passes.
    """

    target: tuple[tuple[int, float], ...]
    draft: tuple[tuple[int, float], ...]

    @staticmethod
    def at(rows: int, table: Sequence[tuple[int, float]]) -> float:
        """Milliseconds of a pass: on the straight line through the two known sizes beside it."""
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
            f"passes of {backbone.name} ({backbone.dtype}) with {drafter} were not measured on this machine: run "
            f"`stride bench windows --backbone {backbone.name}` first, with nothing else running"
        )
    return _read(path)


def costs_file(backbone: Backbone, drafter: str) -> Path:
    """The file of a backbone and a drafter on this machine."""
    name = f"{backbone.name}-{backbone.dtype}-{Path(drafter).name}.json"
    return cache_folder() / "costs" / fingerprint(machine()) / name


def write_costs(path: Path, costs: Costs) -> None:
    """Write the file, whole or not at all; later runs of this process read it too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, json.dumps(vars(costs), indent=1).encode())
    _read.cache_clear()


@lru_cache(maxsize=16)
def _read(path: Path) -> Costs:
    try:
        body = json.loads(path.read_bytes())
        target, draft = (tuple((int(rows), float(ms)) for rows, ms in body[side]) for side in ("target", "draft"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no table of costs ({error!r}): delete it; run `stride bench windows`") from error
    return Costs(target, draft)
