"""`stride report`: tables and plots of a finished or half-finished run."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli.main import emit
from harness.cli.results import RunReport
from harness.record.store import Store


@click.command(name="report")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the files. Default: RUN/report.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: one row for each cell.")
def command(run: Path, out: Path | None, as_json: bool) -> None:
    """Print the table of a run, and write its reports.

    Files: the table as Markdown, CSV and LaTeX; the Pareto plot as PNG and SVG; sheets of pictures, meshes and
    transcripts; and for a run of papers/... the paper's tables and figures.

    \b
    stride report runs/quick-20260101-120000
    stride report runs/mine --out docs/mine
    stride report runs/mine --json | jq '.[] | {label, speedup, verdict}'
    """
    report = RunReport(Store.open(run))
    written = report.write(out or run / "report")
    if as_json:
        frame = report.frame
        emit(frame.astype(object).where(frame.notna(), None).to_dict("records"))
        return
    report.print()
    click.echo("\n".join(f"wrote {path}" for path in written))
