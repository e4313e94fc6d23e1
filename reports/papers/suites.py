"""Reports of papers: a suite of ``tasks/suites/papers`` ends with the paper's tables and figures, measured too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from rich.console import Console

from reports import step_counts
from reports.papers.adt_tree import costs as trees
from reports.papers.adt_tree import drafters, laws, ranks
from reports.papers.adt_tree import figures as tree_figures
from reports.papers.adt_tree import regions as depths
from reports.papers.adt_tree.tables import table as adt_table
from reports.papers.cross_regression import energies
from reports.papers.cross_regression import figures as cross_figures
from reports.papers.cross_regression import tables as cross
from reports.papers.measured import Measured, measured
from reports.papers.mulo_sd import pareto as mulo_pareto
from reports.papers.mulo_sd import sheets as mulo_sheets
from reports.papers.mulo_sd import stages
from reports.papers.mulo_sd import text as mulo_text
from reports.papers.sjdpp import batch, diversity, exact, figures, maps, regions
from reports.papers.tables import tables
from reports.papers.xspecmesh import figures as mesh_figures
from reports.papers.xspecmesh import quality as mesh_quality
from reports.papers.xspecmesh import sheet as mesh_sheet
from reports.papers.xspecmesh import tables as mesh
from reports.text_table import TextTable, markdown_lines, print_table

if TYPE_CHECKING:
    from harness.record.store import Store

Fill = Callable[["Store", Sequence[Measured]], list[TextTable]]
Draw = Callable[["Store", Sequence[Measured], Path], list[Path]]


@dataclass(frozen=True)
class Contents:
    """What the report of a suite holds.

    Args:
        tables: names of printed ones. sheets: of figures that no paper prints as a table; functions that fill them, by
            the names of their files. figures: functions that draw.
    """

    tables: tuple[str, ...] = ()
    sheets: Mapping[str, Fill] = field(default_factory=dict)
    figures: tuple[Draw, ...] = ()


MULO_SD: Mapping[str, Fill] = {
    **{"mulo_sd_eq10": stages.speedups, "mulo_sd_fig7": stages.stages},
    **{"mulo_sd_fig8": mulo_pareto.by_tau, "mulo_sd_fig9": mulo_pareto.by_radius},
}
MESH_QUALITY: dict[str, Fill] = {"xspecmesh_quality": mesh_quality.sheet, "xspecmesh_levels": mesh.levels}
ENERGIES: dict[str, Fill] = {"cross_regression_energies": energies.sheet}


def _cross(*numbers: int) -> dict[str, Fill]:
    """Tables of Cross-Regression."""
    return {name: cross.table(name) for name in (f"cross_regression_table{i}" for i in numbers)}


SUITES = {
    "papers/sjdpp": Contents(
        ("sjdpp_table1", "sjdpp_table2", "sjdpp_table3", "sjdpp_table4", "sjdpp_table5", "sjdpp_table9"),
        {"sjdpp_regions": regions.sheet},
        (maps.acceleration, maps.failures, maps.worst),
    ),
    "papers/sjdpp_real": Contents(("sjdpp_table1", "sjdpp_table2", "sjdpp_table3", "sjdpp_table4")),
    "papers/sjdpp_diversity": Contents(
        sheets={"sjdpp_diversity": diversity.sheet}, figures=(diversity.figure, diversity.same_seed)
    ),
    "papers/sjdpp_exact": Contents(
        sheets={"sjdpp_exact": exact.sheet, "sjdpp_regions": regions.sheet}, figures=(exact.figure,)
    ),
    "papers/sjdpp_topk": Contents(("sjdpp_table6",), figures=(figures.top_k,)),
    "papers/sjdpp_resolution": Contents(("sjdpp_fig6", "sjdpp_table7"), figures=(figures.resolution,)),
    "papers/sjdpp_inits": Contents(("sjdpp_table8",), figures=(figures.inits, maps.acceleration)),
    "papers/sjdpp_refine": Contents(("sjdpp_fig12",), figures=(figures.refinement,)),
    "papers/sjdpp_windows": Contents(("sjdpp_table10",), figures=(figures.windows,)),
    "papers/sjdpp_batch": Contents(sheets={"sjdpp_batch": batch.sheet}, figures=(batch.figure,)),
    "papers/sjdpp_tau": Contents(figures=(figures.reuse,)),
    "papers/mulo_sd_lengths": Contents(("mulo_sd_table2",)),
    "papers/mulo_sd": Contents(
        sheets={"mulo_sd_text": mulo_text.sheet, **MULO_SD},
        figures=(
            *(stages.latency, mulo_pareto.draw_by_tau, mulo_pareto.draw_by_radius),
            *(mulo_sheets.comparison, mulo_sheets.sweeps),
        ),
    ),
    "papers/mulo_sd_500": Contents(
        ("mulo_sd_table2",),
        {"mulo_sd_text": mulo_text.sheet, **MULO_SD},
        (stages.latency, mulo_pareto.draw_by_tau, mulo_sheets.comparison, mulo_sheets.sweeps),
    ),
    "masked": Contents(sheets={"step_counts": step_counts.sheet}, figures=(step_counts.figure,)),
    "trees": Contents(
        sheets={"trees": trees.overview, "trees_regions": depths.sheet, "adt_tree_fig1": drafters.sheet},
        figures=(drafters.figure, tree_figures.maps),
    ),
    "papers/adt_tree": Contents(
        sheets={f"adt_tree_table{i}": adt_table(f"adt_tree_table{i}") for i in range(1, 5)}
        | {"adt_tree_trees": trees.overview, "adt_tree_regions": depths.sheet, "adt_tree_gain": trees.limitation}
        | {"adt_tree_fig1": drafters.sheet, "adt_tree_fig3": tree_figures.length_sheet, "adt_tree_fig3b": ranks.sheet},
        figures=(drafters.figure, tree_figures.maps, tree_figures.lengths, ranks.figure, tree_figures.gain),
    ),
    "papers/adt_tree_base": Contents(
        sheets={"adt_tree_table5": adt_table("adt_tree_table5"), "adt_tree_trees": trees.overview}
    ),
    "papers/adt_tree_inits": Contents(
        sheets={"adt_tree_fig8": tree_figures.start_sheet}, figures=(tree_figures.starts,)
    ),
    "papers/adt_tree_fixed": Contents(
        sheets={"adt_tree_costs": trees.costs, "adt_tree_trees": trees.overview, "adt_tree_gain": trees.limitation},
        figures=(tree_figures.lengths, tree_figures.gain),
    ),
    "papers/xspecmesh": Contents(
        sheets={"xspecmesh_table1": mesh.vocabularies}
        | {f"xspecmesh_table{i}": mesh.table(f"xspecmesh_table{i}") for i in range(2, 5)}
        | MESH_QUALITY,
        figures=(
            *(mesh_figures.heads, mesh_figures.thresholds, mesh_figures.rules, mesh_figures.levels),
            *(mesh_sheet.comparison, mesh_sheet.acceptance),
        ),
    ),
    "papers/xspecmesh_quality": Contents(sheets=MESH_QUALITY),
    "papers/cross_regression": Contents(
        sheets=_cross(3, 4, 7, 8, 9, 10, 11, 14, 15, 17) | ENERGIES,
        figures=(cross_figures.scaling, energies.figure),
    ),
    "papers/cross_regression_real": Contents(
        sheets=_cross(3, 4, 7, 8, 9, 10, 11, 14, 15, 17), figures=(cross_figures.scaling,)
    ),
    "papers/cross_regression_scaling": Contents(sheets=_cross(17), figures=(cross_figures.scaling,)),
    "papers/cross_regression_thresholds": Contents(
        sheets=_cross(12, 13) | ENERGIES, figures=(cross_figures.thresholds, cross_figures.smoothing)
    ),
    "papers/cross_regression_smoothing": Contents(sheets=ENERGIES, figures=(cross_figures.smoothing, energies.figure)),
    "papers/cross_regression_windows": Contents(figures=(cross_figures.windows, energies.figure)),
    "papers/cross_regression_layers": Contents(sheets=_cross(16), figures=(cross_figures.layers,)),
    "papers/adt_tree_laws": Contents(sheets={"adt_tree_fig9": laws.sheet}, figures=(laws.maps, laws.laws)),
}

LEGEND = (
    "measured: [low, high] is a 95 % interval over prompts, of one prompt alone over its repetitions (the seeds); "
    "(n=3): too few for one; the heading's n counts outputs",
    "Avg. Latency: mean of prefill and steps of an output, in seconds of this machine",
    "Latency acceleration: median over (prompt, seed) pairs of the baseline's ms/token over this cell's; the paper "
    "divides mean latencies",
    "Step acceleration: output tokens / NFE, prefill not counted; NFE: target passes of an output; Step "
    "Compression: NFE / output tokens, 576 in the paper",
    "log p: natural log of the target's law at T = 1, without top-k; the paper does not say which law it takes",
)


def write(store: Store, outdir: Path) -> list[Path]:
    """Write papers.md, a CSV a table, and the figures of the run's suite; returns their paths.

    Returns:
        Nothing where the run's suite is no paper's, or no cell is finished.
    """
    contents, groups = _contents(store), measured(store)
    if not groups or contents == Contents():
        return []
    outdir.mkdir(parents=True, exist_ok=True)
    held = list(_sheets(contents, store, groups))
    written = [_csv(name, i, sheet, outdir) for name, i, sheet in held]
    drawn = [path for draw in contents.figures for path in draw(store, groups, outdir)]
    if held:
        page = outdir / "papers.md"
        page.write_text(markdown([sheet for _, _, sheet in held], drawn), encoding="utf-8")
        written.insert(0, page)
    return [*written, *drawn]


def terminal(store: Store, console: Console) -> None:
    """Print the paper's tables, with the columns that the console is wide enough for."""
    for _, _, sheet in _sheets(_contents(store), store, measured(store)):
        print_table(sheet, console)


def markdown(sheets: Sequence[TextTable], drawn: Sequence[Path]) -> str:
    """All tables whole, the figures, and the legend."""
    parts = ["# Printed and measured", ""]
    for sheet in sheets:
        parts += [f"## {sheet.title}", "", *markdown_lines([column.title for column in sheet.columns], sheet.rows), ""]
        parts += [*(f"- {note}" for note in sheet.notes), ""]
    for path in drawn:
        parts += [f"![{path.stem}]({path.name})", ""]
    return "\n".join([*parts, "## Legend", "", *(f"- {line}" for line in LEGEND), ""])


def _contents(store: Store) -> Contents:
    return SUITES.get(str((store.manifest.get("suite") or {}).get("name")), Contents())


def _sheets(contents: Contents, store: Store, groups: Sequence[Measured]) -> Iterator[tuple[str, int, TextTable]]:
    """Each with the name of its file and its place among those of the same name."""
    filled = [(name, tables(name, groups)) for name in contents.tables]
    filled += [(name, fill(store, groups)) for name, fill in contents.sheets.items()]
    for name, found in filled:
        for i, sheet in enumerate(found):
            yield name, i, sheet


def _csv(name: str, i: int, sheet: TextTable, outdir: Path) -> Path:
    path = outdir / f"papers-{name}{f'-{i + 1}' if i else ''}.csv"
    pd.DataFrame(sheet.rows, columns=[column.title for column in sheet.columns]).to_csv(path, index=False)
    return path
