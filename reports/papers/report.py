"""Writes the report of a suite (``report:``): the paper's tables and figures, printed and measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib import rc_context
from rich.console import Console

from stridebench.harness.errors import UnknownNameError, UsageError, did_you_mean
from stridebench.harness.record.entries import ReportEntry
from stridebench.harness.record.store import Store
from stridebench.harness.registry import REPORTS
from stridebench.reports.finished_cell import FinishedCell
from stridebench.reports.papers import (
    adt_tree_figures,
    adt_tree_tables,
    cost,
    cross_regression,
    mulo_sd_pareto,
    mulo_sd_stages,
    sjdpp_figures,
    sjdpp_maps,
    user_questions,
    xspecmesh_facts,
    xspecmesh_figures,
)
from stridebench.reports.papers.charts import draw_chart, fill_sheet
from stridebench.reports.papers.drawing import FIGURES, SHEETS
from stridebench.reports.papers.filled_tables import PICTURES, PaperFacts, fill
from stridebench.reports.papers.measured import MeasuredRun, measured
from stridebench.reports.papers.paper_files import Contents, papers, printed, reports
from stridebench.reports.papers.paper_items import Item, items
from stridebench.reports.pareto import STYLE
from stridebench.reports.text_table import UNMEASURED, TextTable, markdown_lines, print_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SHOWN = (
    sjdpp_figures,
    sjdpp_maps,
    mulo_sd_pareto,
    mulo_sd_stages,
    adt_tree_figures,
    xspecmesh_figures,
    user_questions,
)
"""Modules whose import registers their tables and figures."""
for paper in papers().values():
    FIGURES.update({name: partial(draw_chart, chart) for name, chart in paper.charts.items()})
    SHEETS.update({name: partial(fill_sheet, spec) for name, spec in paper.sheets.items()})
FACTS = {
    "sjdpp": PICTURES,
    "mulo_sd": PICTURES,
    "adt_tree": adt_tree_tables.FACTS,
    "xspecmesh": xspecmesh_facts.FACTS,
    "cross_regression": cross_regression.FACTS,
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


@REPORTS.register("papers")
@dataclass(frozen=True)
class PaperReport:
    """The tables and figures that the report of a run names. Cells are read once for the page and the terminal."""

    contents: Contents
    run: MeasuredRun

    @staticmethod
    def of(
        store: Store, read: Callable[[str], FinishedCell] | None = None, frame: pd.DataFrame | None = None
    ) -> PaperReport:
        """Read a run."""
        contents = contents_of(store)
        groups = measured(store, read, frame) if contents.sheets or contents.figures else []
        return PaperReport(contents, MeasuredRun(store, groups, contents.roles))

    @staticmethod
    def figure_names() -> Iterable[str]:
        """Return the names of the papers' figures."""
        return FIGURES

    @staticmethod
    def draw(store: Store, name: str, cells: Collection[str]) -> Iterable[Figure]:
        """Draw a figure of these cells; without a finished one, there is none."""
        chosen = [replace(group, rows=group.rows[group.rows.index.isin(list(cells))]) for group in measured(store)]
        groups = [group for group in chosen if len(group.rows)]
        return FIGURES[name](MeasuredRun(store, groups, contents_of(store).roles)) if groups else []

    @cached_property
    def sheets(self) -> list[tuple[str, int, TextTable]]:
        """Each table with the name of its file and its index among those of the same name."""
        return [
            (name, i, sheet)
            for name in self.contents.sheets
            for i, sheet in enumerate(SHEETS[name](self.run) if name in SHEETS else printed_table(name, self.run))
        ]

    def write(self, outdir: Path) -> list[Path]:
        """Write papers.md, one CSV a table, and the figures.

        Returns:
            The paths; none if the suite has no report or no cell is finished.
        """
        if not self.run.groups or not (self.contents.sheets or self.contents.figures):
            return []
        outdir.mkdir(parents=True, exist_ok=True)
        tables = []
        for name, i, sheet in self.sheets:
            tables.append(outdir / f"papers-{name}{f'-{i + 1}' if i else ''}.csv")
            pd.DataFrame(sheet.rows, columns=[column.title for column in sheet.columns]).to_csv(tables[-1], index=False)
        figures = [path for name in self.contents.figures for path in _draw(name, self.run, outdir)]
        if self.sheets:
            page = outdir / "papers.md"
            page.write_text(markdown([sheet for _, _, sheet in self.sheets], figures), encoding="utf-8")
            tables.insert(0, page)
        return [*tables, *figures]

    def print(self, console: Console) -> None:
        """Print the tables with the columns that fit the console."""
        for _, _, sheet in self.sheets:
            print_table(sheet, console)


def write(store: Store, outdir: Path) -> list[Path]:
    """Write the tables and figures of a run; see ``PaperReport.write``."""
    return PaperReport.of(store).write(outdir)


def terminal(store: Store, console: Console) -> None:
    """Print the tables of a run; see ``PaperReport.print``."""
    PaperReport.of(store).print(console)


def markdown(sheets: Sequence[TextTable], figures: Sequence[Path]) -> str:
    """Return all tables with all columns, the figures, and the legend."""
    parts = ["# Printed and measured", ""]
    for sheet in sheets:
        parts += [f"## {sheet.title}", "", *markdown_lines([column.title for column in sheet.columns], sheet.rows), ""]
        parts += [*(f"- {note}" for note in sheet.notes), ""]
    for path in figures:
        parts += [f"![{path.stem}]({path.name})", ""]
    return "\n".join([*parts, "## Legend", "", *(f"- {line}" for line in LEGEND), ""])


def contents_of(store: Store) -> Contents:
    """Return the contents of the run's report. Roles of the suite replace those of the report."""
    stated = store.manifest.suite.report
    if not stated:
        return Contents()
    entry = ReportEntry(name=stated) if isinstance(stated, str) else stated
    if entry.name not in reports():
        raise UnknownNameError("report", entry.name, reports())
    contents = reports()[entry.name]
    return contents.model_copy(update={"roles": entry.roles or contents.roles})


def printed_table(name: str, run: MeasuredRun) -> list[TextTable]:
    """Fill a printed table with the run's figures."""
    return fill(name, run, FACTS.get(printed(name).key, PaperFacts()))


def _draw(name: str, run: MeasuredRun, outdir: Path) -> Iterator[Path]:
    """Save the figures of a name. Files lack the paper's name and are numbered from the second on."""
    stem = next((name.removeprefix(f"{key}_") for key in papers() if name.startswith(f"{key}_")), name)
    with rc_context(STYLE):
        for i, figure in enumerate(FIGURES[name](run)):
            path = outdir / f"papers-{stem}{f'-{i + 1}' if i else ''}.png"
            figure.savefig(path, metadata={"Software": None})
            yield path


# One table of a paper, printed and measured, by the paper's name and the table's number.


FRAMEWORKS = 2
"""The table of Cross-Regression that compares frameworks; its other tables of training are costs."""
ROMAN = {"i": 1, "ii": 2, "iii": 3, "iv": 4, "v": 5}


def keys() -> Mapping[str, str]:
    """Return the papers' titles by the names that a command line uses, such as sjdpp for SJD++."""
    return {title.lower().replace("++", "pp").replace("-", "_"): title for title in items()}


def tables_of(paper: str) -> dict[int, Item]:
    """Return the tables of a paper by their numbers."""
    known = keys()
    key = paper.lower().replace("++", "pp").replace("-", "_")
    if key not in known:
        choices = "; ".join(f"{name}: {_listed(tables_of(name))}" for name in known)
        raise UsageError(f"there is no paper {paper!r}{did_you_mean(key, known) or '.'} Papers and tables: {choices}.")
    listed = [item for item in items()[known[key]] if item.item.startswith("Table ")]
    return {_number(item.item): item for item in listed}


def one_table(store: Store, paper: str, table: str) -> list[TextTable]:
    """Return a printed table filled by a run: one for each backbone, dtype, temperature and task that fits.

    Args:
        store: the run; tables of the cost of training need nothing of it.
    """
    tables = tables_of(paper)
    number = _number(table)
    if number not in tables:
        raise UsageError(f"{paper} has no table {table!r}; it has {_listed(tables)}.")
    item = tables[number]
    if item.made_by == "stride paper cost":
        book = cost.read(cost.CARDS)
        return [cost.framework_table(book, {}) if number == FRAMEWORKS else cost.cost_table(book, book.utilisation)]
    if not item.suite:
        why = f"{item.made_by} makes it" if item.made_by else item.why
        raise UsageError(f"{item.item} of {paper} is no report of a run: {why}.")
    name, contents, groups = item.made_by, contents_of(store), measured(store)
    if name not in contents.sheets:  # only suites that make the table choose tasks that stand in for the paper's
        of = printed(name)
        groups = [group for group in groups if group.task in (of.layout.tasks or of.paper.benchmarks)]
    run = MeasuredRun(store, groups, contents.roles)
    by_cells = printed_table(name, run) if run.groups and name not in SHEETS else ()
    sheets = SHEETS[name](run) if name in SHEETS else by_cells  # one of them lists vocabularies, which needs no cell
    filled = [table for table in sheets if _measures(table)]
    if not filled:
        raise UsageError(f"no finished cell of {store.path} fits {item.item} of {paper}; {_how(item)}.")
    return filled


def _how(item: Item) -> str:
    """Say which suite fills a table: first one on models that ship, then the one on the paper's models."""
    if item.suite.endswith("real"):
        for paper, file in papers().items():
            for name, contents in file.reports.items():
                if item.made_by in contents.sheets and not name.endswith("_real"):
                    variant = f" --only {name.removeprefix(f'{paper}_')}" if name != paper else ""
                    return f"stride run papers/{paper}{variant} makes it, and {item.suite} on the paper's own models"
    return f"stride run {item.suite} makes it"


def _measures(table: TextTable) -> bool:
    """Return whether a measured column holds a figure; a table without such columns lists measurements."""
    columns = [i for i, column in enumerate(table.columns) if column.title.endswith("measured")]
    return not columns or any(row[i] not in (UNMEASURED, "-", "") for row in table.rows for i in columns)


def _number(text: str) -> int:
    """Return the number of a table that is written 4, IV or Table IV, or 0 if it is not a number."""
    word = re.sub(r"^table[ _]*", "", text.strip().lower())
    return int(word) if word.isascii() and word.isdecimal() else ROMAN.get(word, 0)


def _listed(tables: Mapping[int, Item]) -> str:
    return f"table{'s' if len(tables) > 1 else ''} {', '.join(map(str, sorted(tables)))}"
