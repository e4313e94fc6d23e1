"""XSpecMesh's configurations in a run: which cell is which row of its Table 3, and why a row is missing.

A row is one backbone and one set of heads. Rows C and E use the backbone that was tuned with their heads. The suite's
roles name them: A to E, ``full`` (section 7.6), ``C-tuned``, ``E-tuned`` and ``full-tuned`` (the tuned backbone
alone, the second reference), and ``rival`` (in DeepMesh's place).
Source: Chen et al., XSpecMesh, sections 5.4 and 7.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from stridebench.reports.papers.engine import Facts, Line, Scene
from stridebench.reports.papers.measured import Run, fits
from stridebench.reports.papers.paper_files import published
from stridebench.reports.summary import FinishedCell

if TYPE_CHECKING:
    from stridebench.harness.record.store import Store

DISTANCES = {"chamfer": "CD", "hausdorff": "HD"}
"""Scores of a mesh, and the paper's names of them."""


@dataclass(frozen=True)
class Setting:
    """Finished cells of all backbones of one type, temperature and task.

    Args:
        store: the run.
        rows: as in ``Measured``.
        roles: a backbone each, and heads unless it is decoded autoregressively.
    """

    store: Store
    rows: pd.DataFrame
    roles: Mapping[str, Mapping[str, Any]]

    @property
    def title(self) -> str:
        """Return the text of headings."""
        first = self.rows.iloc[0]
        backbone = self.roles["A"]["backbone"] if "A" in self.roles else first["backbone"]
        sampled = f"T = {first['temperature']:g}, {first['task']}, n = {self.rows['n_run'].max():.0f}"
        return f"{backbone} {first['dtype']}, {sampled}"

    @property
    def swept(self) -> str:
        """Return the role whose settings were swept: E, or D where E was not run."""
        return "D" if self.find("E") is None else "E"

    @property
    def alone(self) -> str:
        """Return the role of the swept backbone without heads."""
        return "A" if self.swept == "D" else "E-tuned"

    def selection(self, role: str, **changes: Any) -> dict[str, Any] | None:
        """Return a role's selection, as published except for these options; None: the suite has no such role."""
        role = self.swept if role == "swept" else role
        if role not in self.roles:
            return None
        if "heads" in self.roles[role]:
            return {"method": "multi_head", **published("multi_head"), **self.roles[role], **changes}
        return {"method": "autoregressive", **self.roles[role]}

    def find(self, role: str, **changes: Any) -> str | None:
        """Return the cell of a role; None: it has no finished cell."""
        selection = self.selection(role, **changes)
        return None if selection is None else next((str(name) for name in fits(self.rows, **selection).index), None)

    def row(self, cell: str | None) -> pd.Series[Any] | None:
        """Return the figures of a cell."""
        return None if cell is None else cast("pd.Series[Any]", self.rows.loc[cell])

    def outputs(self, role: str) -> FinishedCell | None:
        """Return the outputs of the cell of a role."""
        cell = self.find(role)
        return None if cell is None else FinishedCell.of(self.store.cell(cell))


def settings(run: Run) -> list[Setting]:
    """Return a setting for each type, temperature and task of a run."""
    if not run.groups:
        return []
    rows = pd.concat([group.rows for group in run.groups])
    parts = rows.groupby(["dtype", "temperature", "task"], sort=False)
    return [Setting(run.store, part, run.roles) for _, part in parts]


def why(store: Store, selection: Mapping[str, Any] | None) -> str:
    """Say why a row has no finished cell."""
    if selection is None:
        return "not in this run"
    sealed = set(store.cells())
    for name, planned in store.manifest["cells"].items():
        heads = (planned.get("params") or {}).get("heads", "")
        same = (planned["backbone"], heads) == (selection["backbone"], selection.get("heads", ""))
        if same and planned.get("role") != "floor":
            meta = store.cell(name).meta if name in sealed else planned
            if meta["status"] != "done":
                return f"{meta['status']}: {meta.get('reason') or 'not finished'}"
            return "no cell of this setting has an output that can be measured"
    return "not in this run"


def _setting(scene: Scene) -> Setting:
    return Setting(scene.run.store, scene.cells, scene.run.roles)


def lines(scene: Scene) -> Iterator[Line]:
    """Assign rows to the cells of their roles."""
    for line in scene.lines:
        yield replace(line, selection=_setting(scene).selection(**(line.selection or {})))


def notes(scene: Scene) -> Iterator[str]:
    """Say why rows were not measured."""
    lacking: dict[str, list[str]] = {}
    for line in lines(scene):
        if line.selection is None or fits(scene.cells, **line.selection).empty:
            lacking.setdefault(why(scene.run.store, line.selection), []).append(line.labels[0])
    yield from (f"{', '.join(rows)} not measured: {reason}" for reason, rows in lacking.items())


def fields(scene: Scene) -> Mapping[str, str]:
    """Return the fields of headings: the setting, and the role that was swept."""
    setting = _setting(scene)
    return {"cells": setting.title, "swept": setting.swept}


FACTS = Facts(lines=lines, notes=notes, fields=fields)
