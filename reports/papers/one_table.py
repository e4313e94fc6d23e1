"""One table of a paper, printed and measured, by the paper's name and the table's number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stridebench.harness.errors import UsageError, did_you_mean
from stridebench.reports.papers import cost, report
from stridebench.reports.papers.drawing import SHEETS
from stridebench.reports.papers.measured import MeasuredRun, measured
from stridebench.reports.papers.paper_files import Item, items, papers, printed
from stridebench.reports.text_table import UNMEASURED, TextTable

if TYPE_CHECKING:
    from stridebench.harness.record.store import Store

FRAMEWORKS = 2
"""The table of Cross-Regression that compares frameworks; its other tables of training are costs."""
ROMAN = {"i": 1, "ii": 2, "iii": 3, "iv": 4, "v": 5}


def keys() -> Mapping[str, str]:
    """Return the papers' titles by the names that a command line uses, such as sjdpp for SJD++."""
    return {title.lower().replace("++", "pp").replace("-", "_"): title for title in items()}


def tables_of(paper: str) -> dict[int, Item]:
    """Return the tables of a paper by their numbers.

    Args:
        paper: as a command line names it, or its title.

    Raises:
        UsageError: the paper is unknown.
    """
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
        paper: its name, such as sjdpp.
        table: its number, such as 1 or IV.

    Raises:
        UsageError: the paper or the table is unknown, the table does not come from a run, or no cell of the run is of
            the table's tasks or of those that its suite has in their place.
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
    name, contents, groups = item.made_by, report.contents_of(store), measured(store)
    if name not in contents.sheets:  # only suites that make the table choose tasks that stand in for the paper's
        of = printed(name)
        groups = [group for group in groups if group.task in (of.layout.tasks or of.paper.benchmarks)]
    run = MeasuredRun(store, groups, contents.roles)
    by_cells = report.table(name, run) if run.groups and name not in SHEETS else ()
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
