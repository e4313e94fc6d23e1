"""What forward passes cost on one machine, the file that keeps it, and draft trees sized by it.

A run measures a backbone's passes before its first decode (`harness.run.passes`). Decodes only read the files, so their
choices can be repeated and a method never looks at a clock.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import torch
from jaxtyping import Int
from pydantic import TypeAdapter
from torch import Tensor

from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.draft import Draft, HostAcceptance
from stridebench.harness.core.session import depths_of
from stridebench.harness.errors import UsageError
from stridebench.harness.machine.surroundings import cache_folder
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

    @staticmethod
    def of(body: Any) -> Passes:
        """Read JSON, or raise ValueError."""
        passes = TypeAdapter(Passes).validate_python(body)
        if not passes.rows or passes.threads not in dict(passes.by_threads):
            raise ValueError("no rows, or none of its threads")
        return passes


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
        """Return milliseconds of a pass, on the straight line through the nearest two known sizes."""
        after = next((i for i, (size, _) in enumerate(table) if size >= rows), len(table) - 1)
        (low, first), (high, last) = table[max(after, 1) - 1], table[max(after, 1)]
        return first + (last - first) * (rows - low) / (high - low)


TOY = Costs(((1, 1.0), (65, 3.0)), ((1, 0.1), (65, 0.3)))
"""Of toys, which nobody times."""


def measured(backbone: Backbone, drafter: str) -> Costs:
    """Return the costs of a backbone and a drafter on this machine.

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
    """Return the file of a backbone and a drafter on this machine, with the threads that torch has now."""
    return _file(backbone, Path(drafter).name)


def passes_file(backbone: Backbone, choice: bool) -> Path:
    """Return the file of a backbone's `Passes`.

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
    except (OSError, ValueError):
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
        return TypeAdapter(Costs).validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not a table of costs ({error}): delete it; a run measures them anew") from error


FIRST, AGAIN = 8, 16
"""Cycles of the largest tree at the start, and one in so many later: smaller trees do not show what they leave out."""


class TreeSize(NamedTuple):
    """Levels and nodes of a draft tree; without levels nothing is drafted."""

    levels: int
    nodes: int


@dataclass
class TreeSizer:
    """The sizes of the draft trees of one decode: always the largest, or the one that pays best by a cost table.

    The choice is Sequoia's, arXiv:2402.12374, section 4.3, made anew in each cycle. It follows from the table and from
    what earlier cycles proposed and accepted, and from no draft or coin of its cycle. So if nodes are point masses, the
    output distribution is unchanged.

    Args:
        largest: L levels and N nodes.
        width: w, children of a node.
        costs: the cost table, or None if every tree is the largest.
        cycles: so far.

    Attributes:
        proposed: [L, N], trees that had a node for the n-th candidate of level l by score.
        accepted: [L, N], trees that had it accepted.
        chosen: size of the current tree.
    """

    largest: TreeSize
    width: int
    costs: Costs | None
    cycles: int = 0

    def __post_init__(self) -> None:
        self.proposed, self.accepted = torch.zeros(2, *self.largest, dtype=torch.float64)
        self.chosen = self.largest

    def choose(self) -> TreeSize:
        """Return the size of most tokens a millisecond: (1 + sum of rates[:l, :n]) / (C_t(1 + n) + l C_d(w)).

        A node is accepted with p of its token whatever its siblings are. So the rates of a large tree predict a smaller
        one, except for candidates that move up if deeper ones are left out.
        """
        self.chosen = self.largest
        if self.costs is not None and self.cycles >= FIRST and self.cycles % AGAIN:
            levels, nodes = self.largest
            rates = self.accepted / self.proposed.clamp_min(1.0)
            tokens = 1.0 + torch.nn.functional.pad(rates.cumsum(0).cumsum(1), (1, 0, 1, 0))
            target = [Costs.at(1 + n, self.costs.target) for n in range(nodes + 1)]
            draft = Costs.at(self.width, self.costs.draft)
            milliseconds = torch.tensor(target) + draft * torch.arange(levels + 1)[:, None]
            best = int((tokens / milliseconds).argmax())  # of CPU tensors: no device waits
            self.chosen = TreeSize(*divmod(best, nodes + 1))
        return self.chosen

    def extra_ids(self, draft: Draft, ranks: Int[Tensor, " K"]) -> Int[Tensor, " A"] | None:
        """Return the ids that `follow` needs on the host: each node's rank, then each node's depth."""
        if self.costs is None or not len(draft):
            return None
        return torch.cat([ranks, depths_of(draft.explicit_parents)])

    def follow(self, read: HostAcceptance) -> None:
        """Count the proposed and the accepted nodes of a cycle."""
        if self.costs is None:
            return
        self.cycles += 1
        ranks, depths = read.extra_ids[: len(read.extra_ids) // 2], read.extra_ids[len(read.extra_ids) // 2 :]
        if ranks:
            self.proposed[: self.chosen.levels, : self.chosen.nodes] += 1.0
        for node in read.path:
            self.accepted[depths[node], ranks[node]] += 1.0
