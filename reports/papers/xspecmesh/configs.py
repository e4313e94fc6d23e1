"""XSpecMesh's configurations in a run: which cell is which row of its Table 3, and why one is missing.

A row is one backbone and one set of heads; rows C and E decode on the backbone that was tuned beside their heads.
Source: Chen et al., XSpecMesh, sections 5.4 and 7.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from reports.papers.measured import Measured
from reports.summary import FinishedCell

if TYPE_CHECKING:
    from harness.record.store import Store

PUBLISHED = {"levels": 0, "acceptance": "threshold", "delta": 0.5, "drafts": "independent", "law": "warped"}
"""The method as the paper runs it; ``levels`` 0: all heads, which are D = 4."""
DISTANCES = {"chamfer": "CD", "hausdorff": "HD"}
"""Scores of a mesh, and what the paper calls them."""


@dataclass(frozen=True)
class Config:
    """What a row is of; without heads: the backbone decoded autoregressively."""

    backbone: str
    heads: str = ""


CONFIGS = {
    "A": Config("embedded-mesh"),
    "B": Config("embedded-mesh", "xspecmesh-mlp"),
    "C": Config("embedded-mesh-mlp-lora", "xspecmesh-mlp-lora"),
    "D": Config("embedded-mesh", "xspecmesh-cross"),
    "E": Config("embedded-mesh-cross-lora", "xspecmesh-cross-lora"),
    "full": Config("embedded-mesh-cross-full", "xspecmesh-cross-full"),
    "C-tuned": Config("embedded-mesh-mlp-lora"),
    "E-tuned": Config("embedded-mesh-cross-lora"),
    "full-tuned": Config("embedded-mesh-cross-full"),
    "truncated": Config("embedded-mesh-truncated"),
}
"""Rows of Table 3 by the paper's letters, and section 7.6; ``tuned``: their backbone alone, the second reference."""


@dataclass(frozen=True)
class Setting:
    """Finished cells of all backbones of one type, temperature and task.

    Args:
        rows: of ``Measured``.
    """

    title: str
    store: Store
    rows: pd.DataFrame

    def find(self, config: Config, **changes: Any) -> str | None:
        """The cell of a row, as published but for these options; None: it has no finished one."""
        method, wanted = "autoregressive", {}
        if config.heads:
            method, wanted = "multi_head", {"heads": config.heads, **PUBLISHED, **changes}
        rows = self.rows[(self.rows["backbone"] == config.backbone) & (self.rows["method"] == method)]
        for name, options in rows["options"].items():
            if all(options.get(key) == value for key, value in wanted.items()):
                return str(name)
        return None

    def row(self, cell: str | None) -> pd.Series[Any] | None:
        """A cell's figures."""
        return None if cell is None else cast("pd.Series[Any]", self.rows.loc[cell])

    def held(self, config: Config, **changes: Any) -> FinishedCell | None:
        """The outputs of the cell of a row."""
        cell = self.find(config, **changes)
        return None if cell is None else FinishedCell.of(self.store.cell(cell))

    @property
    def ours(self) -> str:
        """The row whose settings were swept: E, or D where E was not run."""
        return "D" if self.find(CONFIGS["E"]) is None else "E"


def settings(store: Store, groups: Sequence[Measured]) -> list[Setting]:
    """One for each type, temperature and task of a run."""
    held: dict[tuple[str, float, str], list[Measured]] = {}
    for group in groups:
        held.setdefault((group.dtype, group.temperature, group.task), []).append(group)
    found = []
    for (dtype, temperature, task), same in held.items():
        rows = pd.concat([group.rows for group in same])
        sampled = f"{dtype}, T = {temperature:g}, {task}, n = {rows['n_run'].max():.0f}"
        found.append(Setting(f"{CONFIGS['A'].backbone} {sampled}", store, rows))
    return found


def why(store: Store, config: Config) -> str:
    """Why a row has no finished cell."""
    sealed = set(store.cells())
    for name, planned in store.manifest["cells"].items():
        heads = (planned.get("params") or {}).get("heads", "")
        if (planned["backbone"], heads) == (config.backbone, config.heads) and planned.get("role") != "floor":
            meta = store.cell(name).meta if name in sealed else planned
            if meta["status"] != "done":
                return f"{meta['status']}: {meta.get('reason') or 'not finished'}"
            return "no cell of this setting has an output that can be measured"
    return "not in this run"
