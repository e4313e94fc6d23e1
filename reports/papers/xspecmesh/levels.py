"""XSpecMesh's Table 1 (token ids of models) and section 7.2 (results by level of difficulty)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stridebench.harness.record import stats
from stridebench.reports.papers.measured import Run, decoded, plain
from stridebench.reports.papers.paper_files import printed
from stridebench.reports.papers.registry import sheet
from stridebench.reports.papers.xspecmesh.facts import DISTANCES, settings
from stridebench.reports.summary import FinishedCell, metric_interval, token_ms
from stridebench.reports.text_table import UNMEASURED, TextTable, estimate_text

if TYPE_CHECKING:
    from stridebench.harness.record.store import Cell, Store


@sheet("xspecmesh_table1")
def vocabularies(run: Run) -> list[TextTable]:
    """Return Table 1: token ids of the paper's models and of the backbones that are registered or were run."""
    table = printed("xspecmesh_table1")
    sizes = dict(run.store.manifest.get("vocabularies", {}))
    for group in run.groups:
        size = run.store.cell(str(group.rows.index[0])).meta.get("vocabulary")
        sizes |= {group.backbone: size} if size is not None else {}
    rows = []
    for row in table.rows.to_dict("records"):
        size = sizes.pop(table.paper.models.get(row["Model"], ""), UNMEASURED)
        rows.append((row["Model"], row["Vocab Size [tokens]"], str(size)))
    rows += [(name, "-", str(size)) for name, size in sizes.items()]
    heads = ("Model", "Vocab Size [tokens], printed", "token ids, measured")
    where = table.layout.where
    notes = [f"{where}: {table.layout.caption}", *(f"printed: {note}" for note in table.rows["notes"] if note)]
    lines = [dict(zip(heads, row, strict=True)) for row in rows]
    return plain(f"XSpecMesh, {where}: printed | registered here", lines, notes)


@sheet("xspecmesh_levels")
def levels(run: Run) -> Iterator[TextTable]:
    """Return section 7.2: results of every configuration by the difficulty of the shapes."""
    notes = [
        "level-0: simple, level-1: some detail, level-2: rich; 20, 40 and 40 % of the paper's 200 shapes",
        *printed("xspecmesh_table3").paper.notes,
    ]
    for setting in settings(run):
        lines = [
            {"configuration": "truncated" if role == "rival" else role, **line}
            for role in setting.roles
            if (cell := setting.find(role)) is not None
            for line in _by_level(run.store, run.store.cell(cell))
        ]
        yield from plain(f"XSpecMesh by level | measured on {setting.title}", lines, notes)


def _by_level(store: Store, cell: Cell) -> Iterator[dict[str, str]]:
    finished, base = FinishedCell.of(cell), FinishedCell.of(store.cell(str(cell.meta["baseline"])))
    samples = decoded(cell)
    for level in sorted(set(samples["category"]) - {""}):
        of_level = finished.samples["category"] == level
        frame, scores = finished.totals[of_level], finished.scores[of_level]
        distances = {
            title: estimate_text(stats.mean(scores[name]), 4) if name in scores else UNMEASURED
            for name, title in DISTANCES.items()
        }
        run = samples[samples["category"] == level]
        yield {
            "level": str(level),
            "failed": f"{int((run['status'] != 'ok').sum())}/{len(run)}",
            **distances,
            "SCR": estimate_text(metric_interval("scr", frame)),
            "wall speed-up": estimate_text(stats.median_ratio(token_ms(base.totals), token_ms(frame))),
        }
