"""What passes cost on this machine, measured once (`stride bench windows`) and read by methods that size their trees.

A table is of one machine, backbone, type and drafter; it is a file, so a run's choices can be repeated and a method
never looks at a clock.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from harness.backbones.checkpoints.downloads import cache_folder
from harness.core.backbone import Backbone
from harness.core.costs import Costs
from harness.errors import UsageError
from harness.record.files import put
from harness.record.ledger import Step
from harness.record.provenance import fingerprint, machine

TOY = Costs(((1, 1.0), (65, 3.0)), ((1, 0.1), (65, 0.3)))
"""Of toys, which nobody times."""


def of(backbone: Backbone, part: str) -> Costs:
    """The table of a drafter on this machine.

    Raises:
        UsageError: it was not measured; says how to.
    """
    if getattr(backbone, "toy_drafters", False):
        return TOY
    path = place(backbone, part)
    if not path.is_file():
        raise UsageError(
            f"passes of {backbone.name} ({backbone.dtype}) with {part} were not measured on this machine: run "
            f"`stride bench windows --backbone {backbone.name}` first, with nothing else running"
        )
    return _read(path)


def place(backbone: Backbone, part: str) -> Path:
    """Its file."""
    name = f"{backbone.name}-{backbone.dtype}-{Path(part).name}.json"
    return cache_folder() / "costs" / fingerprint(machine()) / name


@lru_cache(maxsize=16)
def _read(path: Path) -> Costs:
    try:
        found = json.loads(path.read_bytes())
        target, draft = (tuple((int(rows), float(ms)) for rows, ms in found[side]) for side in ("target", "draft"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no table of costs ({error!r}): delete it; run `stride bench windows`") from error
    return Costs(target, draft)


def write(path: Path, table: Costs) -> None:
    """Whole or not at all; later runs of this process read it too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, json.dumps(vars(table), indent=1).encode())
    _read.cache_clear()


def table(steps: Iterable[tuple[int, Step]]) -> Costs:
    """Medians over steps that fed trees of several sizes.

    Args:
        steps: each with the rows that a pass of its drafter read.

    Raises:
        UsageError: fewer than two sizes were seen on one of the sides.
    """
    target: dict[int, list[float]] = defaultdict(list)
    draft: dict[int, list[float]] = defaultdict(list)
    for width, step in steps:
        target[step.rows].append(step.target_ns / step.nfe / 1e6)
        if step.draft_nfe:
            draft[width].append(step.draft_ns / step.draft_nfe / 1e6)
    sides = [tuple((rows, statistics.median(side[rows])) for rows in sorted(side)) for side in (target, draft)]
    if min(map(len, sides)) < 2:
        raise UsageError(f"passes of {len(target)} and {len(draft)} sizes were timed; time two or more of each")
    return Costs(*sides)
