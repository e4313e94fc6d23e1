"""Runs stored by version 0.1 are read, and their reports are the same as then.

Each folder of ``golden`` holds a store made by commit f31d04a (``stride run SUITE --limit N``, N = 2 for quick
and 1 for the others, without its report), what ``stride report`` of that commit printed at 160 columns, and its tables.

Some tables were wrong there and are renewed:

- papers-adt_tree, Tables I and II: `d_bar` was the levels kept, which have a column of their own now. The levels built
  were not stored.
- papers-sjdpp, Table 9: log-probabilities counted forced ends of rows.
- papers-sjdpp, Tables 1 to 4: embedded-image, which is not a model of the paper, has rows with its name.

Figure 1 of papers-adt_tree and trees shows the cards of the drafters that are shipped today, so its rows follow them.
"""

from __future__ import annotations

import math
import re
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from stridebench.harness.cli.report import command
from stridebench.reports import tables

GOLDEN = Path(__file__).parent / "golden"
QUICK = "quick"
RUNS = [
    name if name == QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
]
WORDING: dict[str, str] = {}
"""Words of version 0.1 and their replacements today; values are never in this table."""


OTHER_SEEDS = ["tv", "tv_p", "ks", "ks_p"]
"""Two-sample tests, which version 0.1 made against the baseline of the same seeds, and now against other seeds."""


RANKS = {"predicted": 7, "agreement": 3}
COLUMNS = tuple(
    replace(column, rank=RANKS.get(column.key, column.rank)) for column in tables.COLUMNS if column.key != "drafter_c"
)
"""With the ranks that these columns had, so that the same ones fit, and without one that did not exist."""


def reworded(text: str) -> str:
    """Return today's wording with single spaces, because columns may be wider or narrower."""
    for old, new in WORDING.items():
        text = text.replace(old, new)
    return re.sub(r"\s+", " ", text)


@pytest.fixture(scope="module", params=RUNS)
def reported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, str]:
    """The name of a stored run, a copy with a new report, and the output of `stride report`, without plots."""
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(GOLDEN / request.param / "store.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "160")
        patch.chdir(folder)
        patch.setattr("matplotlib.figure.Figure.savefig", lambda figure, path, **options: Path(path).touch())
        patch.setattr(
            "stridebench.reports.pareto.write",
            lambda frame, outdir: [outdir / f"pareto.{kind}" for kind in ("png", "svg")],
        )
        patch.setattr("stridebench.reports.summary.DISTURBED", math.inf)  # a flag that version 0.1 did not have
        patch.setattr("stridebench.reports.tables.COLUMNS", COLUMNS)
        patch.setattr("stridebench.reports.tables.rounding_notes", lambda done: [])  # a line that it did not have
        result = CliRunner().invoke(command, [request.param], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return request.param, folder / request.param, result.output


@pytest.mark.slow
def test_the_terminal_equals_its_golden_page(reported: tuple[str, Path, str]) -> None:
    name, _, printed = reported
    expected = (GOLDEN / name / "report.txt").read_text(encoding="utf-8")
    assert reworded(printed) == reworded(expected)


def test_every_column_of_the_summary_has_the_same_values(reported: tuple[str, Path, str]) -> None:
    name, run, _ = reported
    before = pd.read_csv(GOLDEN / name / "summary.csv.xz")
    after = pd.read_csv(run / "report" / "summary.csv")
    columns = [name for name in before.columns if name not in OTHER_SEEDS]
    pd.testing.assert_frame_equal(after[columns], before[columns], check_exact=False, rtol=1e-12)


def test_the_papers_tables_have_the_same_rows(reported: tuple[str, Path, str]) -> None:
    name, run, _ = reported
    golden = GOLDEN / name / "papers.md"
    if not golden.exists():
        assert not (run / "report" / "papers.md").exists()
        return
    assert reworded((run / "report" / "papers.md").read_text("utf-8")) == reworded(golden.read_text("utf-8"))


def test_a_changed_value_is_noticed(tmp_path: Path) -> None:
    """The comparison notices one changed digit of one stored table."""
    shutil.copy(GOLDEN / "quick" / "report.txt", tmp_path)
    text = (tmp_path / "report.txt").read_text("utf-8")
    digit = re.search(r"\d\.(\d)", text)
    assert digit is not None
    changed = text[: digit.start(1)] + str((int(digit[1]) + 1) % 10) + text[digit.end(1) :]
    assert reworded(changed) != reworded(text)
