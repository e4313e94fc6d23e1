"""`stride report`: tables, plots and pages of finished or half-finished runs."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli.main import emit
from harness.cli.results import RunReport
from harness.errors import UsageError
from harness.platform.extras import optional
from harness.record.store import Store


@click.command(name="report")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the files. Default: RUN/report.")
@click.option(
    "--html",
    "pages",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write pages for a browser into this folder instead: index.html, of one or more runs.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document: one row for each cell.")
def command(runs: tuple[Path, ...], out: Path | None, pages: Path | None, as_json: bool) -> None:
    """Print the table of a run, and write its reports.

    Files: the table as Markdown, CSV and LaTeX; the Pareto plot as PNG and SVG; sheets of pictures, meshes and
    transcripts; and for a run of papers/... the paper's tables and figures. The pages of --html work from the disk.

    \b
    stride report runs/quick-20260101-120000
    stride report runs/mine --out docs/mine
    stride report runs/mine --json | jq '.[] | {label, speedup, verdict}'
    stride report runs/mine runs/other --html site      open site/index.html
    """
    if pages is not None:
        if out is not None or as_json:
            raise UsageError("--html writes pages alone; ask for --out or --json in a second command")
        click.echo(f"wrote {write_pages(runs, pages)}")
        return
    if len(runs) > 1:
        raise UsageError(f"{len(runs)} runs were named; add --html FOLDER for a page of them all, or name one run")
    run = runs[0]
    report = RunReport(Store.open(run))
    written = report.write(out or run / "report")
    if as_json:
        frame = report.frame
        emit(frame.astype(object).where(frame.notna(), None).to_dict("records"))
        return
    report.print()
    click.echo("\n".join(f"wrote {path}" for path in written))


def write_pages(runs: tuple[Path, ...], folder: Path) -> Path:
    """Write the pages of runs; returns index.html.

    Raises:
        UsageError: a package of the extra is not installed, or the folder is a run. StoreError: a run cannot be read.
    """
    for module in ("plotly", "itables"):
        optional(module, "a page for a browser", "html")
    if (folder / "manifest.json").exists():
        raise UsageError(f"{folder} holds a run; name another folder for its pages")
    from reports.html import page

    return page.write([Store.open(run) for run in runs], folder)
