"""Reports of stored runs are the same as when they were stored.

Each folder of ``golden`` holds a store (``stride run SUITE --limit N`` of commit f31d04a, N = 2 for quick and 1 for the
others, with the name of its report and the neutral value of each column that the schema gained since), the output of
``stride report`` at 160 columns, and its tables. Figure 1 of papers-adt_tree and trees shows the cards of the drafters
that are shipped today, so its rows follow them.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from stridebench.harness.cli.report import command

GOLDEN = Path(__file__).parent / "golden"
RUNS = [
    name if name == "quick" else pytest.param(name, marks=pytest.mark.slow)
    for name in sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
]


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
        result = CliRunner().invoke(command, [request.param], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return request.param, folder / request.param, result.output


@pytest.mark.slow
def test_the_terminal_equals_its_golden_page(reported: tuple[str, Path, str]) -> None:
    name, _, printed = reported
    assert printed == (GOLDEN / name / "report.txt").read_text(encoding="utf-8")


def test_every_column_of_the_summary_has_the_same_values(reported: tuple[str, Path, str]) -> None:
    name, run, _ = reported
    before = pd.read_csv(GOLDEN / name / "summary.csv.xz")
    after = pd.read_csv(run / "report" / "summary.csv")
    assert set(after) - set(before) == {"loss"}, "these runs were made before it"
    after = after.drop(columns="loss")
    pd.testing.assert_frame_equal(after, before, check_exact=False, rtol=1e-12)


def test_the_papers_tables_have_the_same_rows(reported: tuple[str, Path, str]) -> None:
    name, run, _ = reported
    golden, written = GOLDEN / name / "papers.md", run / "report" / "papers.md"
    assert golden.exists() == written.exists()
    assert not golden.exists() or written.read_text("utf-8") == golden.read_text("utf-8")
