"""Values that the documentation quotes are those of the data files, which say how they were made."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stridebench.harness.errors import UsageError
from stridebench.reports import results

ROOT = Path(__file__).resolve().parents[2]
INTERVAL = re.compile(r"\[([^\]]+)\]")


@pytest.mark.parametrize("name", results.all_names())
def test_results_say_what_made_them(name: str) -> None:
    data = results.read(name)
    assert data.command.startswith(("stride ", "python -m ", "tox -e bench")) and re.search(
        r"\b[0-9a-f]{7}\b", data.commit
    )
    assert data.tables and all(table.rows for table in data.tables)


@pytest.mark.parametrize("name", results.all_names())
def test_an_interval_holds_its_value(name: str) -> None:
    for table in results.read(name).tables:
        for value in (value for row in table.rows for value in row):
            for interval in INTERVAL.findall(value):
                low, high = map(float, interval.split(","))
                middle = float(re.search(r"[-+]?[\d.]+", value)[0])  # type: ignore[index]
                assert low <= middle <= high, f"{table.name}: {value}"


@pytest.mark.parametrize(
    ("name", "tables"),
    [("README.md", 1), ("docs/gate.md", 1), ("docs/engines.md", 2), ("docs/machines.md", 3), ("docs/speed.md", 7)],
)
def test_a_pages_tables_are_those_of_the_data(name: str, tables: int) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert len(results.BLOCK.findall(page)) >= tables
    assert results.filled(page) == page, f"run `python -m stridebench.reports.results {name}`"


def test_a_changed_value_in_a_page_is_replaced() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert results.filled(page.replace("1.65 [1.64, 1.68]", "1.95 [1.94, 1.98]")) == page


def test_a_mark_without_a_table_is_refused() -> None:
    with pytest.raises(UsageError, match="has no table 'nowhere'; it has speed"):
        results.filled("<!-- results: bench/nowhere -->\n<!-- end -->")
    with pytest.raises(UsageError, match="there are no results 'nothing'"):
        results.filled("<!-- results: nothing/speed -->\n<!-- end -->")
