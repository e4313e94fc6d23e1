"""XSpecMesh's configurations in a run: which cell is which row of its Table 3, and why one is missing.

A row is one backbone and one set of heads; rows C and E decode on the backbone that was tuned beside their heads. The
suite's roles name them: A to E, ``full`` (section 7.6), ``C-tuned``, ``E-tuned`` and ``full-tuned`` (the tuned backbone
alone, the second reference), and ``rival`` (in DeepMesh's place).
Source: Chen et al., XSpecMesh, sections 5.4 and 7.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from reports.papers.engine import Facts, Line, Scene
from reports.papers.measured import Run, fits
from reports.papers.paper_files import papers
from reports.summary import FinishedCell

if TYPE_CHECKING:
    from harness.record.store import Store

DISTANCES = {"chamfer": "CD", "hausdorff": "HD"}
"""Scores of a mesh, and what the paper calls them."""


def published() -> dict[str, Any]:
    """The method as the paper runs it; ``levels`` 0: all heads, which are D = 4."""
    return papers()["xspecmesh"].published["multi_head"]


@dataclass(frozen=True)
class Setting:
    """Finished cells of all backbones of one type, temperature and task.

    Args:
        rows: of ``Measured``.
        roles: a backbone, and heads unless it is decoded autoregressively.
    """

    store: Store
    rows: pd.DataFrame
    roles: Mapping[str, Mapping[str, Any]]

    @property
    def title(self) -> str:
        """As in headings."""
        first = self.rows.iloc[0]
        backbone = self.roles["A"]["backbone"] if "A" in self.roles else first["backbone"]
        sampled = f"T = {first['temperature']:g}, {first['task']}, n = {self.rows['n_run'].max():.0f}"
        return f"{backbone} {first['dtype']}, {sampled}"

    @property
    def swept(self) -> str:
        """The role whose settings were swept: E, or D where E was not run."""
        return "D" if self.find("E") is None else "E"

    @property
    def alone(self) -> str:
        """The backbone of the swept role alone."""
        return "A" if self.swept == "D" else "E-tuned"

    def selection(self, role: str, **changes: Any) -> dict[str, Any] | None:
        """What a role's cells are, as published but for these options; None: the suite has no such role."""
        role = self.swept if role == "swept" else role
        if role not in self.roles:
            return None
        if "heads" in self.roles[role]:
            return {"method": "multi_head", **published(), **self.roles[role], **changes}
        return {"method": "autoregressive", **self.roles[role]}

    def find(self, role: str, **changes: Any) -> str | None:
        """The cell of a role; None: it has no finished one."""
        selection = self.selection(role, **changes)
        return None if selection is None else next((str(name) for name in fits(self.rows, **selection).index), None)

    def row(self, cell: str | None) -> pd.Series[Any] | None:
        """A cell's figures."""
        return None if cell is None else cast("pd.Series[Any]", self.rows.loc[cell])

    def outputs(self, role: str) -> FinishedCell | None:
        """The outputs of the cell of a role."""
        cell = self.find(role)
        return None if cell is None else FinishedCell.of(self.store.cell(cell))


def settings(run: Run) -> list[Setting]:
    """One for each type, temperature and task of a run."""
    if not run.groups:
        return []
    rows = pd.concat([group.rows for group in run.groups])
    parts = rows.groupby(["dtype", "temperature", "task"], sort=False)
    return [Setting(run.store, part, run.roles) for _, part in parts]


def why(store: Store, selection: Mapping[str, Any] | None) -> str:
    """Why a row has no finished cell."""
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
    """Rows measured on the cells of their roles."""
    for line in scene.lines:
        yield replace(line, selection=_setting(scene).selection(**(line.selection or {})))


def notes(scene: Scene) -> Iterator[str]:
    """Why rows were not measured."""
    lacking: dict[str, list[str]] = {}
    for line in lines(scene):
        if line.selection is None or fits(scene.cells, **line.selection).empty:
            lacking.setdefault(why(scene.run.store, line.selection), []).append(line.labels[0])
    yield from (f"{', '.join(rows)} not measured: {reason}" for reason, rows in lacking.items())


def fields(scene: Scene) -> Mapping[str, str]:
    """Of headings: the setting, and the role that was swept."""
    setting = _setting(scene)
    return {"cells": setting.title, "swept": setting.swept}


FACTS = Facts(lines=lines, notes=notes, fields=fields)
